// SPDX-License-Identifier: Apache-2.0
//! A store: the handle of its users.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use reverb_base::{Error, byte_size};
use reverb_data::Chunk;
use reverb_files::Disk;

use crate::counts::Counts;
use crate::data_files::{DataFiles, FilesToEmpty};
use crate::directory::Directory;
use crate::head::FileKind;
use crate::open_file::Waker;
use crate::queue::{Queue, Refusal, Task, Written};
use crate::status::StoreStatus;
use crate::writer;

/// Bytes that wait before `write` does. They are in memory anyway.
const MAX_WAITING_BYTES: u64 = 32 << 20;

/// Most bytes of one write.
const MAX_WRITE_BYTES: usize = 1 << 20;

/// Most bytes of a file while all of them together have less than 64 times as many.
const FILE_BYTES: u64 = 128 << 20;

/// Most bytes of any file.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Smallest budget, in files.
const MIN_FILES: u64 = 8;

/// Time that a stop waits for the disk.
const MAX_STOP: Duration = Duration::from_secs(5);

/// What a user chooses of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Its directory, made if it is missing.
    pub path: PathBuf,
    /// Bytes that its files may take; `None`: the file system less 5 %.
    pub max_bytes: Option<u64>,
    /// Bytes of a file while there are few. Larger stores have larger files.
    pub min_file_bytes: u64,
    /// Time after which a disk that has failed is tried again.
    pub retry_after: Duration,
}

impl StoreOptions {
    /// The usual options.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            max_bytes: None,
            min_file_bytes: 8 << 20,
            retry_after: Duration::from_secs(10),
        }
    }

    /// Checks the budget.
    pub(crate) fn check(&self) -> reverb_base::Result<()> {
        let least = MIN_FILES * self.min_file_bytes;
        match self.max_bytes.filter(|&given| given < least) {
            Some(given) => Err(Error::invalid_argument(format!(
                "Store(max_bytes) must be at least {}, got {}",
                byte_size::describe(least),
                byte_size::describe(given)
            ))),
            None => Ok(()),
        }
    }
}

/// Payloads of chunks in a directory, and the thread that writes them. Dropping it deletes its
/// files; payloads in them can still be read.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: StoreOptions,
    pub(crate) directory: Directory,
    pub(crate) files: Mutex<DataFiles>,
    pub(crate) queue: Mutex<Queue>,
    /// Tells those that wait for the thread.
    pub(crate) served: Condvar,
    pub(crate) counts: Arc<Counts>,
    pub(crate) waker: Arc<Waker>,
    /// Bytes that files may take, as it was seen last.
    budget: AtomicU64,
}

impl Store {
    /// Takes the directory for this process, and starts the thread.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a budget that is too small. `FailedPrecondition` if the path is no
    /// directory, cannot be written or locked, is a journal, or is in use by another store.
    pub fn open(options: StoreOptions, disk: Arc<dyn Disk>) -> reverb_base::Result<Self> {
        options.check()?;
        let directory = Directory::open(&options.path, disk)?;
        let shared = Arc::new(Shared::new(options, directory));
        let writing = shared.clone();
        let thread = std::thread::Builder::new().name("reverb-store".to_owned());
        let started = thread.spawn(move || {
            writing.waker.set_thread();
            writer::run(&writing);
        });
        match started {
            Ok(_) => Ok(Self { shared }),
            Err(error) => Err(Error::new(
                reverb_base::ErrorKind::ResourceExhausted,
                format!("The thread of the store cannot be started: {error}."),
            )),
        }
    }

    /// Gives payloads to be written, and forgotten if `forget` is true. Chunks whose payloads have
    /// a place are not written again, and neither are those that nobody else refers to when their
    /// turn comes. Waits while too many bytes wait.
    ///
    /// Returns false if the store does not take them now: its disk has failed, it is full, or it
    /// is stopped. Payloads that wait at such a moment are given up; their chunks have no place.
    pub fn write(&self, chunks: Vec<Chunk>, forget: bool) -> bool {
        self.give(chunks, if forget { Task::WriteAndForget } else { Task::Write })
    }

    /// Gives payloads to be moved out of files that are to be emptied; the others stay where they
    /// are. Otherwise like `write`, but a full store takes them.
    pub fn move_out(&self, chunks: Vec<Chunk>) -> bool {
        self.give(chunks, Task::Move)
    }

    fn give(&self, chunks: Vec<Chunk>, task: Task) -> bool {
        if !self.shared.waker.is_mine() {
            return false;
        }
        let mut queue = self.shared.queue.lock();
        while queue.accepts(task) && queue.waiting_bytes >= MAX_WAITING_BYTES {
            self.shared.served.wait(&mut queue);
        }
        let is_taken = queue.accepts(task);
        if is_taken {
            for chunk in chunks.into_iter().filter(Chunk::is_disk_chunk) {
                queue.push(chunk, task);
            }
        }
        drop(queue);
        self.shared.waker.wake();
        is_taken
    }

    /// Bytes of payloads that were given and are not written yet.
    pub fn waiting_bytes(&self) -> u64 {
        self.shared.queue.lock().waiting_bytes
    }

    /// Waits until all that was given is written, or given up.
    pub fn wait_until_written(&self) {
        let mut queue = self.shared.queue.lock();
        while self.shared.waker.is_mine() && queue.num_waiting > 0 && !queue.has_ended {
            self.shared.served.wait(&mut queue);
        }
    }

    /// The files whose payloads are to be moved out now: the emptiest, above 30 % of garbage, or
    /// of any garbage while the budget is nearly used up.
    pub fn to_empty(&self) -> FilesToEmpty {
        self.shared.to_empty()
    }

    /// State and counts.
    pub fn status(&self) -> StoreStatus {
        self.shared.status()
    }

    /// Ends the thread and deletes the files. A disk that hangs is left after 5 s.
    pub fn stop(&self) {
        if !self.shared.waker.is_mine() {
            return;
        }
        let mut queue = self.shared.queue.lock();
        queue.is_closed = true;
        self.shared.served.notify_all();
        self.shared.waker.wake();
        let end = Instant::now() + MAX_STOP;
        while !queue.has_ended {
            if self.shared.served.wait_until(&mut queue, end).timed_out() {
                tracing::warn!(
                    "store {}: the disk does not answer, so its files are left there",
                    self.shared.options.path.display()
                );
                return;
            }
        }
        self.shared.directory.unlock();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    pub(crate) fn new(options: StoreOptions, directory: Directory) -> Self {
        let shared = Self {
            files: Mutex::new(DataFiles::new(directory.first_number)),
            options,
            directory,
            queue: Mutex::default(),
            served: Condvar::new(),
            counts: Arc::default(),
            waker: Arc::new(Waker::new()),
            budget: AtomicU64::new(0),
        };
        shared.room();
        shared
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.files.lock().sizes().used()
    }

    /// Bytes of all files.
    pub(crate) fn all_bytes(&self) -> u64 {
        let Counts { log_bytes, base_bytes, .. } = &*self.counts;
        self.used_bytes() + log_bytes.load(Relaxed) + base_bytes.load(Relaxed)
    }

    /// Bytes at which a new file ends.
    pub(crate) fn file_bytes(&self) -> u64 {
        let all = self.used_bytes();
        let least = self.options.min_file_bytes;
        let few = (all / 16).clamp(least, FILE_BYTES.max(least));
        few.max((all / 64).min(MAX_FILE_BYTES))
    }

    /// Room that is left for emptying a file, which needs some for what lives in it.
    pub(crate) fn kept_back(&self) -> u64 {
        let file_bytes = self.file_bytes();
        file_bytes + file_bytes / 4
    }

    /// Most bytes of one write, a small part of a file.
    pub(crate) fn write_bytes(&self) -> usize {
        MAX_WRITE_BYTES.min(self.options.min_file_bytes as usize / 8)
    }

    /// Bytes that files may still grow by.
    pub(crate) fn room(&self) -> u64 {
        let used = self.all_bytes();
        let budget = self.options.max_bytes.unwrap_or_else(|| {
            let space = self.directory.disk.space(&self.directory.path);
            // A disk that does not answer fails at the next write.
            space.map_or(u64::MAX, |space| {
                used + space.available_bytes.saturating_sub(space.total_bytes / 20)
            })
        });
        self.budget.store(budget, Relaxed);
        budget.saturating_sub(used)
    }

    /// The files whose payloads are to be moved out now.
    pub(crate) fn to_empty(&self) -> FilesToEmpty {
        let budget = self.budget.load(Relaxed);
        let next_base = self.counts.next_base_bytes.load(Relaxed);
        let scarce = (budget / 20).max(3 * self.file_bytes()) + next_base;
        let room = budget.saturating_sub(self.all_bytes());
        let mut files = self.files.lock();
        files.choose(if room < scarce { budget / 20 } else { 0 }, room)
    }

    /// Bytes that files may take, as it was seen last.
    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// A write was refused. It is tried again after a while.
    pub(crate) fn set_trouble(&self, refusal: &Refusal) {
        let retry_at = Instant::now() + self.options.retry_after;
        self.queue.lock().set_trouble(refusal, retry_at);
    }

    /// Deletes data files.
    pub(crate) fn delete(&self, numbers: Vec<u32>) {
        for number in numbers {
            let path = self.directory.file(FileKind::Data, number);
            if self.directory.delete(&path, &self.counts) {
                self.files.lock().remove(number);
                self.queue.lock().retry_if_full();
            }
        }
    }

    /// Brings names to the disk.
    pub(crate) fn sync_directory(&self) -> Written {
        let path = &self.directory.path;
        let synced = self.directory.disk.sync_directory(path);
        synced.map_err(|error| self.failed_at("sync", path.clone(), error))
    }

    /// A call on a data file has failed.
    pub(crate) fn failed(&self, call: &'static str, number: u32, error: io::Error) -> Refusal {
        self.failed_at(call, self.directory.file(FileKind::Data, number), error)
    }

    /// A call on a path has failed.
    pub(crate) fn failed_at(&self, call: &'static str, path: PathBuf, error: io::Error) -> Refusal {
        self.counts.add_error(call, &error);
        Refusal::Failed { call, path, error }
    }
}
