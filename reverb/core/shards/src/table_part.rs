// SPDX-License-Identifier: Apache-2.0
//! Settings of a shard's part of a table, such that all parts together keep the table's limits.

use reverb_data::{Error, Result};

/// Settings of a table that are divided among shards.
#[derive(Debug, Clone, PartialEq)]
pub struct TableNumbers {
    /// Name of the table, for errors.
    pub name: String,
    /// Maximum number of items.
    pub max_size: i64,
    /// Maximum memory; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Number of times that an item is sampled; below 1: unlimited.
    pub max_times_sampled: i64,
    /// Samples per insert of the rate limiter.
    pub samples_per_insert: f64,
    /// Smallest number of items at which the table can be sampled.
    pub min_size_to_sample: i64,
    /// Lower bound of the cursor: inserts times `samples_per_insert` minus samples.
    pub min_diff: f64,
    /// Upper bound of the cursor.
    pub max_diff: f64,
}

/// Settings of one part of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TablePart {
    /// Maximum number of items.
    pub max_size: i64,
    /// Maximum memory; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Smallest number of items at which the part can be sampled.
    pub min_size_to_sample: i64,
    /// Lower bound of the cursor.
    pub min_diff: f64,
    /// Upper bound of the cursor.
    pub max_diff: f64,
}

/// Reasons why the parts of a rate limiter are too narrow, with a number that suffices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Narrowness {
    /// Set if inserts and samples of a part would block each other.
    pub error: Option<String>,
    /// Set if a part has little room for requests of several items.
    pub warning: Option<String>,
}

impl TableNumbers {
    /// True if the cursor and its bounds are always whole numbers.
    fn is_exact(&self) -> bool {
        let numbers = [self.samples_per_insert, self.min_diff, self.max_diff];
        numbers.into_iter().all(|it| is_unbounded(it) || it.fract() == 0.0)
    }

    /// True if the limiter alone keeps the table at `max_size`, as for a queue.
    ///
    /// Each item is sampled once and counts 1, so the cursor is the number of items.
    fn is_bounded_by_limiter(&self) -> bool {
        #[allow(clippy::float_cmp, reason = "a queue has exactly this number")]
        let is_one = self.samples_per_insert == 1.0;
        self.max_times_sampled == 1 && is_one && self.max_diff <= self.max_size as f64
    }

    /// The part of shard `index` of `num_shards`.
    ///
    /// * `max_size` is divided, rounded up. A table that its limiter keeps from being full, such as
    ///   a queue, keeps its `max_size`, because the limiter may give one shard more room than
    ///   another.
    /// * `max_bytes` is divided, rounded down.
    /// * The parts of `min_size_to_sample` add up to it; each is at least 1.
    /// * The bounds of the parts add up to the bounds of the table. Each part has the same room
    ///   around its cursor at `min_size_to_sample` without samples. If the cursor is always a whole
    ///   number, so are the bounds.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `max_bytes` is less than one byte for each part.
    pub fn part(&self, index: usize, num_shards: usize) -> Result<TablePart> {
        let shards = num_shards.max(1) as i64;
        let max_size = match self.max_size {
            size if size < 1 || self.is_bounded_by_limiter() => size,
            size => (size - 1) / shards + 1,
        };
        let max_bytes = match self.max_bytes {
            Some(bytes) if bytes < shards as u64 => {
                return Err(Error::invalid_argument(format!(
                    "max_bytes of table {} must be at least {shards}, a byte for each shard, got \
                     {bytes}",
                    self.name
                )));
            }
            bytes => bytes.map(|it| it / shards as u64),
        };
        let limits = self.limits(num_shards.max(1));
        let limits = limits.into_iter().nth(index).unwrap_or_default();
        Ok(TablePart {
            max_size,
            max_bytes,
            min_size_to_sample: limits.min_size,
            min_diff: limits.low,
            max_diff: limits.high,
        })
    }

    /// Checks that the parts of the rate limiter are wide enough.
    pub fn narrowness(&self, num_shards: usize) -> Narrowness {
        if num_shards <= 1 || is_unbounded(self.min_diff) || is_unbounded(self.max_diff) {
            return Narrowness::default();
        }
        let spi = self.samples_per_insert;
        // One insert and one sample must fit. Whole numbers allow them to share the last step.
        let step = f64::max(1.0, if self.is_exact() { spi } else { spi + 1.0 });
        let wanted = 2.0 * f64::max(1.0, spi);
        let room = self.max_diff - self.min_diff;
        let parts = self.limits(num_shards);
        let least = parts.iter().map(|it| it.high - it.low).fold(f64::INFINITY, f64::min);
        let shards = num_shards as f64;
        let text = format!(
            "the rate limiter of table {} is too fine for {num_shards} shards: it lets inserts * \
             samples_per_insert - samples move by {} (max_diff - min_diff), {} in each shard",
            self.name,
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

    fn limits(&self, num_shards: usize) -> Vec<Limits> {
        let min_sizes: Vec<i64> = whole_parts(i128::from(self.min_size_to_sample), num_shards)
            .map(|it| (it as i64).max(1))
            .collect();
        let low = at_least(self.bounds(self.min_diff, &min_sizes), self.min_diff);
        let high = at_most(self.bounds(self.max_diff, &min_sizes), self.max_diff);
        let bounds = low.into_iter().zip(high);
        let limits = min_sizes.into_iter().zip(bounds);
        limits.map(|(min_size, (low, high))| Limits { min_size, low, high }).collect()
    }

    /// Divides a bound into parts that add up to it, except for rounding.
    fn bounds(&self, bound: f64, min_sizes: &[i64]) -> Vec<f64> {
        if is_unbounded(bound) {
            return vec![bound; min_sizes.len()];
        }
        // Cursors at which each shard has its minimum of items and no samples. A table with a
        // smaller minimum than shards has none.
        let is_in_all = min_sizes.iter().sum::<i64>() == self.min_size_to_sample;
        let spi = if is_in_all { self.samples_per_insert } else { 0.0 };
        let cursors: Vec<f64> = min_sizes.iter().map(|&it| spi * it as f64).collect();
        let rest = bound - exact_sum(cursors.iter().copied());
        let mut parts = vec![rest / min_sizes.len() as f64; min_sizes.len()];
        if self.is_exact() {
            // Parts with more items get less of the rest.
            parts = whole_parts(rest as i128, min_sizes.len()).map(|it| it as f64).collect();
            parts.reverse();
        }
        cursors.into_iter().zip(parts).map(|(cursor, part)| cursor + part).collect()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    min_size: i64,
    low: f64,
    high: f64,
}

fn is_unbounded(bound: f64) -> bool {
    bound.abs() >= f64::MAX
}

/// Whole numbers that add up to the total and differ by at most 1.
fn whole_parts(total: i128, count: usize) -> impl Iterator<Item = i128> {
    let shards = count as i128;
    let (part, rest) = (total.div_euclid(shards), total.rem_euclid(shards));
    (0..shards).map(move |index| part + i128::from(index < rest))
}

/// Corrects rounding: the sum of the parts is not below the total.
fn at_least(parts: Vec<f64>, total: f64) -> Vec<f64> {
    let negated = parts.into_iter().map(|it| -it).collect();
    at_most(negated, -total).into_iter().map(|it| -it).collect()
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

    use super::*;

    fn numbers(
        max_size: i64,
        spi: f64,
        min_size: i64,
        min_diff: f64,
        max_diff: f64,
    ) -> TableNumbers {
        TableNumbers {
            name: "t".to_owned(),
            max_size,
            max_bytes: None,
            max_times_sampled: 0,
            samples_per_insert: spi,
            min_size_to_sample: min_size,
            min_diff,
            max_diff,
        }
    }

    proptest! {
        #[test]
        fn the_bounds_of_the_parts_never_add_up_to_more_room(
            spi in 0.01..50.0_f64, min_size in 1..1_000_i64, error in 0.0..1e6_f64,
            num_shards in 1..300_usize,
        ) {
            let middle = spi * min_size as f64;
            let whole = numbers(10, spi, min_size, middle - error, middle + error);
            let parts = whole.limits(num_shards);
            let lows = parts.iter().map(|it| it.low).chain([-whole.min_diff]);
            let highs = parts.iter().map(|it| it.high).chain([-whole.max_diff]);
            let (low, high) = (exact_sum(lows), exact_sum(highs));
            prop_assert!(low >= 0.0 && low < 1e-6 * (1.0 + error), "{low}");
            prop_assert!(high <= 0.0 && high > -1e-6 * (1.0 + error), "{high}");
            prop_assert!(parts.iter().all(|it| it.low <= it.high));
        }

        #[test]
        fn an_exact_sum_has_the_right_sign(
            numbers in prop::collection::vec(-1e18..1e18_f64, 1..30), tiny in -1e-18..1e-18_f64,
        ) {
            let mut all = numbers.clone();
            all.push(tiny);
            all.extend(numbers.iter().rev().map(|it| -it));
            prop_assert_eq!(exact_sum(all.into_iter()).total_cmp(&tiny), Ordering::Equal);
        }
    }

    #[test]
    fn a_queue_keeps_its_size() {
        let queue = TableNumbers { max_times_sampled: 1, ..numbers(10, 1.0, 1, 0.0, 10.0) };
        let parts: Vec<_> = (0..4).map(|index| queue.part(index, 4).unwrap()).collect();
        assert!(parts.iter().all(|it| it.max_size == 10));
        let highs: Vec<_> = parts.iter().map(|it| it.max_diff).collect();
        assert_eq!(highs, [2.0, 2.0, 3.0, 3.0]);
    }
}
