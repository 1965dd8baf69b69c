// SPDX-License-Identifier: Apache-2.0
//! Transport of a group: calls of one server, made of calls to its shards.

mod even;
mod fetch;
mod hold;
mod scan;
pub(crate) mod updates;
mod writers;

use std::sync::Arc;

use prost::Message as _;
use prost::bytes::Bytes;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::NewItem;
use reverb_wire::calls::{InGroup, Repeat, SmallCall};
use reverb_wire::shard::Shard;
use reverb_wire::transport::{
    BoxFuture, Hold, HoldRequest, InsertGroup, InsertStream, NextStream, SampleStream, ScanOptions,
    ScanStream, ShardRoute, Transport,
};

use crate::group::{Group, View};
use crate::merge::merged;
use crate::sample_stream::GroupSampleStream;

/// All shards of a group as one server.
pub struct GroupTransport {
    pub(crate) group: Arc<Group>,
}

impl GroupTransport {
    /// Makes a transport; it connects on first use.
    pub fn new(group: Arc<Group>) -> Self {
        Self { group }
    }

    /// The group of this transport.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The view, and the only shard if the group has one.
    async fn only(&self) -> Result<(Arc<View>, Option<Arc<dyn Shard>>)> {
        let view = self.group.view().await?;
        let only = match view.only() {
            Some(member) => Some(member.shard()?),
            None => None,
        };
        Ok((view, only))
    }
}

impl Drop for GroupTransport {
    fn drop(&mut self) {
        self.group.close();
    }
}

impl std::fmt::Debug for GroupTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupTransport").field("group", &self.group).finish()
    }
}

impl Transport for GroupTransport {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        Box::pin(writers::open_any(&self.group, &[]))
    }

    fn open_next_insert<'a>(&'a self, next: NextStream<'a>) -> BoxFuture<'a, Result<InsertStream>> {
        Box::pin(writers::open_next(&self.group, next))
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        Box::pin(async {
            let (view, only) = self.only().await?;
            if let Some(only) = only {
                return only.open_sample().await;
            }
            let stream = GroupSampleStream::new(Arc::clone(&self.group), view);
            Ok(Box::new(stream) as Box<dyn SampleStream>)
        })
    }

    fn open_scan<'a>(
        &'a self,
        table: &'a str,
        options: ScanOptions<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.open_scan(table, options).await,
                None => match options.keys {
                    None => scan::open(view, table, options).await,
                    Some(keys) => fetch::open(&self.group, view, table, options, keys).await,
                },
            }
        })
    }

    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.mutate_priorities(table, updates, deletes).await,
                None => updates::mutate(&self.group, &view, table, updates, deletes).await,
            }
        })
    }

    fn small_call(&self, call: &'static SmallCall, request: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            if call.group == InGroup::Own {
                return Ok(self.group.directory().await?.encode_to_vec().into());
            }
            let view = self.group.view().await?;
            match view.only() {
                // A change goes through the roll call even in a group of one.
                Some(only)
                    if !matches!(call.repeat, Repeat::Change { .. })
                        || call.group == InGroup::Only =>
                {
                    only.shard()?.small_call(call, request).await
                }
                _ => merged(&self.group, &view, call, request).await,
            }
        })
    }

    fn hold(&self, request: HoldRequest) -> BoxFuture<'_, Result<Box<dyn Hold>>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.hold(request).await,
                None => hold::hold(&view, request).await,
            }
        })
    }

    fn address(&self) -> &str {
        self.group.text()
    }

    /// True for a group of one in this process, which is served without a socket.
    fn is_local(&self) -> bool {
        let view = self.group.found();
        let only = view.as_ref().and_then(|view| view.only());
        only.is_some_and(|member| member.shard().is_ok_and(|shard| shard.is_local()))
    }

    fn tables_state_id(&self) -> Option<(u64, u64)> {
        self.group.found()?.only()?.shard().ok()?.tables_state_id()
    }

    fn has_ended(&self, error: &Error) -> bool {
        self.group.found().is_some_and(|view| match view.only() {
            Some(only) => {
                only.has_ended() || only.shard().is_ok_and(|shard| shard.has_ended(error))
            }
            // A client has streams to some shards only, so it does not hear all of them.
            None => {
                view.members.iter().all(|member| member.is_down())
                    && view.members.iter().any(|member| member.has_ended())
            }
        })
    }

    fn insert_group(&self) -> Option<&dyn InsertGroup> {
        let is_one = self.group.found().is_some_and(|view| view.only().is_some());
        (!is_one).then_some(self as &dyn InsertGroup)
    }
}

impl InsertGroup for GroupTransport {
    fn routes<'a>(&'a self, items: &'a [NewItem]) -> BoxFuture<'a, Result<Vec<ShardRoute>>> {
        Box::pin(writers::routes(&self.group, items))
    }

    fn open_insert_at<'a>(&'a self, route: &'a ShardRoute) -> BoxFuture<'a, Result<InsertStream>> {
        Box::pin(writers::open_at(&self.group, route))
    }

    fn has_better_shard(&self, shard: i32, tables: &[Arc<str>]) -> bool {
        even::has_better_shard(&self.group, shard, tables)
    }
}

/// Adds the name of the shard to an error.
pub(crate) fn of_shard(error: Error, name: &str) -> Error {
    if error.kind() == ErrorKind::TableNotFound { error } else { error.context(name) }
}
