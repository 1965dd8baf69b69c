// SPDX-License-Identifier: Apache-2.0
//! Commits: what happened to the tables goes to the journal. What its thread and others share.
//!
//! A commit is made each interval, and at once for who asks for it. It is taken from all tables
//! together, written, and only then is the next one taken. A commit that fails is written again,
//! to new files, until it succeeds: its entries and payloads are in memory as long. Bases are
//! written between commits, a part at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use reverb_base::figures::seconds;
use reverb_base::{Error, Result};
use reverb_data::Chunk;
use reverb_engine::{Commit, Table};
use reverb_rpc::server::stopping;
use reverb_store::{Committed, Journal, Note, Observer, StoreStatus, check_not_cancelled};
use tokio::sync::oneshot;

use super::committer::{BaseWriter, Committer};
use super::record::Recorder;
use crate::service::group::Group;

/// Least time between two commits that somebody asked for.
const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// Least time between two attempts to write a commit.
const MIN_REST: Duration = Duration::from_millis(500);

/// Time between two looks at how much has changed.
const POLL: Duration = Duration::from_millis(100);

/// Time for which a stop waits for the last commit.
const MAX_STOP: Duration = Duration::from_secs(5);

/// Who waits for a commit.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) note: Option<Note>,
    pub(super) answer: oneshot::Sender<Result<Committed>>,
}

/// What the thread and those who ask it for something share.
#[derive(Debug)]
pub(crate) struct Commits {
    interval: Duration,
    /// Time after which a disk that has failed is tried again.
    pub(super) retry_after: Duration,
    /// Id of the journal.
    pub(crate) id: u128,
    observer: Observer,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
pub(super) struct State {
    /// The journal before the thread has it.
    pub(super) journal: Option<Journal>,
    pub(super) waiting: Vec<Waiting>,
    /// Chunks whose payloads are to be moved, the next ones last.
    pub(super) moved: Vec<Chunk>,
    /// Those that are being moved.
    pub(super) num_moving: usize,
    /// True if a commit is wanted as soon as possible.
    pub(super) is_wanted: bool,
    /// Bytes of payloads for which it is wanted.
    pub(super) wanted_bytes: u64,
    pub(super) is_stopped: bool,
    pub(super) has_ended: bool,
    /// What a stop could not bring to the disk.
    pub(super) lost: Option<Error>,
    pub(super) status: CommitStatus,
}

/// What gives a full journal room again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relief {
    /// The base that is made, or comes next.
    Base,
    /// One of the next commits, which delete files.
    Commit,
    /// Items that leave.
    Removal,
}

/// What is known of the commits of a journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitStatus {
    /// The last one on disk. Its moment is later if nothing has changed since.
    pub(crate) last: Committed,
    /// When the newest base was finished; `None` before the first one of this server.
    pub(crate) last_base_at: Option<SystemTime>,
    /// True if the files have nearly as many bytes as they may.
    pub(crate) is_full: bool,
    /// What would help then.
    pub(crate) relief: Relief,
    /// True while writes fail.
    pub(crate) is_failing: bool,
}

impl Commits {
    pub(crate) fn new(
        journal: Journal,
        last: Committed,
        interval: Duration,
        retry_after: Duration,
    ) -> Self {
        let (id, observer) = (journal.id(), journal.observer());
        let status = CommitStatus {
            last,
            last_base_at: None,
            is_full: false,
            relief: Relief::Base,
            is_failing: false,
        };
        let state = State {
            journal: Some(journal),
            waiting: Vec::new(),
            moved: Vec::new(),
            num_moving: 0,
            is_wanted: false,
            wanted_bytes: 0,
            is_stopped: false,
            has_ended: false,
            lost: None,
            status,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { interval, retry_after, id, observer, state, changed, thread: Mutex::default() }
    }

    /// What the disk has to say, and the files.
    pub(crate) fn store_status(&self) -> StoreStatus {
        let mut status = self.observer.status();
        status.waiting_bytes = self.waiting_bytes();
        status
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn status(&self) -> CommitStatus {
        self.state.lock().status
    }

    /// Payloads for which a commit is wanted.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.state.lock().wanted_bytes
    }

    /// Writes payloads of a load before the thread has begun. Returns false if the disk fails.
    pub(crate) fn write(&self, chunks: &[Chunk]) -> bool {
        let mut state = self.state.lock();
        let Some(journal) = &mut state.journal else { return false };
        match journal.write(chunks) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        }
    }

    /// Asks for a commit at once, after which payloads of so many bytes can leave memory. Returns
    /// false while the disk fails.
    pub(crate) fn want(&self, payload_bytes: u64) -> bool {
        let mut state = self.state.lock();
        if state.status.is_failing || state.is_stopped {
            return false;
        }
        state.is_wanted = true;
        state.wanted_bytes += payload_bytes;
        self.changed.notify_all();
        true
    }

    /// Gives payloads to be moved out of files that are to be emptied, with the next commit.
    pub(crate) fn move_out(&self, chunks: Vec<Chunk>) {
        self.state.lock().moved.extend(chunks);
    }

    /// True while payloads that were given are still to be moved.
    pub(crate) fn is_moving(&self) -> bool {
        let state = self.state.lock();
        state.num_moving > 0 || !state.moved.is_empty()
    }

    /// Waits until all that has happened so far is on disk.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server is stopped, or stops and the disk fails.
    pub(crate) async fn sync(&self, note: Option<Note>) -> Result<Committed> {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if state.is_stopped {
                return Err(stopping());
            }
            state.waiting.push(Waiting { note, answer });
            state.is_wanted = true;
            self.changed.notify_all();
        }
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Moves the files of the journal, which is not in use yet, away; see `Journal::set_aside`.
    pub(crate) fn set_aside(&self) -> Result<PathBuf> {
        let journal = self.state.lock().journal.take();
        journal.map_or_else(|| Err(stopped()), Journal::set_aside)
    }

    /// Makes a base of tables that are not in use yet.
    ///
    /// # Errors
    ///
    /// Those of the journal. `Cancelled`.
    pub(crate) fn make_first_base(
        &self,
        tables: &[Arc<Table>],
        recorder: &Recorder,
        cancelled: &AtomicBool,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let Some(journal) = &mut state.journal else { return Ok(()) };
        let (commit, cut) = Commit::take_with_snapshot(tables)?;
        let mut base = BaseWriter::begin(journal, recorder, &commit, cut)?;
        while base.put_part(journal)? {
            check_not_cancelled(cancelled)?;
        }
        journal.end_base()
    }

    /// Begins to make commits of these tables.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if no thread can be started.
    pub(crate) fn begin(
        self: &Arc<Self>,
        tables: &[Arc<Table>],
        group: &Arc<Group>,
        recorder: Recorder,
        wants_base: bool,
    ) -> Result<()> {
        let journal = self.state.lock().journal.take();
        let Some(journal) = journal else { return Ok(()) };
        let committer = Committer::new(self, journal, tables, group, recorder, wants_base);
        let thread = std::thread::Builder::new().name("reverb-journal".to_owned());
        let thread = thread.spawn(move || committer.run()).map_err(|error| {
            Error::resource_exhausted(format!("Store: cannot start a thread: {error}."))
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread after a last commit. A disk that hangs is left after 5 s.
    ///
    /// # Errors
    ///
    /// `DataLoss` if that commit did not reach the disk.
    pub(crate) fn stop(&self) -> Result<()> {
        let Some(thread) = self.thread.lock().take() else {
            // It has not begun, or was stopped before.
            self.state.lock().journal = None;
            return Ok(());
        };
        let mut state = self.state.lock();
        state.is_stopped = true;
        self.changed.notify_all();
        let end = Instant::now() + MAX_STOP;
        while !state.has_ended {
            if self.changed.wait_until(&mut state, end).timed_out() {
                let lag = state.status.last.at.elapsed().unwrap_or_default();
                let error = Error::data_loss(format!(
                    "The disk of the store {} does not answer; what happened in the last {} may be \
                     lost.",
                    self.observer.status().path.display(),
                    seconds(lag),
                ));
                tracing::error!("{error}");
                return Err(error);
            }
        }
        let lost = state.lost.take();
        drop(state);
        let _ = thread.join();
        lost.map_or(Ok(()), Err)
    }

    /// Waits until a commit is due. Returns false if it is the last one.
    pub(super) fn wait(&self, began_at: Instant, has_much: impl Fn() -> bool) -> bool {
        loop {
            let has_much = has_much();
            let mut state = self.state.lock();
            state.is_wanted |= has_much;
            let left = self.time_left(&state, began_at);
            if state.is_stopped || left.is_zero() {
                return !state.is_stopped;
            }
            self.changed.wait_for(&mut state, left.min(POLL));
        }
    }

    /// True if a commit is due after the one that was taken at this time.
    pub(super) fn is_due(&self, began_at: Instant) -> bool {
        self.time_left(&self.state.lock(), began_at).is_zero()
    }

    fn time_left(&self, state: &State, began_at: Instant) -> Duration {
        let least = if state.is_wanted { MIN_INTERVAL } else { self.interval };
        (began_at + least).saturating_duration_since(Instant::now())
    }

    /// Waits for the time, or until somebody calls `sync`, who may know that the disk is well
    /// again. Returns false if the server stops meanwhile.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let (least, num_waiting) = (time.min(MIN_REST), state.waiting.len());
        self.changed.wait_while_for(&mut state, |state| !state.is_stopped, least);
        let rests = |state: &mut State| !state.is_stopped && state.waiting.len() == num_waiting;
        self.changed.wait_while_for(&mut state, rests, time.saturating_sub(least));
        !state.is_stopped
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }
}

fn stopped() -> Error {
    Error::unavailable("The server is stopped, and the last commit did not reach the disk.")
}
