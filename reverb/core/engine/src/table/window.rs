// SPDX-License-Identifier: Apache-2.0
//! Window: the part of a group's bounds that one server keeps.

use reverb_base::{Error, Result};
use reverb_data::RateLimiterConfig;

use super::clock::Activity;
use super::{Table, Watched};

impl Table {
    /// Replaces the bounds of the rate limiter. The window is as close to the given bounds as the
    /// cursor allows, which is within it afterwards. The settings, also in snapshots, do not
    /// change. Returns the numbers in force, and those before.
    ///
    /// `term` is the coordinator's: a later coordinator has a larger one.
    ///
    /// With a window no insert is free: the table takes no item that would bring the cursor above
    /// `max_diff`, even below the minimum size. A reset keeps the window. A change of the rate
    /// limiter's settings closes it around the cursor.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a bound that is NaN, and for a `min_size_to_sample` below 1.
    /// `FailedPrecondition` if a larger `term` has moved the bounds. `Cancelled` if the table is
    /// closed.
    pub fn set_window(
        &self,
        min_diff: f64,
        max_diff: f64,
        min_size_to_sample: i64,
        term: i64,
    ) -> Result<(Watched, Watched)> {
        let bounds = RateLimiterConfig {
            min_diff,
            max_diff,
            min_size_to_sample,
            ..self.config().rate_limiter
        };
        bounds.validate()?;
        self.operate_and(
            Activity::Running,
            |shared, _| {
                let before = shared.watched();
                let limiter = shared.state.limiter_mut();
                limiter.set_window(min_diff, max_diff, min_size_to_sample, term).map(|()| before)
            },
            |shared, _, before| before.map(|before| (shared.watched(), before)),
        )?
        .map_err(|last| {
            Error::failed_precondition(format!(
                "The bounds of table {} were moved by a later coordinator (term {last}) than this \
                 one (term {term}).",
                self.name()
            ))
        })
    }

    /// Returns to the bounds of the settings. Returns the numbers in force.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn clear_window(&self) -> Result<Watched> {
        self.operate_and(
            Activity::Running,
            |shared, _| shared.state.limiter_mut().clear_window(),
            |shared, _, ()| shared.watched(),
        )
    }
}
