// SPDX-License-Identifier: Apache-2.0
//! A scan of all shards, one after another.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::try_join_all;
use reverb_base::{Error, Result};
use reverb_data::Sampled;
use reverb_wire::transport::{BoxFuture, ScanOptions, ScanStream};

use crate::group::View;
use crate::member::Member;
use crate::merge::roll_call::those_that_answer;

/// Opens the scan at all shards at once, so that all show nearly the same moment.
pub(super) async fn open(
    view: Arc<View>,
    table: &str,
    options: ScanOptions<'_>,
) -> Result<Box<dyn ScanStream>> {
    let is_partial = options.is_partial;
    let members =
        if is_partial { those_that_answer(&view).await? } else { view.members.iter().collect() };
    let opened = members.into_iter().map(|member| async move {
        let opened = async { member.shard()?.open_scan(table, options).await };
        let stream = opened.await.map_err(|error| needed(member, error, is_partial))?;
        Ok::<_, Error>((Arc::clone(member), stream))
    });
    Ok(Box::new(GroupScan { streams: try_join_all(opened).await?.into(), is_partial }))
}

/// Error of a shard without which the scan cannot continue.
fn needed(member: &Member, error: Error, is_partial: bool) -> Error {
    let is_gone = error.is_gone();
    let error = member.is_needed(error);
    if is_gone && !is_partial { error.followed_by(HINT) } else { error }
}

/// The way to the items of the other shards.
const HINT: &str = "Client.scan(partial=True) reads the items of the others.";

/// Remaining scans, with their shards.
struct GroupScan {
    streams: VecDeque<(Arc<Member>, Box<dyn ScanStream>)>,
    is_partial: bool,
}

impl ScanStream for GroupScan {
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(async {
            while let Some((member, stream)) = self.streams.front_mut() {
                let items = stream.receive().await;
                let items = items.map_err(|error| needed(member, error, self.is_partial))?;
                if !items.is_empty() {
                    return Ok(items);
                }
                self.streams.pop_front();
            }
            Ok(Vec::new())
        })
    }
}
