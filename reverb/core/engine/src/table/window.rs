// SPDX-License-Identifier: Apache-2.0
//! The part of the bounds of a group of servers that one of them keeps.

use reverb_data::{Error, Result};

use super::clock::Activity;
use super::{Table, Watched};

/// The bounds that were in force before a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowBefore {
    /// The smallest cursor after a sample.
    pub min_diff: f64,
    /// The largest cursor after an insert.
    pub max_diff: f64,
    /// The items from which on the table let itself be sampled.
    pub min_size_to_sample: i64,
}

impl Table {
    /// Keeps the cursor of the rate limiter between other bounds than those of the settings. They
    /// are as near to these as the cursor allows: it is between them afterwards. The settings, and
    /// what a snapshot has, do not change. Returns the table with what is in force, and the bounds
    /// that were in force before.
    ///
    /// `term` says who asks: of two coordinators, the later one has the larger number.
    ///
    /// With a window no insert is free: the table takes no item that would bring the cursor above
    /// `max_diff`, however few it has. A reset leaves the window where it is. Other numbers of the
    /// rate limiter close it: it begins and ends at the cursor then.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a bound that is no number, and for a `min_size_to_sample` below 1.
    /// `FailedPrecondition` if the bounds were moved with a larger `term`. `Cancelled` if the table
    /// is closed.
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

    /// Keeps the cursor between the bounds of the settings again. Returns the table with what is in
    /// force.
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
