// SPDX-License-Identifier: Apache-2.0
//! Saves of a server's tables, and their status.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_checkpoint::{Held, Progress, SaveOptions, Saved, ServerName, save};
use reverb_data::ShardIdentity;
use reverb_engine::Table;
use reverb_wire::generated::reverb::CheckpointStatusResponse;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use reverb_rpc::server::stopping;

use crate::observe::status::nanoseconds;
use crate::service::throttle::{HOURLY, Throttle};

/// Interval between log lines about progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Polling interval of a thread that waits for the end of a save.
const END_POLL: Duration = Duration::from_millis(5);

/// Place and times of a server's checkpoints.
#[derive(Debug, Clone)]
pub struct CheckpointOptions {
    /// The directory of checkpoints. If absent, the first save makes a temporary one.
    pub root: Option<PathBuf>,
    /// dm-reverb's argument `group`, which is not supported: saving fails unless it is empty.
    pub group: String,
    /// Number of checkpoints that are kept, at least 1.
    pub keep_latest: usize,
    /// Time from the start of one save to the next. If absent, there are no periodic saves.
    pub interval: Option<Duration>,
    /// The server name that is written into its checkpoints. Checkpoints of other servers in the
    /// directory are left alone.
    pub name: Option<ServerName>,
    /// The checkpoint that the tables were loaded from, with the time of its snapshot if known.
    pub restored_from: Option<(PathBuf, Option<SystemTime>)>,
    /// Locks on files, held until the server stops. The mutex is locked during a save.
    pub held: Arc<tokio::sync::Mutex<Held>>,
    /// Id of the server's journal, if it has one, which [`Server::open`] sets. Its checkpoints are
    /// not newer than that.
    ///
    /// [`Server::open`]: crate::Server::open
    pub store: Option<u128>,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            root: None,
            group: String::new(),
            keep_latest: 1,
            interval: None,
            name: None,
            restored_from: None,
            held: Arc::default(),
            store: None,
        }
    }
}

/// Runs saves one after another, and remembers the outcome of the last.
pub(crate) struct Checkpoints {
    options: CheckpointOptions,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Progress of the save that runs, or of the last one.
    progress: Arc<Progress>,
    is_saving: bool,
    is_stopped: bool,
    temporary_root: Option<PathBuf>,
    latest: Option<Latest>,
    latest_error: String,
    num_saved: i64,
    num_failed: i64,
    logged: Throttle<(), HOURLY>,
}

struct Latest {
    saved: Saved,
    /// Time of the snapshot, in nanoseconds since 1970.
    saved_at_ns: i64,
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoints").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Checkpoints {
    pub(crate) fn new(options: CheckpointOptions, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { options, runtime, state: Mutex::default() })
    }

    /// Saves the tables as of a moment after this call. Waits for earlier saves to end.
    ///
    /// The save continues when the future is dropped, because other callers may rely on it.
    /// `shard` is the server in its group.
    pub(crate) async fn save(
        self: &Arc<Self>,
        tables: &[Arc<Table>],
        shard: Option<ShardIdentity>,
    ) -> Result<String> {
        let this = Arc::clone(self);
        let tables = tables.to_vec();
        let saving = self.runtime.spawn(async move {
            let mut held = Arc::clone(&this.options.held).lock_owned().await;
            let progress = match this.begin() {
                Ok(progress) => progress,
                Err(error) => return this.end(Err(error)),
            };
            let logging = tokio::spawn(log_progress(Arc::clone(&progress)));
            let options = this.save_options(shard);
            let (sender, saved) = oneshot::channel();
            let checkpoints = Arc::clone(&this);
            // The save lowers the priority of its thread for good, so it gets a thread of its own.
            let thread = std::thread::Builder::new().name("reverb-save".to_owned());
            let thread = thread.spawn(move || {
                let saved = save(&tables, &options, &progress, &mut held);
                // The server may have stopped without waiting for the end of this save.
                if checkpoints.state.lock().is_stopped {
                    *held = Held::default();
                }
                // The receiver lives as long as the runtime.
                let _ = sender.send(saved);
            });
            let saved = match thread {
                Ok(_) => saved.await.unwrap_or_else(|_| Err(lost())),
                Err(error) => Err(no_thread(&error)),
            };
            logging.abort();
            this.end(saved)
        });
        saving.await.unwrap_or_else(|_| Err(lost()))
    }

    /// The status that clients can ask for.
    pub(crate) fn status(&self) -> CheckpointStatusResponse {
        let state = self.state.lock();
        let latest = state.latest.as_ref();
        let restored_from = self.options.restored_from.as_ref();
        CheckpointStatusResponse {
            is_saving: state.is_saving,
            items_written: state.progress.items_done() as i64,
            items_total: state.progress.items_total() as i64,
            bytes_written: state.progress.bytes_done() as i64,
            latest_path: latest.map_or_else(String::new, |latest| text(&latest.saved.path)),
            latest_saved_at_ns: latest.map_or(0, |latest| latest.saved_at_ns),
            latest_duration_s: latest.map_or(0.0, |latest| latest.saved.took.as_secs_f64()),
            latest_pause_ms: latest.map_or(0.0, |latest| latest.saved.locked.as_secs_f64() * 1e3),
            latest_bytes: latest.map_or(0, |latest| latest.saved.bytes as i64),
            latest_error: state.latest_error.clone(),
            num_saved: state.num_saved,
            num_failed: state.num_failed,
            restored_from: restored_from.map_or_else(String::new, |(path, _)| text(path)),
            restored_saved_at_ns: restored_from.and_then(|(_, at)| *at).map_or(0, nanoseconds),
            interval_s: self.options.interval.map_or(0.0, |interval| interval.as_secs_f64()),
        }
    }

    /// Cancels the save in progress, and refuses new ones.
    pub(crate) fn cancel(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        state.progress.cancel();
    }

    /// Blocks until no save is in progress, at most for `limit`. After that, other servers may load
    /// and delete this server's checkpoints, and use its name.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        let start = Instant::now();
        loop {
            if let Ok(mut held) = self.options.held.try_lock() {
                *held = Held::default();
                return;
            }
            if start.elapsed() >= limit {
                return tracing::warn!("the server stops; the checkpoint in progress is aborted");
            }
            std::thread::sleep(END_POLL);
        }
    }

    fn begin(&self) -> Result<Arc<Progress>> {
        let mut state = self.state.lock();
        if state.is_stopped {
            return Err(stopping());
        }
        if state.temporary_root.is_none() && self.options.root.is_none() {
            state.temporary_root = Some(temporary_directory()?);
        }
        state.progress = Arc::default();
        state.is_saving = true;
        Ok(Arc::clone(&state.progress))
    }

    fn save_options(&self, shard: Option<ShardIdentity>) -> SaveOptions {
        let root = self.options.root.clone();
        let root = root.or_else(|| self.state.lock().temporary_root.clone());
        SaveOptions {
            root: root.unwrap_or_default(),
            group: self.options.group.clone(),
            keep_latest: self.options.keep_latest,
            name: self.options.name.clone(),
            shard,
            store: self.options.store,
        }
    }

    fn end(&self, saved: Result<Saved>) -> Result<String> {
        let mut state = self.state.lock();
        state.is_saving = false;
        match saved {
            Ok(saved) => {
                let Saved { path, num_items, bytes, taken_at, took, locked } = &saved;
                let news = format!(
                    "checkpoint {}: {num_items} items, {bytes} bytes, in {took:?}; the tables were \
                     locked for {locked:?}",
                    path.display()
                );
                // One line now and then shows operators that saves continue.
                match state.logged.count((), 1, SystemTime::now()) {
                    None => tracing::debug!("{news}"),
                    Some(1) => tracing::info!("{news}"),
                    Some(saves) => tracing::info!(saves, "{news}; logged once an hour"),
                }
                let path = text(path);
                let saved_at_ns = nanoseconds(*taken_at);
                state.latest = Some(Latest { saved, saved_at_ns });
                state.latest_error.clear();
                state.num_saved += 1;
                Ok(path)
            }
            Err(error) => {
                error.message().clone_into(&mut state.latest_error);
                state.num_failed += 1;
                Err(error)
            }
        }
    }
}

/// Makes a directory that only this user can access.
fn temporary_directory() -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("reverb-{:016x}", rand::random::<u64>()));
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(&path);
    made.map_err(|error| {
        let text = format!("Checkpoint: cannot create directory {}: {error}.", path.display());
        Error::failed_precondition(text)
    })?;
    Ok(path)
}

/// Logs the progress of a save periodically.
async fn log_progress(progress: Arc<Progress>) {
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        tracing::debug!(
            "checkpoint: {} of {} items and {} bytes are written",
            progress.items_done(),
            progress.items_total(),
            progress.bytes_done()
        );
    }
}

/// A path as text, for a message.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::resource_exhausted(format!("Checkpoint: cannot start a thread to write it: {error}."))
}

fn lost() -> Error {
    Error::internal("A checkpoint ended without a result.")
}
