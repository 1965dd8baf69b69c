// SPDX-License-Identifier: Apache-2.0
//! The part of the bounds of a group of servers that one of them keeps.

use reverb_data::{Error, Result};

use super::clock::Activity;
use super::{Table, Watched};

impl Table {
    /// Keeps the cursor of the rate limiter between other bounds than those of the settings. They
    /// are as near to these as the cursor allows: it is between them afterwards. The settings, and
    /// what a snapshot has, do not change. Returns the table with what is in force.
    ///
    /// With a window no insert is free: the table takes no item that would bring the cursor above
    /// `max_diff`, however few it has. A reset leaves the window where it is. Other numbers of the
    /// rate limiter close it: it begins and ends at the cursor then.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a bound that is no number, and for a `min_size_to_sample` below 1.
    /// `Cancelled` if the table is closed.
    pub fn set_window(
        &self,
        min_diff: f64,
        max_diff: f64,
        min_size_to_sample: i64,
    ) -> Result<Watched> {
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
                shared.state.limiter_mut().set_window(min_diff, max_diff, min_size_to_sample);
            },
            |shared, _, ()| shared.watched(),
        )
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
