// SPDX-License-Identifier: Apache-2.0
//! Turns off the rate limiters of all shards. After a failure, the others are turned on again.

use futures_util::future::{join_all, try_join_all};
use reverb_base::Result;
use reverb_wire::generated::reverb::HoldRateLimiterRequest;
use reverb_wire::transport::{BoxFuture, RateLimiterHold};

use super::of_shard;
use crate::group::View;

pub(super) async fn hold(
    view: &View,
    request: HoldRateLimiterRequest,
) -> Result<Box<dyn RateLimiterHold>> {
    let holds = view.members.iter().map(|member| {
        let request = request.clone();
        async move {
            let hold = async { member.shard()?.hold_rate_limiter(request).await }.await;
            hold.map_err(|error| of_shard(error, &member.name()))
        }
    });
    Ok(Box::new(Holds(try_join_all(holds).await?)))
}

struct Holds(Vec<Box<dyn RateLimiterHold>>);

impl RateLimiterHold for Holds {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let released = join_all(self.0.iter_mut().map(|hold| hold.release())).await;
            released.into_iter().collect()
        })
    }
}
