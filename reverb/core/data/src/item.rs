// SPDX-License-Identifier: Apache-2.0
//! Items: new ones, sampled ones, and those stored in a checkpoint.

use std::sync::Arc;

use crate::max_priority::ItemPriority;
use crate::rollouts::ItemChange;
use crate::step_window::SampledWindow;
use crate::trajectory::Trajectory;

/// An item to insert into a table.
#[derive(Debug, Clone)]
pub struct NewItem {
    /// Random key, or one of the program's own; unique within the table.
    pub key: u64,
    /// Name of the table.
    pub table: Arc<str>,
    /// Initial priority; [`MAX_PRIORITY`](crate::MAX_PRIORITY) stands for the largest one of the
    /// table.
    pub priority: f64,
    /// Priority for the remover, instead of `priority`.
    pub removal_priority: Option<f64>,
    /// Number of samples that it counts as having; all known writers send 0.
    pub times_sampled: i32,
    /// Its columns.
    pub trajectory: Trajectory,
    /// True if it takes the place of the item that has its key; else that one gets its priority.
    pub replaces: bool,
    /// What the columns are for, in a table with rollouts; `None`: a whole item.
    pub change: Option<Box<ItemChange>>,
}

impl NewItem {
    /// An item that counts as never sampled.
    #[inline]
    pub fn new(
        key: u64,
        table: impl Into<Arc<str>>,
        priority: impl Into<ItemPriority>,
        trajectory: Trajectory,
    ) -> Self {
        let ItemPriority { value, removal } = priority.into();
        Self {
            key,
            table: table.into(),
            priority: value,
            removal_priority: removal,
            times_sampled: 0,
            trajectory,
            replaces: false,
            change: None,
        }
    }
}

/// An item that was sampled from a table or read by a scan.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// Key of the item.
    pub key: u64,
    /// Priority at that time.
    pub priority: f64,
    /// Number of times it was sampled, including this one. A scan does not count.
    pub times_sampled: i32,
    /// Probability with which it was sampled; 0 if it was read by a scan.
    pub probability: f64,
    /// Number of items in the table at that time.
    pub table_size: i64,
    /// Wall time of its insertion, nanoseconds since 1970.
    pub inserted_at_ns: i64,
    /// True if the request had to wait for the rate limiter before this item.
    pub rate_limited: bool,
    /// Smallest probability of the items that could be sampled; 0 if the server does not report it.
    pub min_probability: f64,
    /// Number of complete passes of the sampler over all items before, for samplers with passes; 0
    /// for others.
    pub epoch: i64,
    /// Priority for the remover, instead of `priority`; set only by scans.
    pub removal_priority: Option<f64>,
    /// Window of its steps. The columns are those of the whole item until the window is cut.
    pub window: SampledWindow,
    /// Its columns.
    pub trajectory: Trajectory,
}

/// An item as a checkpoint stores it.
#[derive(Debug, Clone)]
pub struct StoredItem {
    /// Key of the item.
    pub key: u64,
    /// Its priority.
    pub priority: f64,
    /// Priority for the remover, instead of `priority`.
    pub removal_priority: Option<f64>,
    /// Number of times it was sampled.
    pub times_sampled: i32,
    /// Wall time of its insertion, nanoseconds since 1970.
    pub inserted_at_ns: i64,
    /// Its columns.
    pub trajectory: Trajectory,
}

impl StoredItem {
    /// The item as a scan returns it: read, but not sampled.
    pub fn into_scanned(self, table_size: i64) -> Sampled {
        Sampled {
            key: self.key,
            priority: self.priority,
            times_sampled: self.times_sampled,
            probability: 0.0,
            table_size,
            inserted_at_ns: self.inserted_at_ns,
            rate_limited: false,
            min_probability: 0.0,
            epoch: 0,
            removal_priority: self.removal_priority,
            window: SampledWindow::default(),
            trajectory: self.trajectory,
        }
    }
}
