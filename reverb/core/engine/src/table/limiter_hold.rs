// SPDX-License-Identifier: Apache-2.0
//! Hold: a rate limiter is off for a while, to fill a table.

use std::sync::Arc;

use reverb_base::{Error, Result};

use super::clock::Activity;
use super::{ChangedBy, Table};
use crate::rate_limiter::Hold;

/// Keeps a rate limiter off until dropped: inserts are not limited, samples are.
#[derive(Debug)]
pub struct LimiterHold(Arc<Table>);

impl LimiterHold {
    /// Turns the rate limiter of `table` off. Without `count`, the ratio continues as if the
    /// inserts had not happened: the samples that they would have allowed count as taken.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` with the caller that holds it already. `Cancelled` if the table is
    /// closed.
    pub fn begin(table: &Arc<Table>, count: bool, by: &ChangedBy) -> Result<Self> {
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
        // A closed table has no limiter in use.
        let _ = self.0.operate(Activity::Running, |shared, _| {
            shared.limiter_off = None;
            shared.state.limiter_mut().release();
        });
    }
}
