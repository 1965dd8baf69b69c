// SPDX-License-Identifier: Apache-2.0
//! Group of a server: its shard map, and the calls `Directory` and `SetDirectory`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use reverb_auth::Right;
use reverb_base::ranked::{Rank, Ranked};
use reverb_base::{Error, Result};
use reverb_data::{NUM_SLOTS, ShardIdentity};
use reverb_engine::{ChangedBy, SlotSet, Table, TableChanges};
use reverb_wire::generated::reverb::{
    DirectoryRequest, DirectoryResponse, SetDirectoryRequest, ShardMap, TableFill,
};

use crate::observe::streams::StreamKind;
use crate::service::Service;
use crate::service::blocking::blocking;
use crate::service::caller::Caller;
use crate::service::server::ShardOptions;

/// The server's knowledge of its group.
#[derive(Debug)]
pub(crate) struct Group {
    membership: Mutex<Option<Arc<Membership>>>,
    /// Epoch of the map; 0 without a map.
    epoch: AtomicI64,
    /// Locked while tables are updated to a new map, so that maps are applied one after another.
    changing: Ranked<()>,
}

/// A map, and the index of the server in it.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) map: ShardMap,
    pub(crate) index: i32,
    /// True if the server made the map from its own options. Any other map replaces it.
    is_own: bool,
    /// True if it is of a group that runs, which gives the server its real place.
    is_provisional: bool,
}

impl Default for Group {
    fn default() -> Self {
        let changing = Ranked::new(Rank::ShardMap, ());
        Self { membership: Mutex::default(), epoch: AtomicI64::default(), changing }
    }
}

impl Group {
    /// Epoch of the map; 0 without a map.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn membership(&self) -> Option<Arc<Membership>> {
        self.membership.lock().clone()
    }

    /// The place in the map, if it is the real one.
    pub(crate) fn place(&self) -> Option<Arc<Membership>> {
        self.membership().filter(|it| !it.is_provisional)
    }

    /// The place in the map as stored in checkpoints and in the journal.
    pub(crate) fn stored_place(&self) -> Option<ShardIdentity> {
        let membership = self.place()?;
        place_in(&membership.map, membership.index)
    }

    /// Installs a map, and sets in the tables which slots the server owns. Slow: checks the keys of
    /// all items.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid map. `FailedPrecondition` for a map that is older than the
    /// current one, differs from it at the same epoch, or is meant for another group or server.
    pub(crate) fn set(
        &self,
        request: SetDirectoryRequest,
        server_id: u64,
        tables: &[Arc<Table>],
        changes: &TableChanges,
        own: Option<&ShardOptions>,
    ) -> Result<()> {
        let SetDirectoryRequest { map, index } = request;
        let map = map.ok_or_else(|| Error::invalid_argument("SetDirectory has no map."))?;
        check_map(&map, index, server_id)?;
        let slots = Arc::new(slots_of(&map, index));
        let _changing = self.changing.lock();
        {
            let mut membership = self.membership.lock();
            if let Some(known) = &*membership {
                check_successor(known, &map)?;
            }
            self.epoch.store(map.epoch, Ordering::Relaxed);
            let is_provisional = own.is_some_and(|shard| shard.rejoins);
            let is_own = own.is_some();
            *membership = Some(Arc::new(Membership { map, index, is_own, is_provisional }));
        }
        for table in tables {
            table.set_own_slots(&slots);
        }
        changes.notify(true);
        Ok(())
    }
}

impl Service {
    /// Unique id of this server. The next server at this address has another one.
    pub(crate) fn server_id(&self) -> u64 {
        self.tables.state_id().0
    }

    /// Joins a group, before the server has clients.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid map.
    pub(crate) fn join_group(&self, shard: &ShardOptions) -> Result<()> {
        let ShardOptions { map, index, is_coordinated, .. } = shard;
        let mut map = map.clone();
        if let Some(own) = map.shards.iter_mut().find(|shard| shard.index == *index) {
            own.server_id = self.server_id();
        }
        let request = SetDirectoryRequest { map: Some(map), index: *index };
        self.group.set(request, self.server_id(), self.tables.all(), &self.changes, Some(shard))?;
        for table in self.tables.all().iter().filter(|_| *is_coordinated) {
            let limiter = table.config().rate_limiter;
            let is_bounded = limiter.min_diff > -f64::MAX || limiter.max_diff < f64::MAX;
            let (low, high) =
                if is_bounded { (f64::MAX, -f64::MAX) } else { (-f64::MAX, f64::MAX) };
            // Each part starts closed to samples: the whole group may be below its minimum.
            if is_bounded || limiter.min_size_to_sample > 1 {
                table.set_window(low, high, i64::MAX, 0)?;
            }
        }
        Ok(())
    }

    /// The map of the group with the tables that the caller may see. Callers without a right on all
    /// tables do not get the paths of checkpoints.
    pub(crate) fn directory(
        &self,
        request: &DirectoryRequest,
        caller: &Caller,
    ) -> DirectoryResponse {
        let membership = self.group.membership();
        let is_new = |membership: &&Arc<Membership>| membership.map.epoch != request.known_epoch;
        let map = membership.as_ref().filter(is_new).map(|membership| {
            let mut map = membership.map.clone();
            map.tables.retain(|table| caller.may_see(&table.name));
            if !caller.may_everywhere(Right::Sample) {
                map.checkpoint_directory.clear();
            }
            map
        });
        let index = membership.map(|membership| membership.index);
        let fills = self.fills(&request.tables, caller);
        let writer_place = self.writer_places.choose(Instant::now(), &request.writer_places);
        DirectoryResponse {
            map,
            index,
            server_id: self.server_id(),
            fills,
            writer_place,
            num_writers: self.streams.count(StreamKind::Insert) as i64,
        }
    }

    /// Fill levels of these tables, except those that the caller may not see.
    fn fills(&self, tables: &[String], caller: &Caller) -> Vec<TableFill> {
        // Requests may repeat names many times.
        let asked: BTreeSet<&str> = tables.iter().map(String::as_str).collect();
        let is_asked =
            |table: &&Arc<Table>| asked.contains(table.name()) && caller.may_see(table.name());
        let fill =
            |table: &Arc<Table>| TableFill { name: table.name().to_owned(), share: share(table) };
        self.tables.all().iter().filter(is_asked).map(fill).collect()
    }

    /// Installs a new map.
    ///
    /// # Errors
    ///
    /// Errors of [`Group::set`]; `FailedPrecondition` if the store has items of another place.
    pub(crate) async fn set_directory(
        self: &Arc<Self>,
        request: SetDirectoryRequest,
        by: &ChangedBy,
    ) -> Result<()> {
        let place = request.map.as_ref().and_then(|map| place_in(map, request.index));
        if let Some((tier, place)) = self.memory.tier.as_ref().zip(place) {
            tier.check_shard(&place, false)?;
        }
        let service = Arc::clone(self);
        let given = request.map.as_ref().map(|map| (map.epoch, map.group.clone()));
        // Slow work: the keys of all items are checked.
        blocking(move || {
            let Service { group, tables, changes, .. } = &*service;
            group.set(request, service.server_id(), tables.all(), changes, None)
        })
        .await?;
        if let Some((epoch, group)) = given {
            tracing::info!(client = %by.client, epoch, group, "the group of shards has a new map");
        }
        Ok(())
    }
}

/// The place of the shard with an index.
pub(crate) fn place_in(map: &ShardMap, index: i32) -> Option<ShardIdentity> {
    let num_shards = u32::try_from(map.shards.len()).ok()?;
    let index = u32::try_from(index).ok()?;
    Some(ShardIdentity { group: map.group.clone(), index, num_shards })
}

/// Slots that a shard owns or has owned.
fn slots_of(map: &ShardMap, index: i32) -> SlotSet {
    let own = map
        .slots
        .iter()
        .filter(|range| range.owner == index || range.former_owners.contains(&index));
    // `check_map` has checked the ranges.
    SlotSet::new(
        own.flat_map(|range| (range.first..range.first + range.count).map(|slot| slot as u16)),
    )
}

fn check_successor(membership: &Membership, map: &ShardMap) -> Result<()> {
    let known = &membership.map;
    if known.group != map.group {
        return Err(Error::failed_precondition(format!(
            "This server is a shard of group {:?}; it takes no map of group {:?}. Groups need \
             different names and different servers.",
            known.group, map.group
        )));
    }
    if known.epoch > map.epoch {
        return Err(Error::failed_precondition(format!(
            "This shard of group {:?} has the map of epoch {} already; epoch {} is older. Ask the \
             shards for their maps, and go on from the newest.",
            known.group, known.epoch, map.epoch
        )));
    }
    // Addresses may change within an epoch; slots and tables may not.
    let differs = known.slots != map.slots || known.tables != map.tables;
    if known.epoch == map.epoch && differs && !membership.is_own {
        return Err(Error::failed_precondition(format!(
            "This shard of group {:?} has another map of epoch {}: two have changed the group at \
             the same time. Ask the shards for their maps, and go on from the newest.",
            known.group, known.epoch
        )));
    }
    Ok(())
}

fn check_map(map: &ShardMap, index: i32, server_id: u64) -> Result<()> {
    if map.epoch < 1 {
        return Err(Error::invalid_argument(format!(
            "The epoch of a map must be at least 1, got {}.",
            map.epoch
        )));
    }
    let mut indices = BTreeSet::new();
    for shard in &map.shards {
        if shard.index < 0 || !indices.insert(shard.index) {
            return Err(Error::invalid_argument(format!(
                "The shards of a map must have different indices of at least 0; there is {} twice, \
                 or it is negative.",
                shard.index
            )));
        }
        if !(shard.weight >= 0.0 && shard.weight.is_finite()) {
            return Err(Error::invalid_argument(format!(
                "The weight of shard {} must be a finite number of at least 0, got {}.",
                shard.index, shard.weight
            )));
        }
    }
    let Some(own) = map.shards.iter().find(|shard| shard.index == index) else {
        return Err(Error::invalid_argument(format!(
            "The map has no shard {index}, which this server is said to be."
        )));
    };
    if own.server_id != 0 && own.server_id != server_id {
        return Err(Error::failed_precondition(format!(
            "The map is meant for another server: shard {index} has the id {:016x} there, and this \
             server has {server_id:016x}. It was started again, or the address leads elsewhere; ask \
             it for its directory.",
            own.server_id
        )));
    }
    check_slots(map, &indices)
}

/// Checks that every slot has one owner.
fn check_slots(map: &ShardMap, indices: &BTreeSet<i32>) -> Result<()> {
    let mut ranges: Vec<(i64, i64)> = Vec::with_capacity(map.slots.len());
    for range in &map.slots {
        let first = i64::from(range.first);
        let count = i64::from(range.count);
        if first < 0 || count < 1 || first + count > i64::from(NUM_SLOTS) {
            return Err(Error::invalid_argument(format!(
                "The map has {count} slots from {first} on; slots are the numbers from 0 to {}.",
                NUM_SLOTS - 1
            )));
        }
        if !indices.contains(&range.owner) {
            return Err(Error::invalid_argument(format!(
                "The map has no shard {}, which owns the slots from {first} on.",
                range.owner
            )));
        }
        ranges.push((first, count));
    }
    ranges.sort_unstable();
    let mut next = 0;
    for (first, count) in ranges {
        if first != next {
            let what = if first < next { "two owners" } else { "no owner" };
            return Err(Error::invalid_argument(format!(
                "Every slot of a map needs one owner; slot {} has {what}.",
                first.min(next)
            )));
        }
        next = first + count;
    }
    if next != i64::from(NUM_SLOTS) {
        return Err(Error::invalid_argument(format!(
            "Every slot of a map needs one owner; slot {next} has no owner."
        )));
    }
    Ok(())
}
/// Fill level of a table from 0 to 1: of `max_size` or `max_bytes`, whichever is larger.
fn share(table: &Table) -> f64 {
    let config = table.config();
    let of_items = table.len() as f64 / config.max_size.max(1) as f64;
    let max_bytes = config.memory.max_bytes;
    let of_bytes = max_bytes.map_or(0.0, |most| table.bytes() as f64 / most.max(1) as f64);
    of_items.max(of_bytes)
}
