// SPDX-License-Identifier: Apache-2.0
//! Window mass: how many windows of one length the items of a shard have, as far as reported.

use reverb_base::{Error, ErrorKind};
use reverb_data::{GroupSampling, Sampled, StepWindow};

use crate::table_stats::Stats;

/// Knowledge about one window at one shard. A request for another window begins anew.
#[derive(Debug, Clone)]
pub(super) struct WindowMass {
    window: StepWindow,
    known: Known,
}

#[derive(Debug, Clone)]
enum Known {
    Nothing,
    /// The shard has items with the window. For samplers over steps: the windows for each step.
    Some(Option<f64>),
    /// The shard had none when its table had these numbers.
    None(Stats, Error),
}

impl WindowMass {
    /// Nothing is known of this window.
    pub(super) fn of(window: StepWindow) -> Self {
        Self { window, known: Known::Nothing }
    }

    /// True if it is about this window.
    pub(super) fn is_of(&self, window: StepWindow) -> bool {
        self.window == window
    }

    /// True if the shard is known to have the window.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.known, Known::Some(_))
    }

    /// Notes the items that the shard sampled. `stats` are those of its table.
    pub(super) fn sampled(&mut self, samples: &[Sampled], sampling: GroupSampling, stats: &Stats) {
        let Some(last) = samples.last() else { return };
        // A shard reports the probability of an item of any window: its windows among all.
        let of_all = f64::from(last.window.count) / last.probability;
        let of_step = of_all / stats.mass.unwrap_or(0.0);
        let is_known = sampling == GroupSampling::Steps && of_step.is_finite() && of_step > 0.0;
        self.known = Known::Some(is_known.then_some(of_step));
    }

    /// Notes that the shard has no such window now.
    pub(super) fn is_missing(&mut self, stats: Stats, error: Error) {
        self.known = Known::None(stats, error);
    }

    /// Error of the shard if it has no such window, and its table has not changed since.
    pub(super) fn missing(&self, stats: &Stats) -> Option<&Error> {
        match &self.known {
            Known::None(then, error) if then.has_same_items(stats) => Some(error),
            _ => None,
        }
    }

    /// True if the shard has none, and its table takes no item that has one.
    pub(super) fn is_hopeless(&self, stats: &Stats) -> bool {
        self.missing(stats).is_some_and(|error| error.kind() == ErrorKind::InvalidArgument)
    }

    /// The numbers of the table as far as the window is concerned: its mass is that of the window.
    pub(super) fn apply(&self, stats: Stats) -> Stats {
        match self.known {
            _ if self.missing(&stats).is_some() => Stats { size: 0, mass: Some(0.0), ..stats },
            Known::Some(Some(of_step)) => {
                Stats { mass: stats.mass.map(|steps| steps * of_step), ..stats }
            }
            _ => stats,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: StepWindow =
        StepWindow { length: 5, before: 0, pads_left: false, pads_right: false };

    fn stats(size: i64, mass: f64) -> Stats {
        Stats { size, mass: Some(mass), ..Stats::default() }
    }

    #[test]
    fn a_shard_without_the_window_has_no_mass_until_its_table_changes() {
        let mut known = WindowMass::of(WINDOW);
        assert!(known.is_of(WINDOW) && !known.is_of(StepWindow { length: 6, ..WINDOW }));
        assert_eq!(known.apply(stats(3, 30.0)), stats(3, 30.0));
        known.is_missing(stats(3, 30.0), Error::rate_limiter_timeout("none"));
        assert_eq!(known.apply(stats(3, 30.0)).mass, Some(0.0));
        assert_eq!(known.apply(stats(4, 40.0)), stats(4, 40.0));
        let waits = Stats { sample_waits: true, ..stats(3, 30.0) };
        assert_eq!(known.apply(waits).mass, Some(0.0), "a request that waits changes nothing");
        assert!(!known.is_hopeless(&stats(3, 30.0)));
        known.is_missing(stats(3, 30.0), Error::invalid_argument("never"));
        assert!(known.is_hopeless(&stats(3, 30.0)) && !known.is_hopeless(&stats(4, 30.0)));
    }
}
