// SPDX-License-Identifier: Apache-2.0
//! Roll call: a change starts only after all shards have answered.
//!
//! Nothing is changed in a group with a silent shard, and each change carries a deadline by the
//! clock of its shard.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use reverb_base::{Error, ErrorKind, Result};
use reverb_wire::Calls as _;
use reverb_wire::calls::Call;
use reverb_wire::generated::reverb::{DirectoryRequest, StatusRequest};
use reverb_wire::presence::{ServerClock, silent, while_it_answers};

use crate::group::View;
use crate::member::Member;
use crate::transport::of_shard;

/// Time limit of a shard's answer.
pub(super) const ROLL_CALL: Duration = Duration::from_millis(1200);
/// Time limit of a shard that was already down.
const OF_DOWN: Duration = Duration::from_millis(250);

/// Time limit for a member: `usual`, or less if it is already down.
pub(crate) fn patience(member: &Member, usual: Duration) -> Duration {
    if member.is_down() { OF_DOWN.min(usual) } else { usual }
}

/// Waits for an answer that needs no work at the shard.
pub(super) async fn answer_of<T>(
    member: &Member,
    usual: Duration,
    asked: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = patience(member, usual);
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(silent(limit)))
}

/// A member that has answered the roll call.
pub(crate) struct Present<'a> {
    pub(super) member: &'a Arc<Member>,
    /// Clock of its server; `None` if the server does not report it.
    clock: Option<ServerClock>,
}

/// Asks all members to answer.
///
/// # Errors
///
/// `Unavailable` with the name of a silent shard.
pub(crate) async fn roll_call(view: &View) -> Result<Vec<Present<'_>>> {
    let asked = view.members.iter().map(|member| async move {
        let so = ", so nothing was changed at any shard";
        ask(member).await.map_err(|error| absence(member, &error, so))
    });
    try_join_all(asked).await
}

/// Error of a member that did not answer. It is lasting, so the client does not retry on its own.
pub(super) fn absence(member: &Member, error: &Error, so: &str) -> Error {
    let why = error.message().trim_end_matches('.');
    let text = format!("it does not answer ({why}){so}.");
    of_shard(Error::unavailable(text).lasting(), &member.name())
}

/// The members that answer, at least one.
///
/// # Errors
///
/// The error of a shard if none answers.
pub(crate) async fn those_that_answer(view: &View) -> Result<Vec<&Arc<Member>>> {
    let mut members = Vec::new();
    let mut failure = None;
    for (member, answer) in view.members.iter().zip(join_all(view.members.iter().map(ask)).await) {
        match answer {
            Ok(_) => members.push(member),
            Err(error) => failure = Some(of_shard(error, &member.name())),
        }
    }
    match failure {
        Some(error) if members.is_empty() => Err(error),
        _ => Ok(members),
    }
}

/// Asks a member to answer soon.
pub(super) async fn ask(member: &Arc<Member>) -> Result<Present<'_>> {
    let status = async { member.shard()?.call(StatusRequest { with_streams: false }).await };
    match answer_of(member, ROLL_CALL, status).await {
        Ok(status) => Ok(Present { member, clock: Some(ServerClock::reported(status.now_ns)) }),
        Err(error) if error.is_gone() => {
            member.went_down(&error);
            Err(error)
        }
        // The server runs dm-reverb, or the caller may not ask. What comes next will fail.
        Err(_) => Ok(Present { member, clock: None }),
    }
}

impl Present<'_> {
    /// Sends a change. It may take long, as long as the shard answers roll calls.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the shard falls silent. The deadline then keeps it from starting the
    /// change.
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

/// Says of a change that has failed at some shards which ones did it; `did` is the verb for that.
pub(super) fn who_did<'a, T>(
    error: Error,
    did: &str,
    results: impl IntoIterator<Item = (&'a Arc<Member>, &'a Result<T>)>,
) -> Error
where
    T: 'a,
{
    let (done, failed): (Vec<_>, Vec<_>) =
        results.into_iter().partition(|(_, result)| result.is_ok());
    let names = |shards: &[(&Arc<Member>, _)]| {
        let names: Vec<_> = shards.iter().map(|(member, _)| member.name()).collect();
        names.join(", ")
    };
    // All shards have the same tables.
    if done.is_empty() && error.kind() == ErrorKind::TableNotFound {
        return error;
    }
    let not = names(&failed);
    let all = done.len() + failed.len();
    match done.len() {
        0 => error.followed_by(&format!("No shard {did}.")),
        num => {
            let who = format!("{num} of {all} shards {did}: {}; not done: {not}.", names(&done));
            error.followed_by(&who).partial()
        }
    }
}

/// Sends a change to all shards at the same time, and waits for all answers. `request` receives the
/// position of a shard and the deadline for the start of the change, by the shard's clock.
pub(super) async fn change_all<C: Call>(
    present: &[Present<'_>],
    request: impl Fn(usize, i64) -> C,
) -> Vec<Result<C::Answer>> {
    let request = &request;
    let all = present.iter().enumerate();
    join_all(all.map(|(position, shard)| shard.change(move |limit| request(position, limit)))).await
}
