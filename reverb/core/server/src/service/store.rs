// SPDX-License-Identifier: Apache-2.0
//! The store of a server: payloads of large chunks leave memory for the disk, and what happens to
//! the tables survives a crash.
//!
//! Chunks become disk chunks where they come in ([`adopt`]), the [`sweep`] writes and forgets their
//! payloads while memory is short, and readers get plain chunks again ([`reading`]) after the lock
//! of the table. With a journal [`commits`] brings what happened to the disk, as [`record`] writes
//! it, and a start gets it back ([`recover`]). Nothing else of the server knows of it.

mod adopt;
mod commits;
mod committer;
mod files;
mod reading;
mod record;
mod recover;
mod sweep;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use reverb_base::process::generation;
use reverb_base::{Error, Result, StoreState};
use reverb_data::{Chunk, SampleOptions, Sampled, ServerAccount, ShardIdentity};
use reverb_engine::Table;
use reverb_files::{Disk, SystemDisk};
use reverb_store::{Committed, Journal, Note, Store};
use reverb_wire::generated::reverb::{StoreNote, StoreRecovery, StoreStatus};
use tokio::runtime::Handle;

use adopt::AllPairs;
use adopt::LoadAdopter;
pub(crate) use adopt::{Adopter, LocalAdopter};
use commits::Commits;
use files::Files;
use reading::Reading;
use record::Recorder;
use recover::{Filled, Recovery};
use sweep::{Sweep, SweepSignal};

use crate::observe::diagnosis::{FullServer, JournalFacts};
use crate::observe::status::{nanoseconds, number};
use crate::service::group::{Group, place_in};
use crate::service::memory::Memory;
use crate::service::server::{ServerOptions, ShardOptions};

/// Number of batches of which no item can be read back before a request fails.
pub(crate) const MAX_LOST_BATCHES: usize = 16;

/// Time for which changes may be in memory alone before inserts wait, unless commits are rarer.
const MAX_LAG: Duration = Duration::from_secs(2);

/// Time after which a disk that has failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Options of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Directory of its own; it is made if it is missing.
    pub path: PathBuf,
    /// Limit of all its files; absent: the file system less 5 %.
    pub max_bytes: Option<u64>,
    /// What survives a crash; absent: nothing, the store is for payloads that exceed the memory.
    pub journal: Option<JournalOptions>,
    /// Whether payloads leave memory as soon as the sweep finds them, however much room there is.
    /// Tests of readers need that.
    pub forgets_at_once: bool,
}

/// Options of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalOptions {
    /// Time between two commits.
    pub sync_interval: Duration,
    /// True if tables take the stored settings instead of their own.
    pub restore_settings: bool,
}

impl JournalOptions {
    /// Age of the oldest change that is not on disk at which inserts begin to wait.
    fn max_lag(self) -> Duration {
        MAX_LAG.max(2 * self.sync_interval)
    }
}

/// A server's store, and what reads from it and writes to it.
#[derive(Debug)]
pub(crate) struct Tier {
    files: Files,
    options: StoreOptions,
    /// Account of the server. It is there before a checkpoint is loaded, whose payloads it counts.
    account: ServerAccount,
    reading: Reading,
    signal: Arc<SweepSignal>,
    pairs: Arc<AllPairs>,
    sweep: Mutex<Option<JoinHandle<()>>>,
    /// What a journal gave back at the start.
    recovery: Mutex<Recovery>,
    /// The process that has the threads; its children do not.
    generation: usize,
}

impl Tier {
    /// Opens the store of these options, if they have one.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the server has no `max_bytes`, and there is no journal; errors of
    /// [`Store::open`] and [`Journal::open`], which `cancelled` ends.
    pub(crate) fn open(
        options: &ServerOptions,
        runtime: &Handle,
        cancelled: &AtomicBool,
    ) -> Result<Option<Arc<Self>>> {
        Self::open_on(options, Arc::new(SystemDisk), RETRY_AFTER, runtime, cancelled)
    }

    /// Like `open`, on another disk, which is tried again after some time when it has failed.
    fn open_on(
        options: &ServerOptions,
        disk: Arc<dyn Disk>,
        retry_after: Duration,
        runtime: &Handle,
        cancelled: &AtomicBool,
    ) -> Result<Option<Arc<Self>>> {
        let Some(store) = options.store.clone() else { return Ok(None) };
        if options.max_bytes.is_none() && store.journal.is_none() {
            return Err(Error::invalid_argument(
                "Store(journal=False) needs max_bytes of the Server: without it nothing would go \
                 to disk.",
            ));
        }
        let account = ServerAccount::open();
        let of_files = reverb_store::StoreOptions {
            max_bytes: store.max_bytes,
            retry_after,
            ..reverb_store::StoreOptions::new(&store.path)
        };
        let mut recovery = Recovery::default();
        let files = match store.journal {
            None => Files::Payloads(Arc::new(Store::open(of_files, disk)?)),
            Some(journal) => {
                let start = Instant::now();
                let (opened, recovered) = Journal::open(of_files, disk, cancelled)?;
                let last = Committed { commit: recovered.commit, at: recovered.at };
                recovery = Recovery::new(recovered, start);
                let commits = Commits::new(opened, last, journal.sync_interval, retry_after);
                Files::Journal(Arc::new(commits))
            }
        };
        Ok(Some(Arc::new(Self {
            files,
            account,
            reading: Reading::new(runtime.clone()),
            signal: Arc::new(SweepSignal::new(store.forgets_at_once)),
            options: store,
            pairs: Arc::default(),
            sweep: Mutex::default(),
            recovery: Mutex::new(recovery),
            generation: generation(),
        })))
    }

    /// Makes disk chunks of the chunks of a checkpoint, for a server of `max_bytes`.
    pub(crate) fn adopter_of_load(&self, max_bytes: Option<u64>) -> LoadAdopter<'_> {
        LoadAdopter::new(&self.files, &self.account, max_bytes.unwrap_or(u64::MAX))
    }

    /// Fills tables with what the journal gave back. Returns all tables, those whose settings were
    /// restored as new objects; `None` if there was no journal before.
    ///
    /// # Errors
    ///
    /// Those of [`Filling`](reverb_checkpoint::Filling); `DataLoss` if an item cannot be read;
    /// `FailedPrecondition` if the items are of another place in a group. No table has changed
    /// then.
    pub(crate) fn recover(
        &self,
        tables: &[Arc<Table>],
        shard: Option<&ShardOptions>,
        cancelled: &AtomicBool,
    ) -> Result<Option<Vec<Arc<Table>>>> {
        self.check_start(shard, true)?;
        let restore_settings = self.options.journal.is_some_and(|it| it.restore_settings);
        let about = format!("store {}", self.options.path.display());
        let filled = self.recovery.lock().fill(tables, restore_settings, &about, cancelled)?;
        let Some(Filled { tables, num_removed }) = filled else { return Ok(None) };
        if num_removed > 0
            && let Err(error) = self.keep_loaded(&tables, cancelled)
        {
            for table in &tables {
                table.reset();
            }
            return Err(error);
        }
        Ok(Some(tables))
    }

    /// Checks that a shard that starts, and has its place, has the items of this place; see
    /// [`Self::check_shard`].
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if they are of another place.
    pub(crate) fn check_start(&self, shard: Option<&ShardOptions>, begins: bool) -> Result<()> {
        let shard = shard.filter(|options| !options.rejoins);
        let place = shard.and_then(|options| place_in(&options.map, options.index));
        place.map_or(Ok(()), |place| self.check_shard(&place, begins))
    }

    /// Checks that the items that the journal gave back are of this place in a group. The number of
    /// shards counts only where a group begins: one that runs may have grown.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if they are of another place.
    pub(crate) fn check_shard(&self, place: &ShardIdentity, begins: bool) -> Result<()> {
        let recovery = self.recovery.lock();
        let Some(known) = recovery.shard() else { return Ok(()) };
        let is_same = (&known.group, known.index) == (&place.group, place.index);
        if is_same && (!begins || known.num_shards == place.num_shards) {
            return Ok(());
        }
        let of_group = |it: &ShardIdentity| {
            if known.group == place.group {
                String::new()
            } else {
                format!(" of group {:?}", it.group)
            }
        };
        let (which, way_out) = if is_same {
            let way_out = format!(
                "start the group as it was, save a checkpoint, then: reverb reshard --shards {}",
                place.num_shards
            );
            ("one".to_owned(), way_out)
        } else {
            let way_out = "give each shard the directory that it had, or a new one";
            (format!("shard {}", place.index), way_out.to_owned())
        };
        Err(Error::failed_precondition(format!(
            "store {} belongs to shard {} of {}{}, this is {which} of {}{}: {way_out}",
            self.path().display(),
            known.index,
            known.num_shards,
            of_group(known),
            place.num_shards,
            of_group(place),
        )))
    }

    /// The moment to which the tables in the directory belong; `None` if there was no journal.
    pub(crate) fn recovered_at(&self) -> Option<SystemTime> {
        self.recovery.lock().at()
    }

    /// Id of the journal, if it is one.
    pub(crate) fn journal_id(&self) -> Option<u128> {
        self.files.journal().map(|commits| commits.id)
    }

    /// Moves the files of the journal away, before it is used. It has ended then.
    ///
    /// # Errors
    ///
    /// Those of [`Journal::set_aside`].
    pub(crate) fn set_aside(&self) -> Result<PathBuf> {
        self.files.journal().map_or_else(|| Err(no_journal()), |commits| commits.set_aside())
    }

    /// Brings tables to the journal that have other items than its last commit: those of a
    /// checkpoint, or fewer. They are not used yet.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the disk fails. `Cancelled`.
    pub(crate) fn keep_loaded(&self, tables: &[Arc<Table>], cancelled: &AtomicBool) -> Result<()> {
        let recorder = Recorder::new(tables, self.recovery.lock().numbers());
        let commits = self.files.journal();
        commits.map_or(Ok(()), |commits| commits.make_first_base(tables, &recorder, cancelled))
    }

    /// Makes disk chunks of the chunks of a writer of this process.
    pub(crate) fn adopter_of_writer(&self) -> LocalAdopter {
        self.pairs.adopter()
    }

    /// Begins to bring these tables to the disk.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if no thread can be started.
    pub(crate) fn begin(
        &self,
        memory: &Arc<Memory>,
        tables: &[Arc<Table>],
        group: &Arc<Group>,
    ) -> Result<()> {
        self.begin_sweep(memory, tables)?;
        let Some((commits, options)) = self.files.journal().zip(self.options.journal) else {
            return Ok(());
        };
        let recovery = self.recovery.lock();
        let recorder = Recorder::new(tables, recovery.numbers());
        commits.begin(tables, group, recorder, recovery.done().is_some())?;
        for table in tables {
            table.record_changes(options.max_lag());
        }
        Ok(())
    }

    fn begin_sweep(&self, memory: &Arc<Memory>, tables: &[Arc<Table>]) -> Result<()> {
        let sweep = Sweep {
            signal: Arc::clone(&self.signal),
            memory: Arc::clone(memory),
            files: self.files.clone(),
            pairs: Arc::clone(&self.pairs),
            tables: tables.to_vec(),
            next: (0, 0),
            kept_bytes: 0,
        };
        let thread = std::thread::Builder::new().name("reverb-sweep".to_owned());
        let thread = thread.spawn(move || sweep.run()).map_err(|error| {
            Error::resource_exhausted(format!("Store: cannot start a thread: {error}."))
        })?;
        *self.sweep.lock() = Some(thread);
        Ok(())
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.options.path
    }

    /// Bytes that its files may take.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.files.status().max_bytes
    }

    /// Waits until all that was confirmed so far is on disk, with a note of a client.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` without a journal; `Unavailable` if the server stops meanwhile and the
    /// disk fails.
    pub(crate) async fn sync(&self, client: &str, note: Vec<u8>) -> Result<Committed> {
        let Some(commits) = self.files.journal() else { return Err(no_journal()) };
        let (at, client) = (SystemTime::now(), client.to_owned());
        let note = Some(Note { at, client, text: note }).filter(|note| !note.text.is_empty());
        commits.sync(note).await
    }

    /// Waits until all that has come so far is on disk; not at all without a journal.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server stops meanwhile and the disk fails.
    pub(crate) async fn until_on_disk(&self) -> Result<()> {
        match self.files.journal() {
            Some(commits) => commits.sync(None).await.map(drop),
            None => Ok(()),
        }
    }

    /// True if inserts have to wait because the files have nearly as many bytes as they may.
    pub(crate) fn is_full(&self) -> bool {
        self.files.journal().is_some_and(|commits| commits.status().is_full)
    }

    /// Account of the server.
    pub(crate) fn account(&self) -> &ServerAccount {
        &self.account
    }

    /// Wakes the sweep if memory is short.
    pub(crate) fn wake_if_short(&self, memory: &Memory) {
        self.signal.wake_if_short(memory);
    }

    /// True while payloads may still leave memory for the disk.
    pub(crate) fn may_free(&self) -> bool {
        self.signal.may_free()
    }

    /// Bytes of payloads of this table that have to stay in memory, as the last round has seen.
    pub(crate) fn kept_bytes(&self, table: usize) -> u64 {
        self.signal.kept_bytes(table)
    }

    /// What has to happen on the disk before a full server has room again; `None` if that does not
    /// depend on it.
    pub(crate) fn what_makes_room(&self, memory: &Memory, shows_path: bool) -> Option<FullServer> {
        let status = self.files.status();
        let path = || status.path.to_string_lossy().into_owned();
        let place = if shows_path { path() } else { "the disk".to_owned() };
        if self.is_full() {
            let bytes =
                status.live_bytes + status.dead_bytes + status.log_bytes + status.base_bytes;
            return Some(FullServer::Files { place, bytes, max_bytes: status.max_bytes });
        }
        let unwritten_bytes = memory.resident_bytes();
        let helps = status.state == StoreState::Ok && self.may_free() && unwritten_bytes > 0;
        let bytes_per_second = status.write_speed;
        helps.then_some(FullServer::Disk { place, unwritten_bytes, bytes_per_second })
    }

    /// What is told of a journal that is behind, to a reader who may know paths or not.
    pub(crate) fn journal_facts(&self, shows_paths: bool) -> JournalFacts {
        let reverb_store::StoreStatus { path, failure, .. } = self.files.status();
        let error = failure.map(|it| if shows_paths { it.error } else { "writes fail".to_owned() });
        JournalFacts { place: shows_paths.then(|| path.to_string_lossy().into_owned()), error }
    }

    /// Gives samples of a table plain chunks. Waits for the disk unless all of them are in memory.
    /// Cancel safe, if the caller keeps what it has given.
    ///
    /// Items of which a payload is lost leave the table, and are left out. Returns the error that
    /// says so of the first.
    pub(crate) async fn read(&self, table: &Table, samples: &mut Vec<Sampled>) -> Option<Error> {
        let lost = self.reading.load_samples(samples).await;
        let keys: Vec<u64> = lost.iter().map(|(key, _)| *key).collect();
        lost.first().map(|(_, why)| self.remove_lost(table, &keys, why))
    }

    /// Removes items that cannot be read back, and returns the error that says so of the first.
    #[expect(clippy::unused_self, reason = "only a server with a store has such items")]
    pub(crate) fn remove_lost(&self, table: &Table, keys: &[u64], why: &Error) -> Error {
        table.remove_lost(keys);
        let key = keys.first().copied().unwrap_or_default();
        let error = Error::data_loss(format!(
            "Item {key} of table {} cannot be read back: {}. It was removed.",
            table.name(),
            why.message().trim_end_matches('.')
        ));
        tracing::error!("{error}");
        error
    }

    /// Status of the store.
    pub(crate) fn status(&self, memory: &Memory) -> StoreStatus {
        let status = self.files.status();
        let failing_since_ns = status.failure.as_ref().map_or(0, |it| nanoseconds(it.since));
        let error = status.failure.map_or_else(String::new, |it| it.error);
        let errors_of = |reads: bool| {
            let errors = status.errors.iter().filter(|errors| (errors.call == "read") == reads);
            number(errors.map(|errors| errors.count).sum())
        };
        let commits = self.files.journal().map(|commits| commits.status());
        let lag = if commits.is_some() { memory.lag() } else { Duration::ZERO };
        let max_lag = self.options.journal.map(JournalOptions::max_lag);
        let state = match (status.state, commits) {
            (StoreState::Ok, Some(commits)) if commits.is_full => StoreState::Full,
            (StoreState::Ok, Some(_)) if max_lag.is_some_and(|most| lag >= most) => {
                StoreState::Behind
            }
            (state, _) => state,
        };
        let last = commits.map(|commits| commits.last);
        let last_base_at = commits.and_then(|commits| commits.last_base_at);
        StoreStatus {
            path: status.path.to_string_lossy().into_owned(),
            state: state.name().to_owned(),
            error,
            failing_since_ns,
            live_bytes: number(status.live_bytes),
            dead_bytes: number(status.dead_bytes),
            max_bytes: number(status.max_bytes),
            resident_bytes: number(memory.resident_bytes()),
            files: status.num_files as i64,
            written_bytes: number(status.written_bytes),
            moved_bytes: number(status.moved_bytes),
            waiting_bytes: number(status.waiting_bytes),
            write_bytes_per_second: status.write_speed,
            reads: number(status.reads),
            read_bytes: number(status.read_bytes),
            read_seconds: status.read_time.as_secs_f64(),
            read_errors: errors_of(true),
            write_errors: errors_of(false),
            is_journal: commits.is_some(),
            lag_seconds: lag.as_secs_f64(),
            commit: last.map_or(0, |last| number(last.commit)),
            synced_at_ns: last.map_or(0, |last| nanoseconds(last.at)),
            log_bytes: number(status.log_bytes),
            base_bytes: number(status.base_bytes),
            written_log_bytes: number(status.written_log_bytes),
            written_base_bytes: number(status.written_base_bytes),
            syncs: number(status.syncs),
            sync_seconds: status.sync_time.as_secs_f64(),
            last_base_at_ns: last_base_at.map_or(0, nanoseconds),
            recovered: self.recovery.lock().done().map(to_message),
        }
    }

    /// The plain chunks of these, in their order. Waits as `read`.
    pub(crate) async fn load(&self, chunks: &[Chunk]) -> Vec<Result<Chunk>> {
        self.reading.load(chunks).await
    }

    /// Ends the sweep, and closes the store. Blocks for some seconds if the disk hangs.
    ///
    /// # Errors
    ///
    /// `DataLoss` if the last commit of a journal did not reach the disk.
    pub(crate) fn stop(&self) -> Result<()> {
        if self.generation != generation() {
            return Ok(());
        }
        self.signal.stop();
        let stopped = self.files.stop();
        if let Some(sweep) = self.sweep.lock().take() {
            // It waits for nothing but the store.
            let _ = sweep.join();
        }
        stopped
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn to_message(done: &recover::Done) -> StoreRecovery {
    let to_note = |note: &Note| StoreNote {
        at_ns: nanoseconds(note.at),
        client: note.client.clone(),
        note: note.text.clone(),
    };
    StoreRecovery {
        at_ns: nanoseconds(done.at),
        commit: number(done.commit),
        items: number(done.num_items),
        notes: done.notes.iter().map(to_note).collect(),
        took_seconds: done.took.as_secs_f64(),
        dropped_bytes: number(done.dropped_bytes),
    }
}

/// Error of a wait for a journal that is not there.
pub(crate) fn no_journal() -> Error {
    Error::failed_precondition("This server has no journal: start it with Store(...).")
}

/// True if another item may be sampled for one that cannot be read back: nothing was promised of
/// the items together, and none is lost for other readers.
pub(crate) fn may_leave_out(options: &SampleOptions, table: &Table) -> bool {
    let &SampleOptions { stacking, distinct, epoch, all_or_nothing, .. } = options;
    let is_of_single_items = stacking.is_none() && epoch.is_none();
    is_of_single_items && !distinct && !all_or_nothing && table.config().max_times_sampled < 1
}

#[cfg(test)]
mod tests;
