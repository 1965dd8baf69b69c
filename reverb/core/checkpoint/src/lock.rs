// SPDX-License-Identifier: Apache-2.0
//! Locks on files (`flock`): they last until they are dropped, and no longer than their process.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A lock that somebody holds while the process forks stays locked in the child, so the two use
/// different ones.
const REGISTRIES: usize = 64;

/// Locked files by the process that locked them, and by number.
static HELD: [Mutex<BTreeMap<(u32, u64), File>>; REGISTRIES] =
    [const { Mutex::new(BTreeMap::new()) }; REGISTRIES];

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Nobody else, in this process or another, can lock the same file as long as this is there.
#[derive(Debug)]
pub(crate) struct FileLock {
    key: (u32, u64),
}

impl FileLock {
    /// Locks an open file, which may be closed afterwards. Never waits.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if somebody else has locked it; other errors if the file system has no locks.
    pub(crate) fn try_new(file: &File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        let key = (std::process::id(), NEXT_NUMBER.fetch_add(1, Ordering::Relaxed));
        let file = file.try_clone().map_err(TryLockError::Error)?;
        registry(key.0).lock().insert(key, file);
        Ok(Self { key })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.key.0 != std::process::id() {
            // The file is the same one in the parent, and unlocking it would unlock it there.
            return;
        }
        if let Some(file) = registry(self.key.0).lock().remove(&self.key) {
            // Some C code may have forked, and its child has the file open: closing will not do.
            let _ = file.unlock();
        }
    }
}

fn registry(process: u32) -> &'static Mutex<BTreeMap<(u32, u64), File>> {
    &HELD[process as usize % REGISTRIES]
}

/// To be called in the child of a fork: leaves the locks to the parent alone. Otherwise they would
/// outlive a parent that is killed, until its children end.
pub fn leave_locks_to_parent() {
    for registry in &HELD {
        if let Some(mut held) = registry.try_lock() {
            held.retain(|key, _| key.0 == std::process::id());
        }
    }
}

/// Opens a file in order to lock it. On NFS that needs a file that may be written.
pub(crate) fn open_to_lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Err(error),
        _ => File::open(path),
    })
}

/// Whether somebody has locked a file; an error if that cannot be known.
pub(crate) fn is_locked(path: &Path) -> io::Result<bool> {
    // Shared, for others may look at the same time.
    match File::open(path)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// A lock on a directory for moments in which others must not look. On file systems without locks
/// it locks nothing, and two servers should not share a directory.
pub(crate) fn lock_directory(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
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
        // This is no child: what is its own stays.
        leave_locks_to_parent();
        assert!(is_locked(&path).unwrap());
        drop(lock);
        assert!(!is_locked(&path).unwrap());
        FileLock::try_new(&open_to_lock(&path).unwrap()).unwrap();
    }
}
