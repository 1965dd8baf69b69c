// SPDX-License-Identifier: Apache-2.0
//! Rate limiter: decides when a table allows an insert or a sample.

use std::fmt;

use reverb_base::figures::Bound;
use reverb_data::RateLimiterConfig;

/// Counters of one table, and the inequalities over them. Decides, and never waits.
///
/// While the limiter is held, inserts need no permission. With `Hold::Neutral`, the ratio then
/// continues as if these inserts had not happened.
///
/// A window replaces the bounds of the settings. It is one shard's part of the bounds of a whole
/// group, so it is stricter: no insert is free, because each shard would have free inserts of its
/// own.
#[derive(Debug, Clone)]
pub(crate) struct RateLimiter {
    config: RateLimiterConfig,
    /// The settings, with the bounds of the window if there is one.
    in_force: RateLimiterConfig,
    has_window: bool,
    /// Term of the coordinator that moved the window last.
    term: i64,
    inserts: i64,
    samples: i64,
    deletes: i64,
    hold: Option<Hold>,
    /// Inserts that the ratio ignores; 0 unless the limiter is held.
    neutral_inserts: i64,
    /// Rounding error when the samples of neutral inserts were counted.
    remainder: f64,
}

/// Treatment of inserts while the limiter is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Counted as usual.
    Counted,
    /// Ignored by the ratio.
    Neutral,
}

impl RateLimiter {
    pub(crate) fn new(config: RateLimiterConfig) -> Self {
        Self::with_counters(config, 0, 0, 0)
    }

    /// Makes a limiter with given counters.
    pub(crate) fn with_counters(
        config: RateLimiterConfig,
        inserts: i64,
        samples: i64,
        deletes: i64,
    ) -> Self {
        Self {
            config,
            in_force: config,
            has_window: false,
            term: 0,
            inserts,
            samples,
            deletes,
            hold: None,
            neutral_inserts: 0,
            remainder: 0.0,
        }
    }

    pub(crate) fn config(&self) -> &RateLimiterConfig {
        &self.config
    }

    /// The settings with the bounds in force.
    pub(crate) fn bounds(&self) -> &RateLimiterConfig {
        &self.in_force
    }

    /// The bounds of the window, if there is one.
    pub(crate) fn window(&self) -> Option<&RateLimiterConfig> {
        self.has_window.then_some(&self.in_force)
    }

    /// Sets a window. Its bounds are as close to the given ones as the cursor allows, which is
    /// within them afterwards.
    ///
    /// # Errors
    ///
    /// The last term, if it is larger than this one; then nothing changes.
    pub(crate) fn set_window(
        &mut self,
        min_diff: f64,
        max_diff: f64,
        min_size_to_sample: i64,
        term: i64,
    ) -> Result<(), i64> {
        if term < self.term {
            return Err(self.term);
        }
        self.term = term;
        self.move_window(min_diff, max_diff, min_size_to_sample);
        Ok(())
    }

    fn move_window(&mut self, min_diff: f64, max_diff: f64, min_size_to_sample: i64) {
        let cursor = self.cursor();
        let min_diff = min_diff.min(cursor);
        let max_diff = max_diff.max(cursor);
        self.has_window = true;
        self.in_force = RateLimiterConfig { min_diff, max_diff, min_size_to_sample, ..self.config };
    }

    /// Returns to the bounds of the settings.
    pub(crate) fn clear_window(&mut self) {
        self.has_window = false;
        self.in_force = self.config;
    }

    pub(crate) fn inserts(&self) -> i64 {
        self.inserts
    }

    /// Samples, including those that neutral inserts would have allowed.
    pub(crate) fn samples(&self) -> i64 {
        self.samples + self.neutral_samples()
    }

    fn neutral_samples(&self) -> i64 {
        if self.neutral_inserts == 0 { 0 } else { self.exact_neutral_samples().round() as i64 }
    }

    fn exact_neutral_samples(&self) -> f64 {
        self.neutral_inserts as f64 * self.config.samples_per_insert + self.remainder
    }

    pub(crate) fn deletes(&self) -> i64 {
        self.deletes
    }

    pub(crate) fn count_insert(&mut self) {
        self.inserts += 1;
        self.neutral_inserts += i64::from(self.hold == Some(Hold::Neutral));
    }

    pub(crate) fn count_sample(&mut self) {
        self.samples += 1;
    }

    /// Takes a counted sample back: its item returns.
    pub(crate) fn uncount_sample(&mut self) {
        self.samples -= 1;
    }

    /// Counts an item that came without an insert as one delete less, or else as a neutral insert.
    /// So inserts minus deletes is the number of items, and the cursor does not move.
    pub(crate) fn count_transfer(&mut self) {
        if self.deletes > 0 {
            self.deletes -= 1;
            return;
        }
        self.inserts += 1;
        self.neutral_inserts += 1;
        if self.hold != Some(Hold::Neutral) {
            self.count_neutral_samples();
        }
    }

    pub(crate) fn count_delete(&mut self) {
        self.deletes += 1;
    }

    /// Sets all counters to zero. A window stays, because the sum of a group's windows does not
    /// depend on the cursors.
    pub(crate) fn reset(&mut self) {
        let Self { in_force, has_window, term, hold, .. } = *self;
        *self = Self { in_force, has_window, term, hold, ..Self::new(self.config) };
    }

    /// Allows all inserts from now on.
    pub(crate) fn hold(&mut self, hold: Hold) {
        self.hold = Some(hold);
    }

    /// Limits inserts again. The samples that neutral inserts would have allowed count as taken.
    pub(crate) fn release(&mut self) {
        self.hold = None;
        self.count_neutral_samples();
    }

    fn count_neutral_samples(&mut self) {
        let exact = self.exact_neutral_samples();
        let counted = self.neutral_samples();
        self.samples += counted;
        self.remainder = exact - counted as f64;
        self.neutral_inserts = 0;
    }

    /// Changes the numbers of the limiter.
    ///
    /// They apply from now on, not to earlier inserts: the cursor keeps its distance from
    /// `min_diff`, if there is one. With another `samples_per_insert`, or if there was no ratio, it
    /// also moves within the new bounds.
    ///
    /// The window was a part of the old numbers, and the cursor may have moved. So the window
    /// closes around the cursor, or ends if there are no bounds.
    pub(crate) fn configure(&mut self, config: RateLimiterConfig) {
        self.count_neutral_samples();
        self.remainder = 0.0;
        let mut cursor = self.cursor();
        let old = std::mem::replace(&mut self.config, config);
        if old.has_min() && config.has_min() {
            cursor += config.min_diff - old.min_diff;
        }
        #[expect(clippy::float_cmp, reason = "the same ratio is the same number")]
        let is_same_ratio = old.samples_per_insert == config.samples_per_insert;
        let kept_none = !old.has_min() && !old.has_max();
        if !is_same_ratio || kept_none {
            cursor = cursor.max(config.min_diff).min(config.max_diff);
        }
        self.move_to(cursor);
        if self.has_window && (config.has_min() || config.has_max()) {
            let cursor = self.cursor();
            self.move_window(cursor, cursor, self.in_force.min_size_to_sample);
        } else {
            self.clear_window();
        }
    }

    /// Counts impossible samples as taken: the items allow only `left` more.
    pub(crate) fn limit_to(&mut self, left: i64) {
        let highest = self.in_force.min_diff + left as f64;
        if self.in_force.has_min() && self.cursor() > highest {
            self.move_to(highest);
        }
    }

    fn move_to(&mut self, cursor: f64) {
        let inserts = self.inserts - self.neutral_inserts;
        let allowed = inserts as f64 * self.config.samples_per_insert;
        self.samples = (allowed - cursor).round().max(0.0) as i64;
    }

    /// True if `n` more samples are allowed now.
    pub(crate) fn can_sample(&self, n: i64) -> bool {
        self.size() >= self.in_force.min_size_to_sample
            && self.cursor() - n as f64 >= self.in_force.min_diff
    }

    /// True if `n` more inserts are allowed now.
    ///
    /// Without a window, inserts up to the minimum size are always allowed, because sampling starts
    /// there.
    pub(crate) fn can_insert(&self, n: i64) -> bool {
        let inserts = self.inserts.saturating_add(n);
        let counted = inserts.saturating_sub(self.neutral_inserts);
        let is_free = inserts.saturating_sub(self.deletes) <= self.config.min_size_to_sample;
        (is_free && !self.has_window)
            || counted as f64 * self.config.samples_per_insert - self.samples as f64
                <= self.in_force.max_diff
            || self.hold.is_some()
    }

    /// Number of consecutive samples that are allowed now, at most `wanted`.
    pub(crate) fn samples_allowed(&self, wanted: usize) -> usize {
        let mut ahead = self.clone();
        for allowed in 0..wanted {
            if !ahead.can_sample(1) {
                return allowed;
            }
            ahead.count_sample();
        }
        wanted
    }

    /// Largest number of samples that can ever be allowed at once; `None` if unlimited.
    pub(crate) fn most_samples_at_once(&self) -> Option<i64> {
        let RateLimiterConfig { min_diff, max_diff, min_size_to_sample, samples_per_insert } =
            self.in_force;
        if !self.in_force.has_min() || !self.in_force.has_max() || self.hold.is_some() {
            return None;
        }
        // Inserts up to the minimum size need no permission.
        let highest = max_diff.max(min_size_to_sample as f64 * samples_per_insert);
        Some((highest.max(self.cursor()) - min_diff).floor() as i64)
    }

    /// Number of items.
    pub(crate) fn size(&self) -> i64 {
        self.inserts - self.deletes
    }

    /// Inserts times `samples_per_insert` minus samples.
    pub(crate) fn cursor(&self) -> f64 {
        let inserts = self.inserts - self.neutral_inserts;
        inserts as f64 * self.config.samples_per_insert - self.samples as f64
    }

    /// Number of inserts that the next sample needs; 0 if it is allowed now.
    pub(crate) fn missing_inserts(&self) -> f64 {
        self.in_force.missing_inserts(self.size(), self.cursor())
    }

    /// Number of samples that the next insert needs; 0 if it is allowed now.
    pub(crate) fn missing_samples(&self) -> f64 {
        // With a window no insert is free, even below the minimum size.
        let size = if self.has_window { i64::MAX } else { self.size() };
        self.in_force.missing_samples(size, self.cursor())
    }
}

impl fmt::Display for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.in_force;
        write!(
            f,
            "{} item(s), min_size_to_sample {}, {} insert(s), {} sample(s), {} delete(s), \
             samples_per_insert {}, inserts * samples_per_insert - samples = {}, min_diff {}, \
             max_diff {}",
            self.size(),
            config.min_size_to_sample,
            self.inserts,
            self.samples,
            self.deletes,
            config.samples_per_insert,
            self.cursor(),
            Bound(config.min_diff),
            Bound(config.max_diff),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(spi: f64, min_size: i64, min_diff: f64, max_diff: f64) -> RateLimiter {
        let config = RateLimiterConfig {
            samples_per_insert: spi,
            min_size_to_sample: min_size,
            min_diff,
            max_diff,
        };
        config.validate().unwrap();
        RateLimiter::new(config)
    }

    #[test]
    fn ratio_two_to_one_with_a_buffer_of_four() {
        // SampleToInsertRatio(2.0, 3, 4.0)
        let mut limiter = limiter(2.0, 3, 2.0, 10.0);
        let mut inserts = 0;
        while limiter.can_insert(1) {
            limiter.count_insert();
            inserts += 1;
        }
        assert_eq!(inserts, 5);
        assert_eq!(limiter.samples_allowed(100), 8);
        assert_eq!(limiter.samples_allowed(3), 3);
        let mut samples = 0;
        while limiter.can_sample(1) {
            limiter.count_sample();
            samples += 1;
        }
        assert_eq!(samples, 8);
        let can_insert: Vec<bool> = (1..=5).map(|n| limiter.can_insert(n)).collect();
        assert_eq!(can_insert, [true, true, true, true, false]);
        assert!(!limiter.can_sample(1) && !limiter.can_sample(2));
    }

    #[test]
    fn a_full_queue_of_five() {
        let mut limiter = limiter(1.0, 1, 0.0, 5.0);
        (0..5).for_each(|_| limiter.count_insert());
        assert!(!limiter.can_insert(1));
        assert!(limiter.can_sample(5) && !limiter.can_sample(6));
    }

    #[test]
    fn inserts_are_free_again_once_deletes_bring_the_size_below_the_minimum() {
        let mut limiter = limiter(1.0, 1, 0.0, 2.0);
        (0..2).for_each(|_| limiter.count_insert());
        assert!(!limiter.can_insert(1));
        (0..2).for_each(|_| limiter.count_delete());
        assert!(limiter.can_insert(1) && !limiter.can_insert(2));
    }

    #[test]
    fn neutral_inserts_leave_the_ratio_as_it_was() {
        let mut limiter = limiter(2.5, 3, 2.0, 10.0);
        (0..4).for_each(|_| limiter.count_insert());
        (0..3).for_each(|_| limiter.count_sample());
        let before = limiter.cursor();
        limiter.hold(Hold::Neutral);
        for _ in 0..1001 {
            assert!(limiter.can_insert(1));
            limiter.count_insert();
        }
        assert_eq!(limiter.cursor(), before);
        // Same as dm-reverb's clients and checkpoints.
        assert_eq!(limiter.samples(), 3 + 2503);
        limiter.count_sample();
        limiter.release();
        assert_eq!((limiter.inserts(), limiter.samples()), (1005, 4 + 2503));
        // 1001 * 2.5 = 2502.5 samples were rounded.
        assert_eq!(limiter.cursor(), before - 1.0 - 0.5);
        assert_eq!(limiter.samples_allowed(100), 3);
    }

    #[test]
    fn what_is_rounded_off_does_not_add_up() {
        let mut limiter = limiter(0.3, 1, -5.0, 5.0);
        for _ in 0..1000 {
            limiter.hold(Hold::Neutral);
            limiter.count_insert();
            limiter.release();
        }
        assert!(limiter.cursor().abs() <= 0.5, "{}", limiter.cursor());
    }

    #[test]
    fn samples_that_nobody_can_take_are_counted() {
        let mut limiter = limiter(1.0, 1, 0.0, 50.0);
        (0..100).for_each(|_| limiter.count_insert());
        (0..50).for_each(|_| limiter.count_delete());
        limiter.limit_to(50);
        assert_eq!((limiter.cursor(), limiter.samples()), (50.0, 50));
        limiter.limit_to(60);
        assert_eq!(limiter.cursor(), 50.0);
    }

    #[test]
    fn counted_inserts_are_free_and_owed_afterwards() {
        let mut limiter = limiter(1.0, 1, 0.0, 5.0);
        limiter.hold(Hold::Counted);
        for _ in 0..8 {
            assert!(limiter.can_insert(1));
            limiter.count_insert();
        }
        limiter.release();
        assert!(!limiter.can_insert(1));
        (0..4).for_each(|_| limiter.count_sample());
        assert!(limiter.can_insert(1));
    }

    #[test]
    fn a_reset_does_not_end_a_hold() {
        let mut limiter = limiter(1.0, 1, 0.0, 2.0);
        limiter.hold(Hold::Neutral);
        (0..5).for_each(|_| limiter.count_insert());
        limiter.reset();
        assert_eq!((limiter.samples(), limiter.cursor()), (0, 0.0));
        assert!(limiter.can_insert(100));
        limiter.release();
        assert!(!limiter.can_insert(3));
    }

    #[test]
    fn another_ratio_holds_from_now_on() {
        // SampleToInsertRatio(4.0, 10, 5.0)
        let mut limiter = limiter(4.0, 10, 35.0, 45.0);
        (0..1000).for_each(|_| limiter.count_insert());
        (0..3960).for_each(|_| limiter.count_sample());
        assert_eq!(limiter.cursor(), 40.0);
        let config = |samples_per_insert, min_diff, max_diff| RateLimiterConfig {
            samples_per_insert,
            min_size_to_sample: 10,
            min_diff,
            max_diff,
        };
        // SampleToInsertRatio(8.0, 10, 10.0)
        limiter.configure(config(8.0, 70.0, 90.0));
        assert_eq!(limiter.cursor(), 75.0);
        assert_eq!(limiter.samples_allowed(100), 5);
        limiter.count_insert();
        assert_eq!(limiter.samples_allowed(100), 13);
        // SampleToInsertRatio(8.0, 20, 10.0) allows as many samples as before.
        limiter.configure(config(8.0, 150.0, 170.0));
        assert_eq!((limiter.cursor(), limiter.samples_allowed(100)), (163.0, 13));
        // The same ratio with narrower bounds: the cursor stays.
        limiter.configure(config(8.0, 150.0, 160.0));
        assert_eq!(limiter.cursor(), 163.0);
        assert!(!limiter.can_insert(1));
        // No bounds, and bounds again after 1000 samples that were not counted.
        limiter.configure(config(8.0, -f64::MAX, f64::MAX));
        (0..1000).for_each(|_| limiter.count_sample());
        limiter.configure(config(8.0, 70.0, 90.0));
        assert_eq!(limiter.cursor(), 70.0, "the nearest bound");
        // An empty table has no samples to take back.
        let mut empty = RateLimiter::new(config(4.0, 35.0, 45.0));
        empty.configure(config(8.0, 70.0, 90.0));
        assert_eq!((empty.samples(), empty.cursor()), (0, 0.0));
    }

    #[test]
    fn huge_requests_do_not_overflow() {
        let mut limiter = limiter(1.0, 1, -f64::MAX, f64::MAX);
        limiter.count_insert();
        assert!(limiter.can_insert(i64::MAX) && limiter.can_sample(i64::MAX));
    }

    #[test]
    fn bad_numbers_are_named() {
        let good = RateLimiterConfig {
            samples_per_insert: 1.0,
            min_size_to_sample: 1,
            min_diff: 0.0,
            max_diff: 1.0,
        };
        let text = |config: RateLimiterConfig| config.validate().unwrap_err().message().to_owned();
        assert_eq!(
            text(RateLimiterConfig { samples_per_insert: 0.0, ..good }),
            "samples_per_insert must be finite and greater than 0, got 0."
        );
        assert_eq!(
            text(RateLimiterConfig { samples_per_insert: f64::NAN, ..good }),
            "samples_per_insert must be finite and greater than 0, got NaN."
        );
        assert_eq!(
            text(RateLimiterConfig { min_size_to_sample: 0, ..good }),
            "min_size_to_sample must be at least 1, got 0."
        );
        assert_eq!(
            text(RateLimiterConfig { min_diff: f64::NAN, ..good }),
            "min_diff must be a number, got NaN."
        );
        assert_eq!(
            text(RateLimiterConfig { max_diff: f64::NAN, ..good }),
            "max_diff must be a number, got NaN."
        );
    }
}
