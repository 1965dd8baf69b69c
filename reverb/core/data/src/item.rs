// SPDX-License-Identifier: Apache-2.0
//! Items: on their way into a table, as they were picked from one, and as a checkpoint keeps them.

use std::sync::Arc;

use crate::trajectory::Trajectory;

/// An item on its way into a table.
#[derive(Debug, Clone)]
pub struct NewItem {
    /// Random key, unique within the table.
    pub key: u64,
    /// Name of the table.
    pub table: Arc<str>,
    /// Initial priority.
    pub priority: f64,
    /// Times it counts as sampled already; 0 from every known writer.
    pub times_sampled: i32,
    /// Its columns.
    pub trajectory: Trajectory,
}

/// An item as it was picked from a table, or looked at by a scan.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// Key of the item.
    pub key: u64,
    /// Its priority at that moment.
    pub priority: f64,
    /// How often it was sampled, this time included if it was.
    pub times_sampled: i32,
    /// Probability of picking it; 0 if it was not picked but looked at.
    pub probability: f64,
    /// Items in the table at that moment.
    pub table_size: i64,
    /// Wall time of its insertion, nanoseconds since 1970.
    pub inserted_at_ns: i64,
    /// Whether the request had to wait for the rate limiter before this item.
    pub rate_limited: bool,
    /// Its columns.
    pub trajectory: Trajectory,
}

/// An item of a table as a checkpoint keeps it.
#[derive(Debug, Clone)]
pub struct StoredItem {
    /// Key of the item.
    pub key: u64,
    /// Its priority.
    pub priority: f64,
    /// How often it was sampled.
    pub times_sampled: i32,
    /// Wall time of its insertion, nanoseconds since 1970.
    pub inserted_at_ns: i64,
    /// Its columns.
    pub trajectory: Trajectory,
}

impl StoredItem {
    /// The item as a reader gets it who looks at all items of a table and draws none.
    pub fn looked_at(self, table_size: i64) -> Sampled {
        Sampled {
            key: self.key,
            priority: self.priority,
            times_sampled: self.times_sampled,
            probability: 0.0,
            table_size,
            inserted_at_ns: self.inserted_at_ns,
            rate_limited: false,
            trajectory: self.trajectory,
        }
    }
}
