// SPDX-License-Identifier: Apache-2.0
//! A scan of all shards, one after another.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::try_join_all;
use reverb_data::{Result, Sampled};
use reverb_wire::transport::{BoxFuture, ScanOptions, ScanStream};

use crate::group::View;
use crate::member::Member;

/// Opens the scan at all shards at once, so that all show nearly the same moment.
pub(super) async fn open(
    view: Arc<View>,
    table: &str,
    options: ScanOptions<'_>,
) -> Result<Box<dyn ScanStream>> {
    let opened = view.members.iter().map(|member| async move {
        let opened = async { member.shard()?.open_scan(table, options).await };
        let stream = opened.await.map_err(|error| member.is_needed(error))?;
        Ok::<_, reverb_data::Error>((Arc::clone(member), stream))
    });
    Ok(Box::new(GroupScan(try_join_all(opened).await?.into())))
}

/// Remaining scans, with their shards.
struct GroupScan(VecDeque<(Arc<Member>, Box<dyn ScanStream>)>);

impl ScanStream for GroupScan {
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(async {
            while let Some((member, stream)) = self.0.front_mut() {
                let items = stream.receive().await.map_err(|error| member.is_needed(error))?;
                if !items.is_empty() {
                    return Ok(items);
                }
                self.0.pop_front();
            }
            Ok(Vec::new())
        })
    }
}
