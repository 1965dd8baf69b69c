// SPDX-License-Identifier: Apache-2.0
//! Since when replaced items are in the table, as readers see it that had begun before.
//!
//! A scan recognises the items that it reads by the time of their insertion, and a replacement is a
//! new item. Its key was there all the time, though, so a scan must find it. While scans are open,
//! the table therefore keeps the time at which the first item with that key came.

use std::sync::Arc;

use hashbrown::HashMap;

use super::items::Item;

/// Lives as long as a scan does.
pub(super) type OpenScan = Arc<()>;

/// Times at which the keys of replaced items came, while there are scans.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    scans: OpenScan,
    since_ns: HashMap<u64, i64>,
}

impl Replaced {
    /// Keeps the times of what is replaced from now on, until this is dropped.
    pub(super) fn begin_scan(&self) -> OpenScan {
        Arc::clone(&self.scans)
    }

    /// When the first item with this key came, whatever has replaced it since.
    pub(super) fn since_ns(&self, item: &Item) -> i64 {
        let replaced = (!self.since_ns.is_empty()).then(|| self.since_ns.get(&item.key()).copied());
        replaced.flatten().unwrap_or_else(|| item.inserted_at_ns())
    }

    /// An item has taken the place of one whose key came at this time.
    pub(super) fn note(&mut self, key: u64, since_ns: i64) {
        if Arc::strong_count(&self.scans) > 1 {
            self.since_ns.insert(key, since_ns);
        } else if !self.since_ns.is_empty() {
            self.since_ns = HashMap::new();
        }
    }

    /// A key has left the table.
    pub(super) fn forget(&mut self, key: u64) {
        if !self.since_ns.is_empty() {
            self.since_ns.remove(&key);
        }
    }
}
