// SPDX-License-Identifier: Apache-2.0
//! Transfer: items that come unchanged from another server.

use reverb_base::{Error, Result, byte_size};
use reverb_data::{StoredItem, WhenFull};

use super::checks::{check_priority, check_removal_priority, check_stored_bytes};
use super::clock::Activity;
use super::{Shared, Table};

/// Number of items that are added under one lock.
const ITEMS_AT_ONCE: usize = 512;

/// Result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transferred {
    /// Number of added items; the remover may have evicted some of them since.
    pub added: i64,
    /// Number of items whose keys the table has; those items stay unchanged.
    pub present: i64,
}

impl Table {
    /// Adds items of another table, with their priorities, numbers of samples and insertion times.
    /// The rate limiter does not limit them, and its cursor does not move. If the table is full,
    /// the remover selects the items to evict; it treats these as the newest.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a priority that a selector of this table does not accept, and for an
    /// item larger than `max_bytes`; no item of the call is added then. `ResourceExhausted` if the
    /// next item has no room and a full table blocks inserts, and `Cancelled` if the table is
    /// closed; earlier items stay.
    pub fn transfer(&self, items: Vec<StoredItem>) -> Result<Transferred> {
        {
            let shared = self.shared.lock();
            if shared.state.rollouts().is_some() {
                return Err(Error::failed_precondition(format!(
                    "Table {} has rollouts, and is on one server: its items cannot be moved.",
                    self.name()
                )));
            }
            for item in &items {
                check_priority(&shared.config, item.key, item.priority)?;
                check_removal_priority(&shared.config, item.key, item.removal_priority)?;
                let config = &shared.config;
                let state = &shared.state;
                let StoredItem { key, trajectory, removal_priority, .. } = item;
                check_stored_bytes(config, state, *key, trajectory, *removal_priority)?;
            }
        }
        let mut done = Transferred::default();
        let mut items = items.into_iter();
        while items.len() > 0 {
            // Refused items are freed after the lock is released.
            let mut some: Vec<_> = items.by_ref().take(ITEMS_AT_ONCE).map(Some).collect();
            self.operate(Activity::Inserting, |shared, _| {
                for item in &mut some {
                    self.transfer_one(shared, item, &mut done)?;
                }
                Ok(())
            })??;
        }
        Ok(done)
    }

    fn transfer_one(
        &self,
        shared: &mut Shared,
        item: &mut Option<StoredItem>,
        done: &mut Transferred,
    ) -> Result<()> {
        let state = &mut shared.state;
        if let Some(found) = item.take_if(|item| state.items().find(item.key).is_none()) {
            let memory = shared.config.memory;
            if memory.when_full == WhenFull::Wait && !state.has_room_for_stored(&found) {
                let error = Error::resource_exhausted(format!(
                    "Table {} has no room for item {}: it holds {} of {} (max_bytes), and \
                     when_full is \"wait\". Raise max_bytes, or transfer fewer items.",
                    self.name(),
                    found.key,
                    byte_size::describe(state.account().bytes()),
                    byte_size::describe(memory.max_bytes.unwrap_or_default()),
                ));
                *item = Some(found);
                return Err(error);
            }
            state.transfer(found);
            done.added += 1;
        } else {
            done.present += 1;
        }
        Ok(())
    }
}
