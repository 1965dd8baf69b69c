// SPDX-License-Identifier: Apache-2.0
//! The store of a server: payloads of large chunks leave memory for the disk.
//!
//! Chunks become disk chunks where they come in ([`adopt`]), the [`sweep`] writes and forgets their
//! payloads while memory is short, and readers get plain chunks again ([`reading`]) after the lock
//! of the table. Nothing else of the server knows of it.

mod adopt;
mod reading;
mod sweep;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use reverb_base::process::generation;
use reverb_base::{Error, Result, StoreState};
use reverb_data::{Chunk, SampleOptions, Sampled, ServerAccount};
use reverb_engine::Table;
use reverb_files::{Disk, SystemDisk};
use reverb_store::Store;
use reverb_wire::generated::reverb::StoreStatus;
use tokio::runtime::Handle;

use adopt::AllPairs;
use adopt::LoadAdopter;
pub(crate) use adopt::{Adopter, LocalAdopter};
use reading::Reading;
use sweep::{Sweep, SweepSignal};

use crate::observe::diagnosis::FullServer;
use crate::observe::status::{nanoseconds, number};
use crate::service::memory::Memory;
use crate::service::server::ServerOptions;

/// Number of batches of which no item can be read back before a request fails.
pub(crate) const MAX_LOST_BATCHES: usize = 16;

/// Options of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Directory of its own; it is made if it is missing.
    pub path: PathBuf,
    /// Limit of all its files; absent: the file system less 5 %.
    pub max_bytes: Option<u64>,
    /// Whether payloads leave memory as soon as the sweep finds them, however much room there is.
    /// Tests of readers need that.
    pub forgets_at_once: bool,
}

/// A server's store, and what reads from it and writes to it.
#[derive(Debug)]
pub(crate) struct Tier {
    store: Arc<Store>,
    /// Account of the server. It is there before a checkpoint is loaded, whose payloads it counts.
    account: ServerAccount,
    reading: Reading,
    signal: Arc<SweepSignal>,
    pairs: Arc<AllPairs>,
    sweep: Mutex<Option<JoinHandle<()>>>,
    /// The process that has the threads; its children do not.
    generation: usize,
}

impl Tier {
    /// Opens the store of these options, if they have one.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the server has no `max_bytes`; errors of [`Store::open`].
    pub(crate) fn open(options: &ServerOptions, runtime: &Handle) -> Result<Option<Arc<Self>>> {
        Self::open_on(options, Arc::new(SystemDisk), runtime)
    }

    /// Like `open`, on another disk.
    fn open_on(
        options: &ServerOptions,
        disk: Arc<dyn Disk>,
        runtime: &Handle,
    ) -> Result<Option<Arc<Self>>> {
        let Some(store) = options.store.clone() else { return Ok(None) };
        let StoreOptions { path, max_bytes, forgets_at_once } = store;
        if options.max_bytes.is_none() {
            return Err(Error::invalid_argument(
                "Store(journal=False) needs max_bytes of the Server: without it nothing would go \
                 to disk.",
            ));
        }
        let options =
            reverb_store::StoreOptions { max_bytes, ..reverb_store::StoreOptions::new(path) };
        let store = Arc::new(Store::open(options, disk)?);
        Ok(Some(Arc::new(Self {
            store,
            account: ServerAccount::open(),
            reading: Reading::new(runtime.clone()),
            signal: Arc::new(SweepSignal::new(forgets_at_once)),
            pairs: Arc::default(),
            sweep: Mutex::default(),
            generation: generation(),
        })))
    }

    /// Makes disk chunks of the chunks of a checkpoint, for a server of `max_bytes`.
    pub(crate) fn adopter_of_load(&self, max_bytes: u64) -> LoadAdopter<'_> {
        LoadAdopter::new(&self.store, &self.account, max_bytes)
    }

    /// Makes disk chunks of the chunks of a writer of this process.
    pub(crate) fn adopter_of_writer(&self) -> LocalAdopter {
        self.pairs.adopter()
    }

    /// Begins to bring payloads of these tables to the disk.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if no thread can be started.
    pub(crate) fn begin_sweep(&self, memory: &Arc<Memory>, tables: &[Arc<Table>]) -> Result<()> {
        let sweep = Sweep {
            signal: Arc::clone(&self.signal),
            memory: Arc::clone(memory),
            store: Arc::clone(&self.store),
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

    /// Bytes that its files may take.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.store.status().max_bytes
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

    /// The payloads that have to be written before a full server has room again; `None` if that
    /// does not depend on the speed of the disk.
    pub(crate) fn unwritten(&self, memory: &Memory, shows_path: bool) -> Option<FullServer> {
        let status = self.store.status();
        let unwritten_bytes = memory.resident_bytes();
        let helps = status.state == StoreState::Ok && self.may_free() && unwritten_bytes > 0;
        let path = || status.path.to_string_lossy().into_owned();
        helps.then(|| FullServer::Disk {
            place: if shows_path { path() } else { "the disk".to_owned() },
            unwritten_bytes,
            bytes_per_second: status.write_speed,
        })
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
        let status = self.store.status();
        let failing_since_ns = status.failure.as_ref().map_or(0, |it| nanoseconds(it.since));
        let error = status.failure.map_or_else(String::new, |it| it.error);
        let errors_of = |reads: bool| {
            let errors = status.errors.iter().filter(|errors| (errors.call == "read") == reads);
            number(errors.map(|errors| errors.count).sum())
        };
        StoreStatus {
            path: status.path.to_string_lossy().into_owned(),
            state: status.state.name().to_owned(),
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
        }
    }

    /// The plain chunks of these, in their order. Waits as `read`.
    pub(crate) async fn load(&self, chunks: &[Chunk]) -> Vec<Result<Chunk>> {
        self.reading.load(chunks).await
    }

    /// Ends the sweep, and closes the store. Blocks for some seconds if the disk hangs.
    pub(crate) fn stop(&self) {
        if self.generation != generation() {
            return;
        }
        self.signal.stop();
        self.store.stop();
        if let Some(sweep) = self.sweep.lock().take() {
            // It waits for nothing but the store.
            let _ = sweep.join();
        }
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.stop();
    }
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
