// SPDX-License-Identifier: Apache-2.0
//! Items of some keys: each key is asked for at the shard that should have it, and then, if that
//! shard does not have it, at all others that may.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::future::try_join_all;
use reverb_base::{Error, Result};
use reverb_data::{ItemCondition, Sampled};
use reverb_wire::transport::{BoxFuture, ScanOptions, ScanStream};

use super::scan;
use super::updates::{first_shard, other_shards};
use crate::group::{Group, View};
use crate::member::Member;

/// Opens the first scans, at all shards at once. All must answer: it is not known whether the items
/// of another one are gone.
pub(super) async fn open(
    group: &Arc<Group>,
    view: Arc<View>,
    table: &str,
    options: ScanOptions<'_>,
    keys: &[u64],
) -> Result<Box<dyn ScanStream>> {
    let choice = Choice {
        group: Arc::clone(group),
        view,
        table: table.to_owned(),
        columns: options.columns.into(),
        condition: options.condition,
    };
    if keys.is_empty() {
        // Only checks that the table is there.
        return scan::open(Arc::clone(&choice.view), table, options).await;
    }
    let shards = keys.iter().map(|&key| (choice.first_shard(key), key)).collect();
    let streams = choice.open_at(shards).await?;
    let missing = keys.iter().copied().collect();
    Ok(Box::new(GroupFetch { choice, missing, streams, is_first: true }))
}

/// Remaining scans, with their shards.
type Streams = VecDeque<(Arc<Member>, Box<dyn ScanStream>)>;

/// Choice of the items and of their columns, at the shards of a group.
struct Choice {
    group: Arc<Group>,
    view: Arc<View>,
    table: String,
    columns: Box<[u32]>,
    condition: ItemCondition,
}

impl Choice {
    fn first_shard(&self, key: u64) -> i32 {
        first_shard(&self.group, &self.view, key)
    }

    /// Other shards that may have these keys.
    fn other_shards(&self, keys: &HashSet<u64>) -> Vec<(i32, u64)> {
        let shards = keys.iter().flat_map(|&key| {
            let others = other_shards(&self.view, &self.table, key, self.first_shard(key));
            others.map(move |index| (index, key))
        });
        shards.collect()
    }

    /// Opens scans for keys at these shards. Shards that have left the group have no items.
    async fn open_at(&self, shards: Vec<(i32, u64)>) -> Result<Streams> {
        let mut parts: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
        for (index, key) in shards {
            parts.entry(index).or_default().push(key);
        }
        let known =
            parts.iter().filter_map(|(&index, keys)| Some((self.view.member(index)?, keys)));
        let opened = known.map(|(member, keys)| async move {
            let options = ScanOptions {
                columns: &self.columns,
                condition: self.condition,
                keys: Some(keys),
                is_partial: false,
            };
            let opened = async { member.shard()?.open_scan(&self.table, options).await };
            let stream = opened.await.map_err(|error| member.is_needed(error))?;
            Ok::<_, Error>((Arc::clone(member), stream))
        });
        Ok(try_join_all(opened).await?.into())
    }
}

struct GroupFetch {
    choice: Choice,
    /// Keys that were not found so far.
    missing: HashSet<u64>,
    streams: Streams,
    /// True until keys that were not found are asked for at other shards.
    is_first: bool,
}

impl GroupFetch {
    async fn next_items(&mut self) -> Result<Vec<Sampled>> {
        loop {
            while let Some((member, stream)) = self.streams.front_mut() {
                let items = stream.receive().await.map_err(|error| member.is_needed(error))?;
                if !items.is_empty() {
                    for item in &items {
                        self.missing.remove(&item.key);
                    }
                    return Ok(items);
                }
                self.streams.pop_front();
            }
            if !std::mem::take(&mut self.is_first) {
                return Ok(Vec::new());
            }
            let others = self.choice.other_shards(&self.missing);
            self.streams = self.choice.open_at(others).await?;
        }
    }
}

impl ScanStream for GroupFetch {
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(self.next_items())
    }
}
