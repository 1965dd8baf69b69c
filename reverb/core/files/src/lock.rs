// SPDX-License-Identifier: Apache-2.0
//! File locks (`flock`). A lock lasts until it is dropped or its process ends.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use reverb_base::process::generation;
use reverb_base::{PerProcess, Unreadable, open_directory, open_file};

/// Locked files, by a number.
static HELD: PerProcess<Mutex<BTreeMap<u64, File>>> = PerProcess::new();

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// While this value exists, the same file cannot be locked again, by this process or another.
#[derive(Debug)]
pub struct FileLock {
    generation: usize,
    number: u64,
}

impl FileLock {
    /// Locks an open file. The caller may close the file afterwards. Never waits.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it is locked already; other errors if the file system has no locks.
    pub fn try_new(file: &File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = file.try_clone().map_err(TryLockError::Error)?;
        HELD.with(|held| held.insert(number, file));
        Ok(Self { generation: generation(), number })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.generation != generation() {
            // In a child process: unlocking the file would also unlock it in the parent.
            return;
        }
        if let Some(file) = HELD.with(|held| held.remove(&self.number)) {
            // Closing is not enough: C code may have forked a child that has the file open.
            let _ = file.unlock();
        }
    }
}

/// Leaves the locks to the parent. Must be called in the child of a fork. Otherwise the locks would
/// outlive a killed parent until its children end.
pub fn leave_locks_to_parent() {
    for files in HELD.inherited() {
        // Another thread of the parent may have held the lock during the fork.
        if let Some(mut files) = files.try_lock() {
            files.clear();
        }
    }
}

/// Opens a file to lock it. On NFS the file must be open for writing.
pub fn open_to_lock(path: &Path) -> Result<File, Unreadable> {
    let file = open_file(path, OpenOptions::new().read(true).write(true));
    file.or_else(|why| match why {
        Unreadable::Refused(error) if error.kind() != io::ErrorKind::NotFound => {
            open_file(path, OpenOptions::new().read(true))
        }
        why => Err(why),
    })
}

/// Returns true if a file is locked; an error if that cannot be determined.
pub fn is_locked(path: &Path) -> io::Result<bool> {
    // Shared, because other processes may check at the same time.
    match open_file(path, OpenOptions::new().read(true))?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks a directory for short operations that exclude each other. On file systems without locks it
/// does nothing, so two servers should not share a directory there.
pub fn lock_directory(path: &Path) -> Option<File> {
    let directory = open_directory(path).ok()?;
    directory.lock().ok().map(|()| directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_lasts_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(is_locked(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let lock = FileLock::try_new(&File::create(&path).unwrap()).unwrap();
        assert!(is_locked(&path).unwrap() && is_locked(&path).unwrap());
        let again = FileLock::try_new(&open_to_lock(&path).unwrap());
        assert!(matches!(again, Err(TryLockError::WouldBlock)));
        // This process is not a child, so it keeps its locks.
        leave_locks_to_parent();
        assert!(is_locked(&path).unwrap());
        drop(lock);
        assert!(!is_locked(&path).unwrap());
        FileLock::try_new(&open_to_lock(&path).unwrap()).unwrap();
    }
}
