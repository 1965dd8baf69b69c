// SPDX-License-Identifier: Apache-2.0
//! Settings of a shard's part of a table, such that all parts together keep the table's limits.

use reverb_base::{Error, Result};
use reverb_data::{MAX_MAX_SIZE, MemoryConfig, RateLimiterConfig, TableConfig};

/// Settings of the part of shard `index` of `num_shards`.
///
/// * `max_size` is divided, rounded up. A table that its limiter keeps from being full, such as a
///   queue, keeps its `max_size`, because the limiter may give one shard more room than another.
/// * `max_bytes` is divided, rounded down.
/// * The parts of `min_size_to_sample` add up to it; each is at least 1.
/// * The bounds of the parts add up to the bounds of the table. Each part has the same room around
///   its cursor at `min_size_to_sample` without samples. If the cursor is always a whole number, so
///   are the bounds.
/// * All other settings are the same in all parts.
///
/// # Errors
///
/// `InvalidArgument` if `max_bytes` is less than one byte for each part, and for a table with
/// rollouts, which cannot be divided.
pub fn part(table: &TableConfig, index: usize, num_shards: usize) -> Result<TableConfig> {
    // The pattern is exhaustive, so that the compiler points here when an option is added: it is
    // the same in all parts, or it is divided here and added up in `whole`.
    let TableConfig {
        name,
        sampler: _,
        remover: _,
        max_size,
        max_times_sampled: _,
        rate_limiter,
        signature: _,
        seed: _,
        memory: MemoryConfig { max_bytes, when_full },
        max_priority: _,
        rollouts,
    } = table;
    if rollouts.is_some() && num_shards > 1 {
        return Err(Error::invalid_argument(format!(
            "Table {name} has rollouts; a group of {num_shards} servers cannot hold it. Start one \
             with num_shards=1, or serve the table by itself."
        )));
    }
    let shards = num_shards.max(1) as i64;
    let max_size = match *max_size {
        size if size < 1 || is_bounded_by_limiter(table) => size,
        size => (size - 1) / shards + 1,
    };
    let max_bytes = match *max_bytes {
        Some(bytes) if bytes < shards as u64 => {
            return Err(Error::invalid_argument(format!(
                "max_bytes of table {name} must be at least {shards}, a byte for each shard, got \
                 {bytes}"
            )));
        }
        bytes => bytes.map(|bytes| bytes / shards as u64),
    };
    let limiters = limiters(rate_limiter, num_shards.max(1));
    Ok(TableConfig {
        max_size,
        rate_limiter: limiters.get(index).copied().unwrap_or(*rate_limiter),
        memory: MemoryConfig { max_bytes, when_full: *when_full },
        ..table.clone()
    })
}

/// Settings of the table that has these parts: the first one's, with the sums of what is divided.
///
/// Divided again, it has the same parts. `max_size` and `max_bytes` are the table's except for the
/// rounding of the parts, and `min_size_to_sample` is 1 if it is 1 in every part.
pub fn whole(parts: &[TableConfig]) -> Option<TableConfig> {
    let limiters = || parts.iter().map(|part| &part.rate_limiter);
    let sum_of = |bound: fn(&RateLimiterConfig) -> f64| {
        // The largest floats mean no bound.
        limiters().map(bound).sum::<f64>().clamp(-f64::MAX, f64::MAX)
    };
    let max_size = parts.iter().map(|part| part.max_size).max()?;
    let mut whole = TableConfig { max_size, ..parts.first()?.clone() };
    whole.rate_limiter.min_diff = sum_of(|limiter| limiter.min_diff);
    whole.rate_limiter.max_diff = sum_of(|limiter| limiter.max_diff);
    if limiters().any(|limiter| limiter.min_size_to_sample > 1) {
        whole.rate_limiter.min_size_to_sample =
            limiters().map(|limiter| limiter.min_size_to_sample).sum();
    }
    let add = |sum: u64, part: &TableConfig| Some(sum.saturating_add(part.memory.max_bytes?));
    whole.memory.max_bytes = parts.iter().try_fold(0, add);
    if !(is_bounded_by_limiter(&whole) && parts.iter().all(|part| part.max_size == max_size)) {
        let sum: i64 = parts.iter().map(|part| part.max_size).sum();
        // Rounding must not make a table larger than one can be.
        whole.max_size = sum.min(MAX_MAX_SIZE);
    }
    Some(whole)
}

/// Reasons why the parts of a rate limiter are too narrow, with a number that suffices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Narrowness {
    /// Set if inserts and samples of a part would block each other.
    pub error: Option<String>,
    /// Set if a part has little room for requests of several items.
    pub warning: Option<String>,
}

/// Checks that the parts of the rate limiter are wide enough.
pub fn narrowness(table: &TableConfig, num_shards: usize) -> Narrowness {
    let TableConfig { name, rate_limiter, .. } = table;
    let RateLimiterConfig { samples_per_insert: spi, min_diff, max_diff, .. } = *rate_limiter;
    if num_shards <= 1 || is_unbounded(min_diff) || is_unbounded(max_diff) {
        return Narrowness::default();
    }
    // One insert and one sample must fit. Whole numbers allow them to share the last step.
    let step = f64::max(1.0, if is_exact(rate_limiter) { spi } else { spi + 1.0 });
    let wanted = 2.0 * f64::max(1.0, spi);
    let room = max_diff - min_diff;
    let parts = limiters(rate_limiter, num_shards);
    let least =
        parts.iter().map(|part| part.max_diff - part.min_diff).fold(f64::INFINITY, f64::min);
    let shards = num_shards as f64;
    let text = format!(
        "the rate limiter of table {name} is too fine for {num_shards} shards: it lets inserts * \
         samples_per_insert - samples move by {} (max_diff - min_diff), {} in each shard",
        short(room),
        short(room / shards)
    );
    if least < step {
        let (step, enough) = (short(step), short(step * shards));
        let error = Some(format!("{text}, where it needs {step}; {enough} would do"));
        return Narrowness { error, warning: None };
    }
    if room < wanted * shards {
        let warning = format!(
            "{text}, where {} would be good; {} would do, an error_buffer of {}",
            short(wanted),
            short(wanted * shards),
            short(wanted * shards / 2.0)
        );
        return Narrowness { error: None, warning: Some(warning) };
    }
    Narrowness::default()
}

/// True if the limiter alone keeps the table at `max_size`, as for a queue.
///
/// Each item is sampled once and counts 1, so the cursor is the number of items.
fn is_bounded_by_limiter(table: &TableConfig) -> bool {
    let TableConfig { max_size, max_times_sampled, rate_limiter, .. } = table;
    #[allow(clippy::float_cmp, reason = "a queue has exactly this number")]
    let is_one = rate_limiter.samples_per_insert == 1.0;
    *max_times_sampled == 1 && is_one && rate_limiter.max_diff <= *max_size as f64
}

/// True if the cursor and its bounds are always whole numbers.
fn is_exact(limiter: &RateLimiterConfig) -> bool {
    let numbers = [limiter.samples_per_insert, limiter.min_diff, limiter.max_diff];
    numbers.into_iter().all(|number| is_unbounded(number) || number.fract() == 0.0)
}

fn limiters(whole: &RateLimiterConfig, num_shards: usize) -> Vec<RateLimiterConfig> {
    let RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, max_diff } = *whole;
    let min_sizes: Vec<i64> = whole_parts(i128::from(min_size_to_sample), num_shards)
        .map(|size| (size as i64).max(1))
        .collect();
    let low = at_least(bounds(whole, min_diff, &min_sizes), min_diff);
    let high = at_most(bounds(whole, max_diff, &min_sizes), max_diff);
    let numbers = min_sizes.into_iter().zip(low.into_iter().zip(high));
    numbers
        .map(|(min_size_to_sample, (min_diff, max_diff))| RateLimiterConfig {
            samples_per_insert,
            min_size_to_sample,
            min_diff,
            max_diff,
        })
        .collect()
}

/// Divides a bound into parts that add up to it, except for rounding.
fn bounds(limiter: &RateLimiterConfig, bound: f64, min_sizes: &[i64]) -> Vec<f64> {
    if is_unbounded(bound) {
        return vec![bound; min_sizes.len()];
    }
    // Cursors at which each shard has its minimum of items and no samples. A table with a
    // smaller minimum than shards has none.
    let is_in_all = min_sizes.iter().sum::<i64>() == limiter.min_size_to_sample;
    let spi = if is_in_all { limiter.samples_per_insert } else { 0.0 };
    let cursors: Vec<f64> = min_sizes.iter().map(|&size| spi * size as f64).collect();
    let rest = bound - exact_sum(cursors.iter().copied());
    let mut parts = vec![rest / min_sizes.len() as f64; min_sizes.len()];
    if is_exact(limiter) {
        // Parts with more items get less of the rest.
        parts = whole_parts(rest as i128, min_sizes.len()).map(|part| part as f64).collect();
        parts.reverse();
    }
    cursors.into_iter().zip(parts).map(|(cursor, part)| cursor + part).collect()
}

fn is_unbounded(bound: f64) -> bool {
    bound.abs() >= f64::MAX
}

/// Whole numbers that add up to the total and differ by at most 1.
fn whole_parts(total: i128, count: usize) -> impl Iterator<Item = i128> {
    let shards = count as i128;
    let part = total.div_euclid(shards);
    let rest = total.rem_euclid(shards);
    (0..shards).map(move |index| part + i128::from(index < rest))
}

/// Corrects rounding: the sum of the parts is not below the total.
fn at_least(parts: Vec<f64>, total: f64) -> Vec<f64> {
    let negated = parts.into_iter().map(|part| -part).collect();
    at_most(negated, -total).into_iter().map(|part| -part).collect()
}

/// Corrects rounding: the sum of the parts is not above the total.
fn at_most(mut parts: Vec<f64>, total: f64) -> Vec<f64> {
    if is_unbounded(total) {
        return parts;
    }
    loop {
        let surplus = exact_sum(parts.iter().copied().chain([-total]));
        match parts.last_mut() {
            Some(last) if surplus > 0.0 => *last = (*last - surplus).next_down(),
            _ => return parts,
        }
    }
}

/// Sum of finite numbers with an exact sign.
///
/// Source: J. R. Shewchuk, "Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric
/// Predicates", 1997, Grow-Expansion.
fn exact_sum(numbers: impl Iterator<Item = f64>) -> f64 {
    // Partial sums without common bits, smallest first.
    let mut partials: Vec<f64> = Vec::new();
    for mut number in numbers {
        let mut kept = Vec::with_capacity(partials.len() + 1);
        for partial in partials {
            let sum = number + partial;
            let of_partial = sum - number;
            let error = (number - (sum - of_partial)) + (partial - of_partial);
            if error != 0.0 {
                kept.push(error);
            }
            number = sum;
        }
        kept.push(number);
        partials = kept;
    }
    partials.iter().sum()
}

/// Formats a number with at most six digits, like `%g`.
fn short(number: f64) -> String {
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e6).contains(&magnitude) {
        return format!("{number:.5e}");
    }
    let digits = if magnitude < 1.0 { 6 } else { 5 - magnitude.log10().floor() as usize };
    let text = format!("{number:.digits$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;
    use prost::bytes::Bytes;
    use reverb_data::{MaxPriority, SelectorConfig, Signature, TableSignature, WhenFull};

    use reverb_engine::Table;
    use reverb_wire::convert::table_info::from_table_info;
    use reverb_wire::generated::TableInfo;

    use super::*;
    use crate::tables::together;

    fn divided(table: &TableConfig, num_shards: usize) -> Vec<TableConfig> {
        (0..num_shards).map(|index| part(table, index, num_shards).unwrap()).collect()
    }

    /// Tables whose numbers are whole; no option has its default.
    fn tables() -> impl Strategy<Value = TableConfig> {
        let bound = || -1_000_000..1_000_000_i32;
        let limiter =
            (1..64_i32, 1..2_000_i64, prop::option::of(bound()), prop::option::of(bound()));
        let max_size = prop_oneof![1..100_000_i64, Just(MAX_MAX_SIZE)];
        let numbers = (max_size, prop::option::of(7..1_u64 << 50), 0..3_i32);
        (limiter, numbers, any::<bool>()).prop_map(|(limiter, numbers, is_queue)| {
            let (spi, min_size_to_sample, min_diff, max_diff) = limiter;
            let (max_size, max_bytes, max_times_sampled) = numbers;
            let rate_limiter = RateLimiterConfig {
                samples_per_insert: f64::from(spi),
                min_size_to_sample,
                min_diff: min_diff.map_or(-f64::MAX, f64::from),
                max_diff: max_diff.map_or(f64::MAX, f64::from),
            };
            let queue = RateLimiterConfig {
                samples_per_insert: 1.0,
                min_size_to_sample: 1,
                min_diff: 0.0,
                max_diff: max_size as f64,
            };
            // All fields are named, so that the compiler points here when an option is added.
            TableConfig {
                name: "t".to_owned(),
                sampler: SelectorConfig::Uniform,
                remover: SelectorConfig::Lifo,
                max_size,
                max_times_sampled: if is_queue { 1 } else { max_times_sampled },
                rate_limiter: if is_queue { queue } else { rate_limiter },
                signature: Some(TableSignature {
                    flat: Signature::default(),
                    encoded: Bytes::from_static(b"encoded"),
                }),
                seed: Some(3),
                memory: MemoryConfig { max_bytes, when_full: WhenFull::Wait },
                max_priority: MaxPriority::Ever,
                rollouts: None,
            }
        })
    }

    proptest! {
        #[test]
        fn the_parts_of_a_table_add_up_to_it(mut table in tables(), shards in 1..8_usize) {
            let parts = divided(&table, shards);
            let sum = whole(&parts).unwrap();
            prop_assert!(sum.validate().is_ok(), "{sum:?}");
            prop_assert_eq!(divided(&sum, shards), parts);
            // Rounding is less than one for each shard.
            let is_near = |a: u64, b: u64| a.abs_diff(b) < shards as u64;
            prop_assert!(is_near(sum.max_size.cast_unsigned(), table.max_size.cast_unsigned()));
            let bytes = |table: &TableConfig| table.memory.max_bytes.unwrap_or(0);
            prop_assert!(bytes(&sum) <= bytes(&table) && is_near(bytes(&sum), bytes(&table)));
            prop_assert_eq!(sum.memory.max_bytes.is_none(), table.memory.max_bytes.is_none());
            table.max_size = sum.max_size;
            table.memory.max_bytes = sum.memory.max_bytes;
            if table.rate_limiter.min_size_to_sample <= shards as i64 {
                prop_assert_eq!(sum.rate_limiter.min_size_to_sample, 1);
                table.rate_limiter.min_size_to_sample = 1;
            }
            prop_assert_eq!(sum, table);
        }

        #[test]
        fn a_group_tells_the_numbers_of_the_whole_table(table in tables(), shards in 1..8_usize) {
            let info = |config: TableConfig| {
                let message = from_table_info(&Table::new(config).unwrap().info());
                // Its clock has begun.
                TableInfo { table_worker_time: None, ..message }
            };
            let parts: Vec<_> = divided(&table, shards).into_iter().map(|part| vec![info(part)]).collect();
            let table = info(table);
            let told = together(&parts, std::slice::from_ref(&table));
            prop_assert_eq!(told, vec![table]);
        }

        #[test]
        fn the_bounds_of_the_parts_never_add_up_to_more_room(
            spi in 0.01..50.0_f64, min_size in 1..1_000_i64, error in 0.0..1e6_f64,
            num_shards in 1..300_usize,
        ) {
            let middle = spi * min_size as f64;
            let (min_diff, max_diff) = (middle - error, middle + error);
            let parts = limiters(&RateLimiterConfig {
                samples_per_insert: spi,
                min_size_to_sample: min_size,
                min_diff,
                max_diff,
            }, num_shards);
            let low = exact_sum(parts.iter().map(|part| part.min_diff).chain([-min_diff]));
            let high = exact_sum(parts.iter().map(|part| part.max_diff).chain([-max_diff]));
            prop_assert!(low >= 0.0 && low < 1e-6 * (1.0 + error), "{low}");
            prop_assert!(high <= 0.0 && high > -1e-6 * (1.0 + error), "{high}");
            prop_assert!(parts.iter().all(|part| part.min_diff <= part.max_diff));
        }

        #[test]
        fn an_exact_sum_has_the_right_sign(
            numbers in prop::collection::vec(-1e18..1e18_f64, 1..30), tiny in -1e-18..1e-18_f64,
        ) {
            let mut all = numbers.clone();
            all.push(tiny);
            all.extend(numbers.iter().rev().map(|number| -number));
            prop_assert_eq!(exact_sum(all.into_iter()).total_cmp(&tiny), Ordering::Equal);
        }
    }

    #[test]
    fn a_queue_keeps_its_size() {
        let mut queue = TableConfig { max_times_sampled: 1, ..TableConfig::fifo("q", 10) };
        queue.rate_limiter.min_diff = 0.0;
        queue.rate_limiter.max_diff = 10.0;
        let parts = divided(&queue, 4);
        assert!(parts.iter().all(|part| part.max_size == 10));
        let highs: Vec<_> = parts.iter().map(|part| part.rate_limiter.max_diff).collect();
        assert_eq!(highs, [2.0, 2.0, 3.0, 3.0]);
        assert_eq!(whole(&parts), Some(queue));
    }
}
