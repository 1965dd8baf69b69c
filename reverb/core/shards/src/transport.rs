// SPDX-License-Identifier: Apache-2.0
//! The calls of a server, made of those of its shards.

mod all;
mod even;
mod roll_call;
mod scan;
mod updates;
mod writers;

use std::sync::Arc;

use reverb_data::{Error, ErrorKind, NewItem, Result};
use reverb_wire::generated::reverb::{
    CheckpointStatusResponse, ConfigureTablesRequest, ConfigureTablesResponse, DrainRequest,
    DrainResponse, HoldRateLimiterRequest, SetPausedRequest, StatusRequest, StatusResponse,
};
use reverb_wire::shard::Shard;
use reverb_wire::transport::{
    BoxFuture, InsertGroup, InsertStream, NextStream, RateLimiterHold, SampleStream, ScanStream,
    ServerInfo, Transport,
};

use crate::group::{Group, View};
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

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The only shard of a group of one.
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

    fn open_scan<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.open_scan(table).await,
                None => scan::open(view, table).await,
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

    fn reset<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { all::reset(&*self.group.view().await?, table).await })
    }

    fn server_info(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(async {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.server_info().await,
                None => all::server_info(&view).await,
            }
        })
    }

    fn checkpoint(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.checkpoint().await,
                None => all::checkpoint(&view).await,
            }
        })
    }

    fn checkpoint_status(&self) -> BoxFuture<'_, Result<CheckpointStatusResponse>> {
        Box::pin(async {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.checkpoint_status().await,
                None => all::checkpoint_status(&view).await,
            }
        })
    }

    fn status(&self, request: StatusRequest) -> BoxFuture<'_, Result<StatusResponse>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.status(request).await,
                None => all::status(&view, request).await,
            }
        })
    }

    fn configure_tables(
        &self,
        request: ConfigureTablesRequest,
    ) -> BoxFuture<'_, Result<ConfigureTablesResponse>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.configure_tables(request).await,
                None => all::configure_tables(&self.group, &view, request).await,
            }
        })
    }

    fn set_paused(&self, request: SetPausedRequest) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { all::set_paused(&*self.group.view().await?, request).await })
    }

    fn hold_rate_limiter(
        &self,
        request: HoldRateLimiterRequest,
    ) -> BoxFuture<'_, Result<Box<dyn RateLimiterHold>>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.hold_rate_limiter(request).await,
                None => all::hold_rate_limiter(&view, request).await,
            }
        })
    }

    fn drain(&self, request: DrainRequest) -> BoxFuture<'_, Result<DrainResponse>> {
        Box::pin(async move {
            let (view, only) = self.only().await?;
            match only {
                Some(only) => only.drain(request).await,
                None => all::drain(&view, request).await,
            }
        })
    }

    fn address(&self) -> &str {
        self.group.text()
    }

    /// A group of one in this process is served without a socket, and so are its chunks.
    fn is_local(&self) -> bool {
        let view = self.group.found();
        let only = view.as_ref().and_then(|view| view.only());
        only.is_some_and(|member| member.shard().is_ok_and(|shard| shard.is_local()))
    }

    fn insert_group(&self) -> Option<&dyn InsertGroup> {
        let is_one = self.group.found().is_some_and(|view| view.only().is_some());
        (!is_one).then_some(self as &dyn InsertGroup)
    }
}

impl InsertGroup for GroupTransport {
    fn routes<'a>(
        &'a self,
        items: &'a [NewItem],
    ) -> BoxFuture<'a, Result<Vec<reverb_wire::transport::ShardRoute>>> {
        Box::pin(writers::routes(&self.group, items))
    }

    fn open_insert_at<'a>(
        &'a self,
        route: &'a reverb_wire::transport::ShardRoute,
    ) -> BoxFuture<'a, Result<InsertStream>> {
        Box::pin(writers::open_at(&self.group, route))
    }

    fn has_better_place(&self, shard: i32, tables: &[Arc<str>]) -> bool {
        even::has_better_place(&self.group, shard, tables)
    }
}

/// An error that says which shard it is of.
fn of_shard(error: Error, name: &str) -> Error {
    if error.kind() == ErrorKind::TableNotFound { error } else { error.context(name) }
}
