// SPDX-License-Identifier: Apache-2.0
//! Payloads that wait for the thread, and whether they may.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use reverb_base::StoreState;
use reverb_data::Chunk;

use crate::status::Failure;

/// What is to be done with a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Write it, unless it has a place.
    Write,
    /// The same, and forget it.
    WriteAndForget,
    /// Write it again, if its file is to be emptied.
    Move,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) chunk: Chunk,
    pub(crate) task: Task,
}

/// What comes of a write.
pub(crate) type Written<T = ()> = Result<T, Refusal>;

/// Why something was not written.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Files have as many bytes as they may.
    Full,
    /// An error of a call.
    Failed { call: &'static str, path: PathBuf, error: io::Error },
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    jobs: VecDeque<Job>,
    /// Also those that the thread is writing.
    pub(crate) waiting_bytes: u64,
    pub(crate) num_waiting: usize,
    trouble: Option<Trouble>,
    pub(crate) is_closed: bool,
    pub(crate) has_ended: bool,
}

#[derive(Debug)]
struct Trouble {
    /// `None` if the store is full.
    failure: Option<Failure>,
    /// A deleted file helps.
    lacks_space: bool,
    retry_at: Instant,
}

impl Queue {
    /// Returns true if such a task may wait.
    pub(crate) fn accepts(&self, task: Task) -> bool {
        let may = |trouble: &Trouble| {
            let moves = trouble.failure.is_none() && task == Task::Move;
            moves || Instant::now() >= trouble.retry_at
        };
        !self.is_closed && self.trouble.as_ref().is_none_or(may)
    }

    pub(crate) fn push(&mut self, chunk: Chunk, task: Task) {
        self.waiting_bytes += chunk.payload_len() as u64;
        self.num_waiting += 1;
        self.jobs.push_back(Job { chunk, task });
    }

    /// The next jobs, of one payload or of at most so many bytes.
    pub(crate) fn take(&mut self, most_bytes: usize) -> Vec<Job> {
        let mut bytes = 0;
        let taken = self.jobs.iter().take_while(|job| {
            bytes += job.chunk.payload_len();
            bytes <= most_bytes
        });
        let num_taken = taken.count().max(1).min(self.jobs.len());
        self.jobs.drain(..num_taken).collect()
    }

    /// So many jobs have been done, or given up.
    pub(crate) fn done(&mut self, num_jobs: usize, bytes: u64) {
        self.num_waiting -= num_jobs;
        self.waiting_bytes -= bytes;
    }

    /// Takes all jobs, or those other than moves.
    pub(crate) fn give_up(&mut self, moves_too: bool) -> Vec<Job> {
        let jobs = std::mem::take(&mut self.jobs);
        let (given_up, kept): (Vec<_>, _) =
            jobs.into_iter().partition(|job| moves_too || job.task != Task::Move);
        self.jobs = kept.into();
        let bytes = given_up.iter().map(|job| job.chunk.payload_len() as u64).sum();
        self.done(given_up.len(), bytes);
        given_up
    }

    /// What a refusal changes. Returns true if nothing was wrong before.
    pub(crate) fn set_trouble(&mut self, refusal: &Refusal, retry_at: Instant) -> bool {
        let before = self.trouble.take();
        let is_new = before.is_none();
        let (failure, lacks_space) = match refusal {
            Refusal::Full => (None, true),
            Refusal::Failed { call, path, error } => {
                let before = before.and_then(|trouble| trouble.failure);
                let since = before.map_or_else(SystemTime::now, |failure| failure.since);
                let lacks_space = error.kind() == io::ErrorKind::StorageFull;
                let error = format!("cannot {call} {}: {error}", path.display());
                (Some(Failure { error, since }), lacks_space)
            }
        };
        self.trouble = Some(Trouble { failure, lacks_space, retry_at });
        is_new
    }

    /// A payload was written. Returns true if something was wrong before.
    pub(crate) fn end_trouble(&mut self, was_move: bool) -> bool {
        // A move may use what other payloads may not.
        let ends = |trouble: &mut Trouble| !was_move || trouble.failure.is_some();
        self.trouble.take_if(ends).is_some()
    }

    /// There is more room than before.
    pub(crate) fn retry_if_full(&mut self) {
        if let Some(trouble) = self.trouble.as_mut().filter(|trouble| trouble.lacks_space) {
            trouble.retry_at = Instant::now();
        }
    }

    pub(crate) fn state(&self) -> StoreState {
        match &self.trouble {
            None => StoreState::Ok,
            Some(Trouble { failure: None, .. }) => StoreState::Full,
            Some(_) => StoreState::Failing,
        }
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.trouble.as_ref()?.failure.clone()
    }
}
