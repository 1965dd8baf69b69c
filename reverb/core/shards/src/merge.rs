// SPDX-License-Identifier: Apache-2.0
//! Small calls to a group: each asks the shards and merges their answers.

mod changes;
mod checkpoints;
mod configure_tables;
mod drain;
pub(crate) mod roll_call;
mod server_info;
mod status;
mod sync;

use std::sync::Arc;

use futures_util::future::join_all;
use prost::Message as _;
use prost::bytes::Bytes;
use reverb_base::{Error, Result};
use reverb_wire::calls::{Call, SmallCall};
use reverb_wire::generated::reverb::{
    CheckpointStatusRequest, ConfigureTablesRequest, DeleteItemsRequest, DrainRequest,
    SetPausedRequest, StatusRequest, SyncRequest, WaitReasonRequest,
};
use reverb_wire::generated::{CheckpointRequest, ResetRequest, ServerInfoRequest};
use reverb_wire::transport::BoxFuture;

use crate::group::{Group, View};

/// A small call with answers that a group merges.
pub(crate) trait Merge: Call {
    /// Asks the shards, and merges their answers.
    fn merge(
        self,
        group: &Arc<Group>,
        view: &View,
    ) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Decodes a request, merges the shards' answers, and encodes the result.
pub(crate) async fn merged(
    group: &Arc<Group>,
    view: &View,
    call: &SmallCall,
    request: Bytes,
) -> Result<Bytes> {
    let found = MERGES.into_iter().find(|(path, _)| *path == call.row.path);
    match found {
        Some((_, merge)) => merge(group, view, request).await,
        None => Err(call.refused_by_group(group.text())),
    }
}

type Merging = for<'a> fn(&'a Arc<Group>, &'a View, Bytes) -> BoxFuture<'a, Result<Bytes>>;

macro_rules! merges {
    ($($request:ty),* $(,)?) => { [$((<$request>::PATH, merge::<$request>)),*] };
}

/// All small calls that a group merges.
const MERGES: [(&str, Merging); 11] = merges![
    CheckpointRequest,
    CheckpointStatusRequest,
    ConfigureTablesRequest,
    DeleteItemsRequest,
    DrainRequest,
    ResetRequest,
    ServerInfoRequest,
    SetPausedRequest,
    StatusRequest,
    SyncRequest,
    WaitReasonRequest,
];

fn merge<'a, C: Merge>(
    group: &'a Arc<Group>,
    view: &'a View,
    request: Bytes,
) -> BoxFuture<'a, Result<Bytes>> {
    Box::pin(async move {
        let request = C::decode(request)
            .map_err(|error| Error::invalid_argument(format!("Malformed message: {error}.")))?;
        Ok(request.merge(group, view).await?.encode_to_vec().into())
    })
}

/// Calls all shards at the same time. All must answer, and an error of one does not end the calls
/// of the others.
async fn ask_all<C: Call>(view: &View, request: C) -> Result<Vec<C::Answer>> {
    let answers = join_all(view.members.iter().map(|member| member.call(request.clone()))).await;
    answers.into_iter().collect()
}

#[cfg(test)]
mod tests;
