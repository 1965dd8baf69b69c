// SPDX-License-Identifier: Apache-2.0
//! Sample stream of one shard, and the parts of requests that it has not answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use reverb_base::Error;
use reverb_data::{ColumnSpan, SampleOptions, StepWindow};
use reverb_wire::transport::SampleStream;

use crate::member::Member;
use crate::plan::Candidate;
use crate::table_stats::TableStats;

use super::window_mass::WindowMass;

/// Part of a request that was sent to one shard.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// The request, for the items that are missing.
    pub(super) request: Request,
    /// Share of the shard when the request was made.
    pub(super) share: f64,
}

impl Part {
    /// True if its request has timed out.
    pub(super) fn is_over(&self) -> bool {
        self.request.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Makes a request for the missing items, to be sent to any shard. One shard's items may then
    /// be spread over several batches, so they are not checked as one.
    pub(super) fn into_request(self) -> Request {
        let options = SampleOptions { stacking: None, ..self.request.options };
        Request { options, ..self.request }
    }
}

/// The stream of one shard.
pub(super) struct ShardStream {
    pub(super) member: Arc<Member>,
    pub(super) stats: Arc<TableStats>,
    /// `None` before the first request, after a failure, and while an answer is pending.
    pub(super) stream: Option<Box<dyn SampleStream>>,
    /// Share of the shard in the last request.
    pub(super) share: f64,
    /// Parts of requests that the shard has not answered completely.
    pub(super) parts: VecDeque<Part>,
    pub(super) is_receiving: bool,
    /// Knowledge about the window that was asked for last.
    pub(super) window: Option<WindowMass>,
}

impl ShardStream {
    /// The shard as one that could serve a request for a window, or for whole items.
    pub(super) fn as_candidate(&mut self, window: Option<StepWindow>) -> Candidate {
        let stats = self.stats.now();
        let stats = window.map_or(stats, |window| self.window_mass(window).apply(stats));
        Candidate {
            is_usable: !self.member.is_down(),
            is_watched: self.member.is_watched.load(Ordering::Relaxed),
            stats,
        }
    }

    pub(super) fn window_mass(&mut self, window: StepWindow) -> &mut WindowMass {
        let known = self.window.take().filter(|known| known.is_of(window));
        self.window.insert(known.unwrap_or_else(|| WindowMass::of(window)))
    }

    /// The window of the first part, if the error means that the shard lacks it.
    pub(super) fn lacks_window(&self, error: &Error) -> Option<StepWindow> {
        self.parts.front().filter(|_| error.is_no_window())?.request.options.window
    }
}

/// Request of a caller.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) count: usize,
    /// Time at which it times out.
    pub(super) deadline: Option<Instant>,
    pub(super) options: SampleOptions,
    pub(super) columns: Arc<[u32]>,
    pub(super) spans: Arc<[ColumnSpan]>,
}
