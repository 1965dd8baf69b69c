// SPDX-License-Identifier: Apache-2.0
//! Parked request: it waits at one shard for a window that no shard has, so that the status of this
//! shard shows the wait and its reason. When another shard may have the window, it is withdrawn and
//! divided anew.

use futures_util::stream::StreamExt;
use reverb_data::{GroupSampling, StepWindow};
use tokio::sync::oneshot;

use super::{GroupSampleStream, Received, SHARD_PATIENCE, STARVED};
use crate::plan::Plan;

/// The shard of a parked request.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) shard: usize,
    /// Withdraws the request; `None` before it listens for the answer.
    withdraw: Option<oneshot::Sender<()>>,
}

impl GroupSampleStream {
    /// Plan that parks a request at the largest shard without the window; `None` if no shard is
    /// known to wait for one.
    pub(super) fn park(&mut self, count: usize, window: StepWindow) -> Option<Plan> {
        if self.sampling == GroupSampling::Ordered {
            return None;
        }
        let waits_at = |shard: &mut super::ShardStream| {
            let stats = shard.stats.now();
            let known = shard.window_mass(window);
            let waits = known.missing(&stats).is_some() && !known.is_hopeless(&stats);
            (waits && !shard.member.is_down()).then_some(stats.size)
        };
        let sizes: Vec<Option<i64>> = self.shards.iter_mut().map(waits_at).collect();
        let largest = (0..sizes.len()).filter(|&i| sizes[i].is_some()).max_by_key(|&i| sizes[i])?;
        self.parked = Some(Parked { shard: largest, withdraw: None });
        Some(Plan::of_one(largest, sizes.len(), count, self.part()))
    }

    /// Plan that asks a shard although no shard has items, so that its status shows the wait;
    /// `None` unless the caller has waited for some time.
    pub(super) fn ask_in_vain(&self, count: usize) -> Option<Plan> {
        let at = self.shards.iter().position(|shard| !shard.member.is_down())?;
        let share = if self.sampling == GroupSampling::Ordered { 1.0 } else { self.part() };
        let is_due = self.waits_since.elapsed() >= STARVED;
        is_due.then(|| Plan::of_one(at, self.shards.len(), count, share))
    }

    /// True if the request for this shard is parked there.
    pub(super) fn is_parked_at(&self, i: usize) -> bool {
        self.parked.as_ref().is_some_and(|parked| parked.shard == i)
    }

    /// True if a parked request can be withdrawn: an answer that comes at the same moment is lost,
    /// and its items too, if sampling removes them.
    pub(super) fn can_withdraw(&self) -> bool {
        let table = self.view.tables.iter().find(|table| table.name == self.table);
        table.is_some_and(|table| table.max_times_sampled <= 0)
    }

    /// Signal by which the request that is parked at this shard is withdrawn.
    pub(super) fn withdrawal(&mut self, i: usize) -> Option<oneshot::Receiver<()>> {
        if !self.is_parked_at(i) || !self.can_withdraw() {
            return None;
        }
        let (withdraw, withdrawn) = oneshot::channel();
        self.parked.as_mut()?.withdraw = Some(withdraw);
        Some(withdrawn)
    }

    /// Next answer of a shard. A parked request is withdrawn when another shard may have its
    /// window.
    pub(super) async fn next_answer(&mut self) -> Option<Received> {
        let mut news = self.group.news();
        while self.parked.as_ref().is_some_and(|parked| parked.withdraw.is_some()) {
            if self.may_be_elsewhere() {
                // The answer, an empty one, follows at once.
                self.parked = None;
                break;
            }
            tokio::select! {
                biased;
                received = self.receiving.next() => return received,
                _ = tokio::time::timeout(SHARD_PATIENCE, news.changed()) => {}
            }
        }
        self.receiving.next().await
    }

    /// True if a shard other than that of the parked request may have its window.
    fn may_be_elsewhere(&mut self) -> bool {
        let Some(Parked { shard: at, .. }) = self.parked else { return false };
        if self.group.found().is_some_and(|view| !std::sync::Arc::ptr_eq(&view, &self.view)) {
            return true;
        }
        let parked = &self.shards[at];
        let Some(window) = parked.parts.front().and_then(|part| part.request.options.window) else {
            return false;
        };
        let may_have_it = |shard: &mut super::ShardStream| {
            let stats = shard.stats.now();
            !shard.member.is_down()
                && stats.size > 0
                && shard.window_mass(window).missing(&stats).is_none()
        };
        parked.member.is_down()
            || self.shards.iter_mut().enumerate().any(|(i, shard)| i != at && may_have_it(shard))
    }
}
