// SPDX-License-Identifier: Apache-2.0
//! Window: the part of a group's bounds that one server keeps.

use reverb_base::{Error, Result};

use super::clock::Activity;
use super::{Table, Watched};

/// Bounds that were in force before a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowBefore {
    /// Smallest cursor after a sample.
    pub min_diff: f64,
    /// Largest cursor after an insert.
    pub max_diff: f64,
    /// Smallest number of items at which the table could be sampled.
    pub min_size_to_sample: i64,
}

impl Table {
    /// Replaces the bounds of the rate limiter. The window is as close to the given bounds as the
    /// cursor allows, which is within it afterwards. The settings, also in snapshots, do not
    /// change. Returns the numbers in force, and the bounds before.
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
    ) -> Result<(Watched, WindowBefore)> {
        for (name, bound) in [("min_diff", min_diff), ("max_diff", max_diff)] {
            if bound.is_nan() {
                return Err(Error::invalid_argument(format!("{name} must be a number, got NaN.")));
            }
        }
        if min_size_to_sample < 1 {
            return Err(Error::invalid_argument(format!(
                "min_size_to_sample must be at least 1, got {min_size_to_sample}."
            )));
        }
        self.operate_and(
            Activity::Running,
            |shared, _| {
                let limiter = shared.state.limiter_mut();
                let bounds = limiter.bounds();
                let before = WindowBefore {
                    min_diff: bounds.min_diff,
                    max_diff: bounds.max_diff,
                    min_size_to_sample: bounds.min_size_to_sample,
                };
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
