// SPDX-License-Identifier: Apache-2.0
//! How each shard of a group is, for people and for programs that run groups.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reverb_data::Result;
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{
    DirectoryRequest, DirectoryResponse, Shard as Entry, ShardMap, WatchResponse,
};

use crate::group::{Group, View, within};
use crate::member::{Member, State};

/// A shard as it is now.
#[derive(Debug)]
pub struct ShardRow {
    /// Its place in the group.
    pub index: i32,
    /// Where it is reached.
    pub address: String,
    /// The id of its server, if it was heard.
    pub server_id: Option<u64>,
    /// Number of slots of keys that it owns.
    pub num_slots: usize,
    /// "up", "down" or "draining".
    pub state: &'static str,
    /// Why it is down; else empty.
    pub error: String,
    /// How long ago it said something.
    pub last_seen: Option<Duration>,
    /// Its tables; none if it is down, or a server of dm-reverb.
    pub tables: WatchResponse,
}

impl Group {
    /// Asks every shard. Those that do not answer within seconds are down.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the shards were never found.
    pub async fn shard_info(self: &Arc<Self>) -> Result<Vec<ShardRow>> {
        let view = self.view().await?;
        let asked = view.members.iter().map(|member| row(&view, member));
        Ok(join_all(asked).await)
    }

    /// The map of the group. A plain list of servers has one, too.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the shards were never found.
    pub async fn directory(self: &Arc<Self>) -> Result<DirectoryResponse> {
        let view = self.view().await?;
        let of_list = || ShardMap {
            shards: view
                .members
                .iter()
                .map(|member| Entry {
                    index: member.index,
                    address: member.address.clone(),
                    server_id: member.server_id().unwrap_or_default(),
                    ..Entry::default()
                })
                .collect(),
            slots: view.slots.ranges(),
            ..ShardMap::default()
        };
        let map = view.map.clone().unwrap_or_else(of_list);
        Ok(DirectoryResponse { map: Some(map), ..DirectoryResponse::default() })
    }
}

async fn row(view: &View, member: &Member) -> ShardRow {
    let asked = async {
        let shard = member.shard()?;
        let directory = within(shard.call(DirectoryRequest::default())).await?;
        member.came_up(Some(directory.server_id));
        let mut watch = within(shard.watch(&[])).await?;
        Ok(within(watch.receive()).await?.unwrap_or_default())
    };
    let answer: Result<WatchResponse> = asked.await;
    let mut tables = WatchResponse::default();
    match answer {
        Ok(answer) => tables = answer,
        Err(error) if error.is_transient() => member.went_down(&error),
        // A server of dm-reverb, or one that this client may not watch.
        Err(_) => {}
    }
    let (state, error) = match member.state() {
        State::Down(error) => ("down", error.message().to_owned()),
        _ if member.is_draining => ("draining", String::new()),
        _ => ("up", String::new()),
    };
    let slots = 0..reverb_data::NUM_SLOTS;
    ShardRow {
        index: member.index,
        address: member.address.clone(),
        server_id: member.server_id(),
        num_slots: slots.filter(|&slot| view.slots.owner(slot) == member.index).count(),
        state,
        error,
        last_seen: member.last_seen().map(|at| at.elapsed()),
        tables,
    }
}
