// SPDX-License-Identifier: Apache-2.0
//! Holds something at all shards, if all answer. After a failure, it ends at the others.

use futures_util::future::{join_all, select_all, try_join_all};
use reverb_base::Result;
use reverb_wire::transport::{BoxFuture, Hold, HoldRequest};

use super::of_shard;
use crate::group::View;
use crate::merge::roll_call::roll_call;

pub(super) async fn hold(view: &View, request: HoldRequest) -> Result<Box<dyn Hold>> {
    roll_call(view).await?;
    let holds = view.members.iter().map(|member| {
        let request = request.clone();
        async move {
            let hold = async { member.shard()?.hold(request).await }.await;
            hold.map_err(|error| of_shard(error, &member.name()))
        }
    });
    Ok(Box::new(Holds(try_join_all(holds).await?)))
}

struct Holds(Vec<Box<dyn Hold>>);

impl Hold for Holds {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let released = join_all(self.0.iter_mut().map(|hold| hold.release())).await;
            released.into_iter().collect()
        })
    }

    fn lost(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { drop(select_all(self.0.iter_mut().map(|hold| hold.lost())).await) })
    }
}
