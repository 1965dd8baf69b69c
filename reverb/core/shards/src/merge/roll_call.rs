// SPDX-License-Identifier: Apache-2.0
//! A roll call: changes begin when all shards have said that they are there.
//!
//! Nothing is sent to a group of which a shard is silent, and each change has a deadline by the
//! clock of its shard.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use reverb_data::{Error, Result};
use reverb_wire::Calls as _;
use reverb_wire::calls::Call;
use reverb_wire::generated::reverb::{DirectoryRequest, StatusRequest};
use reverb_wire::presence::{ServerClock, silent, while_it_answers};

use crate::group::View;
use crate::member::Member;
use crate::transport::of_shard;

/// How long a shard may take to say how it is.
pub(super) const ROLL_CALL: Duration = Duration::from_millis(1200);
/// The same of one that did not answer before.
const OF_DOWN: Duration = Duration::from_millis(250);

/// How long a member is waited for, if one that is up is waited for `usual`.
pub(crate) fn patience(member: &Member, usual: Duration) -> Duration {
    if member.is_down() { OF_DOWN.min(usual) } else { usual }
}

/// Waits for the answer of a shard that answers at once.
pub(super) async fn answer_of<T>(
    member: &Member,
    usual: Duration,
    asked: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = patience(member, usual);
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(silent(limit)))
}

/// A member that has answered.
pub(super) struct Present<'a> {
    pub(super) member: &'a Arc<Member>,
    /// `None` if it does not tell.
    clock: Option<ServerClock>,
}

/// Asks all members whether they are there.
///
/// # Errors
///
/// `Unavailable` that names the shard that is silent.
pub(super) async fn roll_call(view: &View) -> Result<Vec<Present<'_>>> {
    let asked = view.members.iter().map(|member| async move {
        let status = async { member.shard()?.call(StatusRequest { with_streams: false }).await };
        match answer_of(member, ROLL_CALL, status).await {
            Ok(status) => Ok(Present { member, clock: Some(ServerClock::told(status.now_ns)) }),
            Err(error) if error.is_transient() => {
                member.went_down(&error);
                let why = error.message().trim_end_matches('.');
                let text =
                    format!("it does not answer ({why}), so nothing was changed at any shard.");
                // Whoever asked is told at once, and decides whether to try again.
                Err(of_shard(Error::unavailable(text).lasting(), &member.name()))
            }
            // A server of dm-reverb, or a caller that may not ask: the change itself says so.
            Err(_) => Ok(Present { member, clock: None }),
        }
    });
    try_join_all(asked).await
}

impl Present<'_> {
    /// Changes something. A change may take long, but a shard that works on one answers.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the shard fell silent; it will refuse the change then.
    async fn change<C: Call>(&self, request: impl FnOnce(i64) -> C) -> Result<C::Answer> {
        let changed = async {
            let shard = self.member.shard()?;
            let request = request(self.clock.map_or(0, ServerClock::not_after_ns));
            let changing = shard.call(request);
            if self.clock.is_none() || !self.member.is_ours() {
                return changing.await;
            }
            let there = || async { shard.call(DirectoryRequest::default()).await.map(drop) };
            while_it_answers(changing, there).await
        };
        changed.await.map_err(|error: Error| of_shard(error, &self.member.name()))
    }
}

/// Makes a change at all shards at the same time, and waits for all of them. `request` is given the
/// place of a shard, and until when it may begin by its own clock.
pub(super) async fn change_all<C: Call>(
    present: &[Present<'_>],
    request: impl Fn(usize, i64) -> C,
) -> Vec<Result<C::Answer>> {
    let request = &request;
    let all = present.iter().enumerate();
    join_all(all.map(|(position, it)| it.change(move |limit| request(position, limit)))).await
}
