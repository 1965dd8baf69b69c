// SPDX-License-Identifier: Apache-2.0
//! A roll call: changes begin when all shards have said that they are there.
//!
//! A frozen process takes what is sent to it, and does it when it goes on. So nothing is sent to a
//! group of which a shard is silent, and each change has a deadline by the clock of its shard.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use reverb_data::{Error, Result};
use reverb_wire::generated::reverb::{DirectoryRequest, StatusRequest};
use reverb_wire::shard::Shard;

use super::of_shard;
use crate::group::View;
use crate::member::Member;

/// How long a shard may take to say how it is.
pub(super) const ROLL_CALL: Duration = Duration::from_millis(1200);
/// The same of one that did not answer before.
const OF_DOWN: Duration = Duration::from_millis(250);
/// How long after the roll call a shard may begin with a change. Longer work is waited for while
/// the shard answers other questions.
const BEGIN: Duration = Duration::from_millis(700);

/// How long a member is waited for, if one that is up is waited for `usual`.
pub(super) fn patience(member: &Member, usual: Duration) -> Duration {
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

fn silent(limit: Duration) -> Error {
    Error::unavailable(format!("no answer within {} s", limit.as_secs_f64()))
}

/// A member that has answered.
pub(super) struct Present<'a> {
    pub(super) member: &'a Arc<Member>,
    /// Its clock, and when it said so; `None` if it does not tell.
    clock: Option<(i64, Instant)>,
}

/// Asks all members whether they are there.
///
/// # Errors
///
/// `Unavailable` that names the shard that is silent.
pub(super) async fn roll_call(view: &View) -> Result<Vec<Present<'_>>> {
    let asked = view.members.iter().map(|member| async move {
        let status = async { member.shard()?.status(StatusRequest { with_streams: false }).await };
        match answer_of(member, ROLL_CALL, status).await {
            Ok(status) => Ok(Present { member, clock: Some((status.now_ns, Instant::now())) }),
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
    /// Until when it may begin with a change, by its own clock.
    pub(super) fn not_after_ns(&self) -> i64 {
        self.clock.map_or(0, |(now_ns, at)| {
            let left = at.elapsed() + BEGIN;
            now_ns.saturating_add(i64::try_from(left.as_nanos()).unwrap_or(i64::MAX))
        })
    }

    /// Changes something. A change may take long, but a shard that works on one answers.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the shard fell silent; it will refuse the change then.
    pub(super) async fn change<T, F>(
        &self,
        change: impl FnOnce(Arc<dyn Shard>, i64) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let changed = async {
            let shard = self.member.shard()?;
            let mut changing = pin!(change(Arc::clone(&shard), self.not_after_ns()));
            loop {
                if let Ok(done) = tokio::time::timeout(BEGIN, &mut changing).await {
                    return done;
                }
                if self.clock.is_some() && self.member.is_ours() {
                    tokio::select! {
                        done = &mut changing => return done,
                        there = tokio::time::timeout(BEGIN, shard.directory(DirectoryRequest::default())) => {
                            there.map_err(|_| silent(BEGIN * 2).lasting())??;
                        }
                    }
                }
            }
        };
        changed.await.map_err(|error: Error| of_shard(error, &self.member.name()))
    }
}

/// Makes a change at all shards at the same time, and waits for all of them.
pub(super) async fn change_all<'a, T, F>(
    present: &'a [Present<'a>],
    change: impl Fn(usize, Arc<dyn Shard>, i64) -> F,
) -> Vec<Result<T>>
where
    F: Future<Output = Result<T>>,
{
    let change = &change;
    let all = present.iter().enumerate();
    join_all(
        all.map(|(position, it)| it.change(move |shard, limit| change(position, shard, limit))),
    )
    .await
}
