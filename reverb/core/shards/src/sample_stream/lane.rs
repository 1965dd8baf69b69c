// SPDX-License-Identifier: Apache-2.0
//! The stream of one shard, and the parts of requests that it owes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use reverb_data::SampleOptions;
use reverb_wire::transport::SampleStream;

use crate::facts::TableFacts;
use crate::member::Member;
use crate::plan::Candidate;

/// A part of a request that went to one shard.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) missing: usize,
    /// The share of the shard when the request was made.
    pub(super) share: f64,
    /// When the request gives up.
    pub(super) deadline: Option<Instant>,
    pub(super) options: SampleOptions,
    pub(super) columns: Arc<[u32]>,
}

impl Part {
    /// What is missing, to be asked of any shard. The items that one shard gives may be in several
    /// batches then, so they are not compared.
    pub(super) fn into_request(self) -> Request {
        let options = SampleOptions { stacking: None, ..self.options };
        Request { count: self.missing, deadline: self.deadline, options, columns: self.columns }
    }
}

/// The stream of one shard.
pub(super) struct Lane {
    pub(super) member: Arc<Member>,
    pub(super) facts: Arc<TableFacts>,
    /// `None` before the first request, after a failure, and while an answer is waited for.
    pub(super) stream: Option<Box<dyn SampleStream>>,
    /// The share of the shard when it was asked last.
    pub(super) share: f64,
    /// What it was asked for and has not given.
    pub(super) parts: VecDeque<Part>,
    pub(super) is_receiving: bool,
}

impl Lane {
    pub(super) fn as_candidate(&self) -> Candidate {
        Candidate {
            is_usable: !self.member.is_down(),
            is_watched: self.member.is_watched.load(Ordering::Relaxed),
            facts: self.facts.now(),
        }
    }
}

/// What a caller asked for.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) count: usize,
    /// When it gives up.
    pub(super) deadline: Option<Instant>,
    pub(super) options: SampleOptions,
    pub(super) columns: Arc<[u32]>,
}
