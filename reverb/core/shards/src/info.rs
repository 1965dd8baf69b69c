// SPDX-License-Identifier: Apache-2.0
//! Information about each shard of a group, for people and for programs that run groups.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{
    DirectoryRequest, DirectoryResponse, Shard as Entry, ShardMap, WatchResponse,
};

use crate::group::{Group, View, within};
use crate::member::{Member, State};

/// The current state of a shard.
#[derive(Debug)]
pub struct ShardRow {
    /// Index in the group.
    pub index: i32,
    /// Address of its server.
    pub address: String,
    /// Id of its server, if known.
    pub server_id: Option<u64>,
    /// Number of key slots that it owns.
    pub num_slots: usize,
    /// "up", "down" or "draining".
    pub state: &'static str,
    /// Reason why it is down, or empty.
    pub error: String,
    /// Time since its last answer.
    pub last_seen: Option<Duration>,
    /// Tables of the shard. Empty if it is down or runs dm-reverb.
    pub tables: WatchResponse,
}

impl Group {
    /// Asks every shard. A shard that does not answer within seconds counts as down.
    ///
    /// # Errors
    ///
    /// `Unavailable` if discovery has never succeeded.
    pub async fn shard_info(self: &Arc<Self>) -> Result<Vec<ShardRow>> {
        let view = self.view().await?;
        let asked = view.members.iter().map(|member| row(&view, member));
        Ok(join_all(asked).await)
    }

    /// The map of the group. For a plain list of servers, a map is made up.
    ///
    /// # Errors
    ///
    /// `Unavailable` if discovery has never succeeded.
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
        Err(error) if error.is_gone() => member.went_down(&error),
        // The server runs dm-reverb, or this client has no right to watch it.
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
