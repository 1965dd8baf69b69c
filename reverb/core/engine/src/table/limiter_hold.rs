// SPDX-License-Identifier: Apache-2.0
//! Turning a rate limiter off for a while, to fill a table.

use std::sync::Arc;

use reverb_data::{Error, Result};

use super::clock::Activity;
use super::{SetBy, Table};
use crate::rate_limiter::Hold;

/// Keeps a rate limiter off: inserts do not wait for it. Samples wait for it as always. Dropping it
/// turns the limiter on again.
#[derive(Debug)]
pub struct LimiterHold(Arc<Table>);

impl LimiterHold {
    /// Turns the rate limiter of `table` off. If the inserts do not `count`, the ratio goes on as
    /// if they had not happened: the samples that they would have allowed count as taken.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` that names the caller for whom it is off already. `Cancelled` if the
    /// table is closed.
    pub fn begin(table: &Arc<Table>, count: bool, by: &SetBy) -> Result<Self> {
        table.operate(Activity::Running, |shared, _| {
            if let Some(other) = &shared.limiter_off {
                return Err(Error::failed_precondition(format!(
                    "The rate limiter of table {} is off already, for {other}. Wait until that \
                     client turns it on again.",
                    table.name()
                )));
            }
            shared.limiter_off = Some(by.clone());
            let hold = if count { Hold::Counted } else { Hold::Neutral };
            shared.state.limiter_mut().hold(hold);
            Ok(())
        })??;
        Ok(Self(Arc::clone(table)))
    }
}

impl Drop for LimiterHold {
    fn drop(&mut self) {
        // A closed table limits nothing any more.
        let _ = self.0.operate(Activity::Running, |shared, _| {
            shared.limiter_off = None;
            shared.state.limiter_mut().release();
        });
    }
}
