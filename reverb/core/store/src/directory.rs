// SPDX-License-Identifier: Apache-2.0
//! The directory of a store: whether it may be used, its lock, and what was left in it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use reverb_base::{Error, Result, open_file};
use reverb_files::{Disk, FileLock, FileSystem, Owner};

use crate::counts::Counts;
use crate::head::{FileKind, Head, StoreId, USED_BYTES, is_of_journal};
use crate::listing::Listing;
use crate::pace::Pace;

const LOCK: &str = "LOCK";

/// The lock file has a line.
const MAX_LOCK_BYTES: u64 = 4096;

/// Time that a start waits for a store that is shutting down.
const MAX_WAIT: Duration = Duration::from_secs(1);

const POLL: Duration = Duration::from_millis(20);

/// A directory that this process alone uses as a store.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    /// In the head of each of its files.
    pub(crate) id: StoreId,
    /// Above those of all files that were there.
    pub(crate) first_number: u32,
    /// Number of the newest log, as far as the lock file says it; else 0. The log may be gone.
    pub(crate) newest_log: u32,
    /// The last commit of a server that has stopped, so far as the lock file says it; else 0.
    pub(crate) stopped_at: u64,
    /// True if its files survive this process.
    pub(crate) is_journal: bool,
    /// How fast its files are read.
    pub(crate) pace: Option<Arc<Pace>>,
    /// `None` after the store has ended.
    lock: Mutex<Option<(FileLock, File)>>,
}

impl Directory {
    /// Lets another store have the directory.
    pub(crate) fn unlock(&self) {
        drop(self.lock.lock().take());
    }

    /// Takes a directory, makes it if it is missing, and deletes what an earlier process left.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if it is no directory, may not be written, is a journal, is in use by
    /// another store, or has no locks.
    pub(crate) fn open(path: &Path, disk: Arc<dyn Disk>) -> Result<Self> {
        let refused = |error: &io::Error| is_unusable(path, error);
        make(path).map_err(|error| refused(&error))?;
        let names = disk.list(path).map_err(|error| refused(&error))?;
        let is_journal = |name: &&std::ffi::OsString| {
            let text = name.to_string_lossy();
            (text.starts_with("log-") || text.starts_with("base-"))
                && read_start(&*disk, &path.join(name)).is_some_and(|start| is_of_journal(&start))
        };
        if names.iter().any(|name| is_journal(&name)) {
            return Err(Error::failed_precondition(format!(
                "store {} is a journal: open it without journal=False, or give an empty directory",
                path.display()
            )));
        }
        let mut directory = Self::take(path, disk, false)?;
        directory.warn_of_file_system();
        directory.first_number = directory.delete_left_files().map_err(|error| refused(&error))?;
        Ok(directory)
    }

    /// Takes a directory for a journal, makes it if it is missing, and lists its files. Nothing is
    /// deleted.
    ///
    /// # Errors
    ///
    /// As `open`, but not for a journal; `DataLoss` if a file is of another store.
    pub(crate) fn open_journal(path: &Path, disk: Arc<dyn Disk>) -> Result<(Self, Listing)> {
        make(path).map_err(|error| is_unusable(path, &error))?;
        let mut directory = Self::take(path, disk, true)?;
        directory.warn_of_file_system();
        let listing = Listing::read(&mut directory)?;
        Ok((directory, listing))
    }

    /// Takes a directory in which a journal was left.
    ///
    /// # Errors
    ///
    /// As `open_journal`; `FailedPrecondition` if there is no journal.
    pub(crate) fn open_left(
        path: &Path,
        disk: Arc<dyn Disk>,
        pace: Arc<Pace>,
    ) -> Result<(Self, Listing)> {
        let refused = |why: &str| Error::failed_precondition(format!("{} {why}", path.display()));
        let names = disk.list(path);
        let names = names.map_err(|error| {
            refused(&format!("is no store that can be read: {}", without_number(&error)))
        })?;
        let mut is_tier = true;
        let mut is_store = false;
        for name in &names {
            let Some((kind, _)) = parse_name(&name.to_string_lossy()) else { continue };
            let head = read_start(&*disk, &path.join(name)).as_ref().and_then(Head::parse);
            is_store = true;
            is_tier &= kind == FileKind::Data && head.is_some_and(|head| head.is_tier);
        }
        if !is_store {
            return Err(refused("is no store: it has no files of one"));
        }
        if is_tier {
            return Err(refused("is no journal: what is in it was of use to its server alone"));
        }
        let mut directory = Self::take(path, disk, true)?;
        directory.pace = Some(pace);
        let listing = Listing::read(&mut directory)?;
        Ok((directory, listing))
    }

    /// Moves files of the store to a directory in its own, and returns the path of that.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the system refuses it.
    pub(crate) fn set_aside(
        &self,
        name: &str,
        is_moved: impl Fn(FileKind, u32) -> bool,
    ) -> Result<PathBuf> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let aside = self.path.join(format!("{name}-{seconds}"));
        let moved = || -> io::Result<()> {
            fs::create_dir_all(&aside)?;
            for name in self.disk.list(&self.path)? {
                let found = parse_name(&name.to_string_lossy());
                if found.is_some_and(|(kind, number)| is_moved(kind, number)) {
                    self.disk.rename(&self.path.join(&name), &aside.join(&name))?;
                }
            }
            self.disk.sync_directory(&aside)?;
            self.disk.sync_directory(&self.path)
        };
        moved().map_err(|error| is_unusable(&self.path, &error))?;
        Ok(aside)
    }

    fn take(path: &Path, disk: Arc<dyn Disk>, is_journal: bool) -> Result<Self> {
        let (mut file, lock) = take_lock(path)?;
        let LockText { id, newest_log, stopped_at, .. } = read_lock(&mut file);
        let id = id.unwrap_or_else(rand::random);
        let written = write_lock(&file, id, newest_log, stopped_at);
        written.map_err(|error| is_unusable(path, &error))?;
        let (path, lock) = (path.to_owned(), Mutex::new(Some((lock, file))));
        Ok(Self {
            path,
            disk,
            id,
            first_number: 1,
            newest_log,
            stopped_at,
            is_journal,
            pace: None,
            lock,
        })
    }

    /// Fails if the directory has another lock file, or is not there: it was moved, deleted, or
    /// another server has it. A lock file that was deleted alone is made again.
    pub(crate) fn find_own(&self, newest_log: Option<u32>) -> io::Result<()> {
        let path = self.path.join(LOCK);
        let mut lock = self.lock.lock();
        let Some((_, file)) = &*lock else { return Ok(()) };
        let own = file.metadata()?;
        match fs::metadata(&path) {
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => return Ok(()),
            Ok(_) => return Err(io::Error::other("another server has taken the directory")),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        let newest = newest_log.map(|number| self.file(FileKind::Log, number));
        if newest.is_some_and(|newest| self.disk.open(&newest).is_err()) {
            return Err(io::Error::other("its files were moved or deleted"));
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let taken = FileLock::try_new(&file)
            .map_err(|_| io::Error::other("another server has taken the directory"))?;
        write_lock(&file, self.id, newest_log.unwrap_or_default(), 0)?;
        *lock = Some((taken, file));
        Ok(())
    }

    /// Says in the lock file that a log is the newest one, once its name is on disk: if somebody
    /// deletes it, a start learns of it. An older number does no harm, so this needs no sync.
    pub(crate) fn set_newest_log(&self, number: u32) {
        self.write_lock(number, 0);
    }

    /// Says in the lock file that a server has stopped with this commit, so that whatever is
    /// missing later was damaged.
    pub(crate) fn set_stopped(&self, newest_log: u32, commit: u64) {
        self.write_lock(newest_log, commit);
    }

    fn write_lock(&self, newest_log: u32, stopped_at: u64) {
        let lock = self.lock.lock();
        let Some((_, file)) = &*lock else { return };
        if let Err(error) = write_lock(file, self.id, newest_log, stopped_at) {
            tracing::warn!("store {}: cannot write {LOCK}: {error}", self.path.display());
        }
    }

    /// Path of a file.
    pub(crate) fn file(&self, kind: FileKind, number: u32) -> PathBuf {
        self.path.join(format!("{}{number:010}.seg", kind.prefix()))
    }

    /// Deletes a file. Returns false, and tells why, if it is still there.
    pub(crate) fn delete(&self, path: &Path, counts: &Counts) -> bool {
        match self.disk.delete(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                counts.add_error("delete", &error);
                tracing::warn!("store: cannot delete {}: {error}", path.display());
                false
            }
            _ => true,
        }
    }

    /// Deletes data files of earlier processes, and nothing else. Returns a number that no file
    /// has.
    fn delete_left_files(&self) -> io::Result<u32> {
        let (mut next, mut num_foreign) = (1, 0);
        for name in self.disk.list(&self.path)? {
            let found = parse_name(&name.to_string_lossy());
            let Some((FileKind::Data, number)) = found else { continue };
            next = next.max(number.saturating_add(1));
            let path = self.path.join(&name);
            match read_start(&*self.disk, &path).as_ref().and_then(Head::parse) {
                Some(head) if self.is_of_tier(&head, number) => {
                    self.disk.delete(&path)?;
                }
                _ => num_foreign += 1,
            }
        }
        if num_foreign > 0 {
            tracing::warn!(
                "store {}: {num_foreign} data files there are not of this store, so they stay; \
                 delete them if nothing needs them",
                self.path.display()
            );
        }
        Ok(next)
    }

    /// Returns true if the data file with a number is of this store and of an earlier process, for
    /// which alone it was.
    pub(crate) fn is_of_tier(&self, head: &Head, number: u32) -> bool {
        let Head { kind, is_tier, store, .. } = head;
        let is_ours = *store == self.id && head.number == number && !head.is_newer();
        *kind == FileKind::Data && *is_tier && is_ours
    }

    fn warn_of_file_system(&self) {
        let why = match self.disk.kind(&self.path) {
            Ok(FileSystem::Memory) => "a file system in memory (tmpfs), so nothing is saved",
            Ok(FileSystem::Overlay) => {
                "the layer of a container (overlayfs), which is slow and small: mount a volume"
            }
            Ok(FileSystem::Network) => "a network file system (NFS): a local disk is faster",
            Ok(FileSystem::Other) | Err(_) => return,
        };
        tracing::warn!("store {} is on {why}", self.path.display());
    }
}

/// Makes the directory, for its owner only, if it is missing.
fn make(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(path)
        }
        Err(error) => Err(error),
    }
}

/// Locks the directory, and waits a moment for a store that is shutting down.
fn take_lock(path: &Path) -> Result<(File, FileLock)> {
    let lock = path.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let mut file = open_file(&lock, &mut options).map_err(|why| is_unusable(path, &why.into()))?;
    let start = Instant::now();
    loop {
        match FileLock::try_new(&file) {
            Ok(taken) => return Ok((file, taken)),
            Err(TryLockError::WouldBlock) if start.elapsed() < MAX_WAIT => {
                std::thread::sleep(POLL);
            }
            Err(TryLockError::WouldBlock) => {
                let owner = read_lock(&mut file).owner.or_else(|| Owner::of_lock(&lock));
                let owner = owner.map_or_else(|| "another process".into(), |it| it.to_string());
                return Err(Error::failed_precondition(format!(
                    "store {} is in use by {owner}",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => {
                return Err(Error::failed_precondition(format!(
                    "store {} is on a file system without locks ({}), where two servers could use \
                     it at once: give a directory of a local disk",
                    path.display(),
                    without_number(&error)
                )));
            }
        }
    }
}

/// What a lock file says.
#[derive(Debug, Default)]
struct LockText {
    owner: Option<Owner>,
    id: Option<StoreId>,
    newest_log: u32,
    stopped_at: u64,
}

fn read_lock(file: &mut File) -> LockText {
    let mut text = String::new();
    let _ = io::Seek::rewind(file);
    let _ = file.take(MAX_LOCK_BYTES).read_to_string(&mut text);
    let mut words = text.split_whitespace();
    let owner = words.next().and_then(|word| word.parse().ok());
    let id = words.next().filter(|word| word.len() == 32);
    let id = id.and_then(|word| u128::from_str_radix(word, 16).ok()).map(u128::to_be_bytes);
    // After the time.
    let newest_log = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    let stopped_at = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    LockText { owner, id, newest_log, stopped_at }
}

/// Says in the lock file who has it, the id of the store, the time, the newest log, and the last
/// commit of a server that has stopped.
fn write_lock(file: &File, id: StoreId, newest_log: u32, stopped_at: u64) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (owner, id) = (Owner::here().to_word(), u128::from_be_bytes(id));
    let line = format!("{owner} {id:032x} {now} {newest_log} {stopped_at}\n");
    file.write_all_at(line.as_bytes(), 0)?;
    file.set_len(line.len() as u64)
}

/// Kind and number in the name of a file.
pub(crate) fn parse_name(name: &str) -> Option<(FileKind, u32)> {
    let kind = FileKind::ALL.into_iter().find(|kind| name.starts_with(kind.prefix()))?;
    let digits = name.strip_prefix(kind.prefix())?.strip_suffix(".seg")?;
    let number = digits.parse().ok().filter(|_| digits.len() == 10)?;
    Some((kind, number))
}

/// The first bytes of a file; `None` if it cannot be read or is shorter.
pub(crate) fn read_start(disk: &dyn Disk, path: &Path) -> Option<[u8; USED_BYTES]> {
    let mut start = [0; USED_BYTES];
    disk.open(path).ok()?.read_exact_at(&mut start, 0).ok()?;
    Some(start)
}

pub(crate) fn is_unusable(path: &Path, error: &io::Error) -> Error {
    Error::failed_precondition(format!(
        "Store(path) must be a directory that this process may write to, got {}: {}",
        path.display(),
        without_number(error)
    ))
}

/// The text of an error without the system's number.
fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).to_owned()
}
