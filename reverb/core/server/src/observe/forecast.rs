// SPDX-License-Identifier: Apache-2.0
//! Forecast of what the tables of a server need when all are full, beside the limits of its memory.

use reverb_base::byte_size::describe;
use reverb_data::TableInfo;
use reverb_engine::Forecast;
use reverb_wire::generated::reverb::MemoryForecast;

use crate::observe::status::number;

/// Limits of the memory of a server; absent where there is none, or none is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MemoryLimits {
    /// `max_bytes` of the server.
    pub(crate) max_bytes: Option<u64>,
    /// Bytes that payloads may have in a store, where they go when `max_bytes` is near.
    pub(crate) store: Option<u64>,
    /// The smallest limit of the control groups of the process.
    pub(crate) cgroup: Option<u64>,
    /// The memory of the machine.
    pub(crate) machine: Option<u64>,
}

/// The forecast of these tables, each with those of its bytes that may go to a store; `None` while
/// nothing is known of any.
pub(crate) fn memory_forecast(
    tables: &[(TableInfo, u64)],
    limits: &MemoryLimits,
) -> Option<MemoryForecast> {
    let (mut needed, mut stays) = (0u64, 0u64);
    let (mut is_known, mut has_unknown, mut has_bound) = (false, false, false);
    for (info, payload_bytes) in tables {
        let forecast = table_forecast(info);
        is_known |= forecast.is_some();
        has_unknown |= forecast.is_none();
        has_bound |= from_items(info).is_none() && forecast.is_some();
        let bytes = forecast.map_or(info.bytes, |forecast| forecast.bytes);
        needed = needed.saturating_add(bytes);
        let share = info.bytes.saturating_sub(*payload_bytes) as f64 / info.bytes.max(1) as f64;
        stays = stays.saturating_add((bytes as f64 * share) as u64);
    }
    let first = [
        ("max_bytes", limits.max_bytes, "max_bytes of the server"),
        ("cgroup", limits.cgroup, "the limit of the control group"),
        ("machine", limits.machine, "the memory of the machine"),
    ];
    let first = first.into_iter().filter_map(|(name, bytes, text)| Some((name, bytes?, text)));
    // Of equal ones the first: a server acts before it has all of `max_bytes`.
    let first = first.min_by_key(|(_, bytes, _)| *bytes);
    let about = match (has_bound, has_unknown) {
        (true, false) => "up to",
        (false, true) => "at least",
        _ => "about",
    };
    let size = format!("Full tables need {about} {}", describe(needed));
    let sentence = first.map_or_else(
        || format!("{size}."),
        |first| format!("{size}{}", what_follows(needed, stays, first, limits.store)),
    );
    let (first_limit, first_limit_bytes, _) = first.unwrap_or_default();
    is_known.then(|| MemoryForecast {
        needed_bytes: number(needed),
        first_limit: first_limit.to_owned(),
        first_limit_bytes: number(first_limit_bytes),
        sentence,
    })
}

/// What happens at the first limit. `stays` are bytes that have to be in memory.
fn what_follows(
    needed: u64,
    stays: u64,
    (name, bytes, text): (&str, u64, &str),
    store: Option<u64>,
) -> String {
    let limit = describe(bytes);
    let leave = "items leave or inserts wait before the tables are full. Raise max_bytes, or set a \
                 smaller max_size.";
    match (name, store) {
        _ if needed <= bytes => format!("; the first limit is {text}, {limit}."),
        ("max_bytes", Some(_)) if stays > bytes => format!(
            "; {text}, {limit}, is less than the {} that cannot go to the store: {leave}",
            describe(stays)
        ),
        ("max_bytes", Some(store)) if needed - bytes <= store => format!(
            "; beyond {text}, {limit}, payloads are on the disk alone, and the store has {}.",
            describe(store)
        ),
        ("max_bytes", Some(store)) => {
            format!("; {text}, {limit}, and the store, {}, have less: {leave}", describe(store))
        }
        ("max_bytes", None) => format!("; {text}, {limit}, is reached first: {leave}"),
        _ => format!(
            "; {text}, {limit}, is reached first, and there the system ends the server. Set \
             max_bytes below it, or a smaller max_size."
        ),
    }
}

/// Forecast of a table by its items, or by the signature while there are too few items. It is at
/// most the limit of the table.
pub(crate) fn table_forecast(info: &TableInfo) -> Option<Forecast> {
    let mut forecast = from_items(info).or_else(|| Forecast::from_signature(&info.config))?;
    forecast.bytes = forecast.bytes.min(info.config.memory.max_bytes.unwrap_or(u64::MAX));
    Some(forecast)
}

fn from_items(info: &TableInfo) -> Option<Forecast> {
    let size = usize::try_from(info.current_size).unwrap_or(0);
    Forecast::new(info.config.max_size, size, info.bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use reverb_data::TableConfig;
    use reverb_engine::Table;

    use super::*;

    /// A table of so many of 1000 items, each of a MiB. All but a quarter of it may leave memory.
    fn of_items(items: i64) -> (TableInfo, u64) {
        let mut info = Table::new(TableConfig::fifo("t", 1000)).unwrap().info();
        (info.current_size, info.bytes) = (items, (items as u64) << 20);
        (info, ((items as u64) << 18) * 3)
    }

    #[test]
    fn the_limit_that_is_reached_first_is_named() {
        let limits = |max_bytes: u64, store: u64, cgroup: u64, machine: u64| {
            let [max_bytes, store, cgroup, machine] = [max_bytes, store, cgroup, machine]
                .map(|mib| Some(mib << 20).filter(|bytes| *bytes > 0));
            MemoryLimits { max_bytes, store, cgroup, machine }
        };
        let leave = "items leave or inserts wait before the tables are full. Raise max_bytes, or \
                     set a smaller max_size.";
        let ends = "is reached first, and there the system ends the server. Set max_bytes below \
                    it, or a smaller max_size.";
        for (limits, first, expected) in [
            (limits(0, 0, 0, 0), ("", 0), ".".to_owned()),
            (
                limits(1536, 0, 2048, 4096),
                ("max_bytes", 1536),
                "; the first limit is max_bytes of the server, 1.5 GiB.".to_owned(),
            ),
            (
                limits(0, 0, 2048, 4096),
                ("cgroup", 2048),
                "; the first limit is the limit of the control group, 2.0 GiB.".to_owned(),
            ),
            (
                limits(512, 0, 512, 4096),
                ("max_bytes", 512),
                format!("; max_bytes of the server, 512.0 MiB, is reached first: {leave}"),
            ),
            (
                limits(512, 0, 256, 4096),
                ("cgroup", 256),
                format!("; the limit of the control group, 256.0 MiB, {ends}"),
            ),
            (
                limits(2048, 0, 0, 768),
                ("machine", 768),
                format!("; the memory of the machine, 768.0 MiB, {ends}"),
            ),
            // 1000 MiB are 488 more than `max_bytes`.
            (
                limits(512, 488, 768, 4096),
                ("max_bytes", 512),
                "; beyond max_bytes of the server, 512.0 MiB, payloads are on the disk alone, and \
                 the store has 488.0 MiB."
                    .to_owned(),
            ),
            (
                limits(512, 487, 768, 4096),
                ("max_bytes", 512),
                format!(
                    "; max_bytes of the server, 512.0 MiB, and the store, 487.0 MiB, have less: \
                     {leave}"
                ),
            ),
            // A quarter of 1000 MiB stays in memory.
            (
                limits(128, 4096, 768, 4096),
                ("max_bytes", 128),
                format!(
                    "; max_bytes of the server, 128.0 MiB, is less than the 250.0 MiB that cannot \
                     go to the store: {leave}"
                ),
            ),
            // A store helps nobody whose process is ended before.
            (
                limits(512, 4096, 256, 4096),
                ("cgroup", 256),
                format!("; the limit of the control group, 256.0 MiB, {ends}"),
            ),
        ] {
            let found = memory_forecast(&[of_items(1000)], &limits).unwrap();
            assert_eq!((&*found.first_limit, found.first_limit_bytes >> 20), first);
            assert_eq!(found.needed_bytes, 1000 << 20);
            assert_eq!(found.sentence, format!("Full tables need about 1000.0 MiB{expected}"));
        }
    }

    #[test]
    fn tables_count_as_far_as_they_are_known() {
        let capped = || {
            let (mut info, payload_bytes) = of_items(100);
            Arc::make_mut(&mut info.config).memory.max_bytes = Some(200 << 20);
            (info, payload_bytes)
        };
        let of = |tables: &[(TableInfo, u64)]| {
            memory_forecast(tables, &MemoryLimits::default()).map(|found| found.sentence)
        };
        let told = |text: &str| Some(format!("Full tables need {text}."));
        assert_eq!(of(&[of_items(0), of_items(10)]), None);
        assert_eq!(of(&[of_items(100), capped()]), told("about 1.2 GiB"));
        assert_eq!(of(&[of_items(10), capped()]), told("at least 210.0 MiB"));
    }
}
