// SPDX-License-Identifier: Apache-2.0
//! Tables of a group: the check that all shards have the same ones, and their sum.

use std::collections::HashMap;

use reverb_base::{Error, Result};
use reverb_data::{Draw, GroupSampling, SelectorConfig};
use reverb_wire::convert::table_config::to_selector;
use reverb_wire::convert::table_info::to_settings;
use reverb_wire::generated::deepmind::reverb::{
    RateLimiterCallStats, RateLimiterInfo, TableInfo, TableWorkerTime,
};

use crate::table_part::part;

/// Sampling rule of each table.
///
/// # Errors
///
/// `InvalidArgument` with the table and its sampler, if the sampler needs all items of the table.
pub(crate) fn samplings(tables: &[TableInfo]) -> Result<HashMap<String, GroupSampling>> {
    let sampling = |table: &TableInfo| match to_selector(table.sampler_options.as_ref()) {
        Some(sampler) => sampler.in_group(&table.name),
        None => Ok(GroupSampling::Ordered),
    };
    tables.iter().map(|table| Ok((table.name.clone(), sampling(table)?))).collect()
}

fn describe(selector: Option<SelectorConfig>) -> String {
    match selector {
        Some(SelectorConfig::Prioritized { priority_exponent, draw: Draw::Independent }) => {
            format!("prioritized with exponent {priority_exponent}")
        }
        Some(SelectorConfig::Prioritized { draw, .. }) => draw.name().to_owned(),
        Some(selector) => selector.name().to_owned(),
        None => "none".to_owned(),
    }
}

/// Checks that two shards have the same tables. Returns a setting that differs, of those that can
/// be changed: a shard that was changed alone, or started again without the others.
///
/// # Errors
///
/// `FailedPrecondition` with the shards, the table and the difference.
pub(crate) fn check_alike(
    first_name: &str,
    first: &[TableInfo],
    other_name: &str,
    other: &[TableInfo],
) -> Result<Option<String>> {
    let differs = |table: &str, field: &str, here: String, there: String| {
        format!("{field} of table {table} is {here} at {first_name} and {there} at {other_name}")
    };
    let refused = |what: String| {
        let text = format!("The shards of a group must have the same tables: {what}.");
        Err(Error::failed_precondition(text))
    };
    for (tables, others, has, lacks) in
        [(first, other, first_name, other_name), (other, first, other_name, first_name)]
    {
        let missing =
            tables.iter().find(|table| others.iter().all(|other| other.name != table.name));
        if let Some(table) = missing {
            return refused(format!("{has} has table {}, {lacks} has not", table.name));
        }
    }
    let mut difference = None;
    for a in first {
        let Some(b) = other.iter().find(|b| b.name == a.name) else { continue };
        let name = &a.name;
        if a.sampler_options != b.sampler_options {
            let [here, there] = [a, b].map(|table| to_selector(table.sampler_options.as_ref()));
            let text = differs(name, "sampler", describe(here), describe(there));
            let kind =
                |selector: Option<SelectorConfig>| selector.map(|it| std::mem::discriminant(&it));
            if kind(here) != kind(there) {
                return refused(text);
            }
            difference = difference.or(Some(text));
        }
        if a.remover_options != b.remover_options {
            let [here, there] = [a, b].map(|table| to_selector(table.remover_options.as_ref()));
            return refused(differs(name, "remover", describe(here), describe(there)));
        }
        if a.signature != b.signature {
            let text = |has: bool| if has { "one that differs" } else { "none" }.to_owned();
            let here = text(a.signature.is_some());
            let there = text(b.signature.is_some());
            return refused(differs(name, "the signature", here, there));
        }
        let times = |table: &TableInfo| table.max_times_sampled;
        if times(a) != times(b) {
            let [here, there] = [a, b].map(|table| times(table).to_string());
            difference = difference.or(Some(differs(name, "max_times_sampled", here, there)));
        }
        let spi =
            |table: &TableInfo| table.rate_limiter_info.unwrap_or_default().samples_per_insert;
        #[expect(clippy::float_cmp, reason = "the same ratio is the same number")]
        if spi(a) != spi(b) {
            let [here, there] = [a, b].map(|table| spi(table).to_string());
            difference = difference.or(Some(differs(name, "samples_per_insert", here, there)));
        }
    }
    Ok(difference)
}

/// A limit of a shard's part that is not that of the group's tables, as a map has them.
pub(crate) fn other_limit(
    name: &str,
    tables: &[TableInfo],
    given: &[TableInfo],
    index: usize,
    num_shards: usize,
) -> Option<String> {
    given.iter().find_map(|given| {
        let own = tables.iter().find(|table| table.name == given.name)?;
        let part = part(&to_settings(given), index, num_shards).ok()?;
        let (wanted, found) = (part.max_size, own.max_size);
        (wanted != found).then(|| {
            format!(
                "max_size of table {} is {found} at {name}, and its part of {} is {wanted}",
                given.name, given.max_size
            )
        })
    })
}

/// Merges the tables of all shards. Tables in `given`, those of the map, keep the settings of the
/// group; other tables get the sums of their parts.
pub(crate) fn together(shards: &[Vec<TableInfo>], given: &[TableInfo]) -> Vec<TableInfo> {
    let Some(first) = shards.first() else { return Vec::new() };
    let sum_of = |table: &TableInfo| {
        let parts: Vec<&TableInfo> =
            shards.iter().flatten().filter(|part| part.name == table.name).collect();
        let mut sum = add(&parts);
        if let Some(given) = given.iter().find(|given| given.name == table.name) {
            sum.max_size = given.max_size;
            sum.max_bytes = given.max_bytes;
            if let (Some(sum), Some(given)) = (&mut sum.rate_limiter_info, given.rate_limiter_info)
            {
                sum.min_diff = given.min_diff;
                sum.max_diff = given.max_diff;
                sum.min_size_to_sample = given.min_size_to_sample;
            }
        }
        sum
    };
    first.iter().map(sum_of).collect()
}

fn add(parts: &[&TableInfo]) -> TableInfo {
    let mut sum = (*parts[0]).clone();
    for part in &parts[1..] {
        sum.max_size = sum.max_size.saturating_add(part.max_size);
        sum.max_bytes = match (sum.max_bytes, part.max_bytes) {
            (0, _) | (_, 0) => 0,
            (sum, part) => sum.saturating_add(part),
        };
        sum.current_size += part.current_size;
        sum.max_priority = match (sum.max_priority, part.max_priority) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        sum.num_episodes += part.num_episodes;
        sum.num_deleted_episodes += part.num_deleted_episodes;
        sum.num_unique_samples += part.num_unique_samples;
        if let (Some(sum), Some(part)) = (&mut sum.rate_limiter_info, &part.rate_limiter_info) {
            add_limiter(sum, part);
        }
        if let (Some(sum), Some(part)) = (&mut sum.table_worker_time, &part.table_worker_time) {
            add_time(sum, part);
        }
    }
    sum
}

fn add_limiter(sum: &mut RateLimiterInfo, part: &RateLimiterInfo) {
    sum.min_diff = add_bound(sum.min_diff, part.min_diff);
    sum.max_diff = add_bound(sum.max_diff, part.max_diff);
    sum.min_size_to_sample = sum.min_size_to_sample.saturating_add(part.min_size_to_sample);
    let count = |a: &mut Option<RateLimiterCallStats>, b: Option<RateLimiterCallStats>| {
        a.get_or_insert_default().completed += b.unwrap_or_default().completed;
    };
    count(&mut sum.insert_stats, part.insert_stats);
    count(&mut sum.sample_stats, part.sample_stats);
}

/// Sum of two limiter bounds. The largest and smallest floats mean "unbounded".
pub(crate) fn add_bound(a: f64, b: f64) -> f64 {
    if a.abs() >= f64::MAX { a } else { a + b }
}

pub(crate) fn add_time(sum: &mut TableWorkerTime, part: &TableWorkerTime) {
    sum.running_ms += part.running_ms;
    sum.sampling_ms += part.sampling_ms;
    sum.inserting_ms += part.inserting_ms;
    sum.sleeping_ms += part.sleeping_ms;
    sum.waiting_for_sampling_ms += part.waiting_for_sampling_ms;
    sum.waiting_for_inserts_ms += part.waiting_for_inserts_ms;
}

#[cfg(test)]
mod tests {
    use reverb_wire::convert::table_config::from_selector;

    use super::*;

    fn table(name: &str, size: i64) -> TableInfo {
        let limiter = RateLimiterInfo {
            samples_per_insert: 2.0,
            min_diff: -f64::MAX,
            max_diff: 10.0,
            min_size_to_sample: 3,
            insert_stats: Some(RateLimiterCallStats { completed: size }),
            sample_stats: None,
        };
        TableInfo {
            name: name.to_owned(),
            max_size: 100,
            current_size: size,
            rate_limiter_info: Some(limiter),
            ..TableInfo::default()
        }
    }

    #[test]
    fn sizes_and_limits_add_up_unless_the_group_has_its_own() {
        let shards = [vec![table("a", 1), table("b", 5)], vec![table("a", 2), table("b", 7)]];
        let sum = together(&shards, &[]);
        assert_eq!((sum[0].current_size, sum[0].max_size), (3, 200));
        let limiter = sum[1].rate_limiter_info.unwrap();
        assert!(limiter.min_diff <= -f64::MAX && (limiter.max_diff - 20.0).abs() < 1e-9);
        assert_eq!(limiter.insert_stats.unwrap().completed, 12);
        assert_eq!(limiter.min_size_to_sample, 6);
        let given = TableInfo { max_size: 150, ..table("a", 0) };
        let sum = together(&shards, &[given]);
        assert_eq!((sum[0].current_size, sum[0].max_size), (3, 150));
        assert!((sum[0].rate_limiter_info.unwrap().max_diff - 10.0).abs() < 1e-9);
    }

    #[test]
    fn what_differs_is_named_and_refused_if_it_cannot_be_changed() {
        let uniform = from_selector(SelectorConfig::Uniform);
        let prioritized = |priority_exponent| TableInfo {
            sampler_options: Some(from_selector(SelectorConfig::Prioritized {
                priority_exponent,
                draw: Draw::Independent,
            })),
            ..table("a", 0)
        };
        let a = [table("a", 0)];
        for (other, text) in [
            (vec![table("b", 0)], "one has table a, two has not"),
            (vec![table("a", 0), table("b", 0)], "two has table b, one has not"),
            (
                vec![TableInfo { sampler_options: Some(uniform), ..table("a", 0) }],
                "sampler of table a is none at one and uniform at two",
            ),
        ] {
            let error = check_alike("one", &a, "two", &other).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let changed = TableInfo { max_times_sampled: 1, ..table("a", 0) };
        let difference = check_alike("one", &a, "two", &[changed]).unwrap().unwrap();
        assert_eq!(difference, "max_times_sampled of table a is 0 at one and 1 at two");
        let (strong, weak) = ([prioritized(0.6)], [prioritized(0.4)]);
        let difference = check_alike("one", &strong, "two", &weak).unwrap().unwrap();
        assert!(difference.ends_with("0.6 at one and prioritized with exponent 0.4 at two"));
        let mut ratio = table("a", 0);
        ratio.rate_limiter_info.as_mut().unwrap().samples_per_insert = 4.0;
        let difference = check_alike("one", &a, "two", &[ratio]).unwrap().unwrap();
        assert_eq!(difference, "samples_per_insert of table a is 2 at one and 4 at two");
        assert_eq!(check_alike("one", &a, "two", &[table("a", 9)]).unwrap(), None);
    }

    #[test]
    fn a_part_that_is_not_that_of_the_map_is_named() {
        let unbounded = |max_size| {
            let mut table = TableInfo { max_size, ..table("a", 0) };
            table.rate_limiter_info.as_mut().unwrap().max_diff = f64::MAX;
            table
        };
        let given = [unbounded(300)];
        assert_eq!(other_limit("two", &[unbounded(100)], &given, 1, 3), None);
        let text = other_limit("two", &[unbounded(50)], &given, 1, 3).unwrap();
        assert_eq!(text, "max_size of table a is 50 at two, and its part of 300 is 100");
    }
}
