// SPDX-License-Identifier: Apache-2.0
//! Updates of priorities and deletes: each key goes to the shard that has it.
//!
//! A key goes to the shard where this client sampled it as a foreign key, or else to the owner of
//! its slot. Keys that are not found there go to former owners of the slot, and to all shards if
//! writers that do not know about slots have written to the group. Shards ignore unknown keys, so
//! asking too many is correct but slower.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::slot_of;
use reverb_wire::generated::reverb::UpdatePrioritiesResponse;

use super::of_shard;
use crate::group::{Group, View};
use crate::member::Member;

/// Updates and deletes for one shard.
#[derive(Debug, Default)]
struct Part {
    updates: Vec<(u64, f64)>,
    deletes: Vec<u64>,
}

/// Deletes items, then updates priorities. Unknown keys are ignored and counted.
pub(super) async fn mutate(
    group: &Arc<Group>,
    view: &View,
    table: &str,
    updates: &[(u64, f64)],
    deletes: &[u64],
) -> Result<()> {
    let mut parts: BTreeMap<i32, Part> = BTreeMap::new();
    let first = |key: u64| first_shard(group, view, key);
    for &(key, priority) in updates {
        parts.entry(first(key)).or_default().updates.push((key, priority));
    }
    for &key in deletes {
        parts.entry(first(key)).or_default().deletes.push(key);
    }
    let missing = send(view, table, parts).await?;
    if view.members.iter().all(|member| member.is_down()) {
        return Err(Error::unavailable(format!("No shard of {} answers.", group.text())));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut others: BTreeMap<i32, Part> = BTreeMap::new();
    let is_missing: HashSet<u64> = missing.iter().copied().collect();
    let mut ask = |key: u64, put: &dyn Fn(&mut Part)| {
        for index in other_shards(view, table, key, first(key)) {
            put(others.entry(index).or_default());
        }
    };
    for &(key, priority) in updates.iter().filter(|(key, _)| is_missing.contains(key)) {
        ask(key, &|part| part.updates.push((key, priority)));
    }
    for &key in deletes.iter().filter(|key| is_missing.contains(key)) {
        ask(key, &|part| part.deletes.push(key));
    }
    // A key is nowhere if each shard that was asked for it, perhaps none, did not have it.
    let mut num_asked: HashMap<u64, usize> = missing.iter().map(|&key| (key, 0)).collect();
    for key in others.values().flat_map(Part::keys) {
        *num_asked.entry(key).or_default() += 1;
    }
    for key in send(view, table, others).await? {
        num_asked.entry(key).and_modify(|left| *left = left.saturating_sub(1));
    }
    let missed = num_asked.values().filter(|&&left| left == 0).count();
    // Servers of dm-reverb do not report unknown keys.
    if view.members.iter().all(|member| member.is_ours()) {
        group.missed(missed);
    }
    Ok(())
}

impl Part {
    fn keys(&self) -> impl Iterator<Item = u64> {
        self.updates.iter().map(|(key, _)| *key).chain(self.deletes.iter().copied())
    }
}

/// Shard that is asked first for the item of a key.
pub(crate) fn first_shard(group: &Group, view: &View, key: u64) -> i32 {
    group.recall(key).unwrap_or_else(|| view.slots.owner(slot_of(key)))
}

/// Other shards that may have the item of a key, besides the one that was asked.
pub(crate) fn other_shards<'a>(
    view: &'a View,
    table: &'a str,
    key: u64,
    asked: i32,
) -> impl Iterator<Item = i32> + 'a {
    let slot = slot_of(key);
    let others = view.members.iter().filter(move |member| member.index != asked);
    let may_have = others.filter(move |member| {
        view.slots.former_owners(slot).contains(&member.index)
            || view.slots.owner(slot) == member.index
            || may_have_foreign(view, member, table)
    });
    may_have.map(|member| member.index)
}

/// True if the shard may have keys of slots that it never owned.
fn may_have_foreign(view: &View, member: &Member, table: &str) -> bool {
    // Without a map, servers do not know their slots.
    let is_watched = view.map.is_some() && member.is_watched.load(Ordering::Relaxed);
    !(is_watched && member.stats(table).now().has_no_foreign_keys)
}

/// Sends all parts at the same time, and returns the keys that were not found. A shard that does
/// not report unknown keys counts as having none.
async fn send(view: &View, table: &str, parts: BTreeMap<i32, Part>) -> Result<Vec<u64>> {
    let sent = parts.into_iter().map(|(index, part)| async move {
        let Some(member) = view.member(index) else { return Ok(part.keys().collect()) };
        match send_one(member, table, &part).await {
            Ok(missing) => Ok(missing),
            // The shard is down: its items are lost, or will return with their old priorities.
            Err(error) if error.is_gone() => {
                member.went_down(&error);
                Ok(part.keys().collect())
            }
            Err(error) => Err(of_shard(error, &member.name())),
        }
    });
    let mut missing = Vec::new();
    for result in join_all(sent).await {
        missing.extend(result?);
    }
    Ok(missing)
}

async fn send_one(member: &Member, table: &str, part: &Part) -> Result<Vec<u64>> {
    if member.is_down() {
        return Err(Error::unavailable("it is down"));
    }
    let shard = member.shard()?;
    if member.is_ours() {
        match shard.update_priorities(table, &part.updates, &part.deletes).await {
            Ok(UpdatePrioritiesResponse { missing_keys, .. }) => return Ok(missing_keys),
            Err(error) if error.kind() == ErrorKind::Unimplemented => member.set_ours(false),
            Err(error) => return Err(error),
        }
    }
    shard.mutate_priorities(table, &part.updates, &part.deletes).await?;
    Ok(part.keys().collect())
}
