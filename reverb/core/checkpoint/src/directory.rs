// SPDX-License-Identifier: Apache-2.0
//! The directory of checkpoints: names, completeness, owners, and deletion.
//!
//! A checkpoint is written in a directory `.partial-*`, which is renamed when all of it is on disk.
//! A server that writes or loads a checkpoint locks its tables file (`flock`) for as long as the
//! server runs. So other processes can see which checkpoints are in use. A lock ends with its
//! process, even if that is killed. The manifest contains the name of the server.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, FixedOffset, Local, TimeDelta};
use reverb_base::{Result, open_directory};

use crate::failure::from_io;
use crate::held::{Held, HeldCheckpoint};
use crate::manifest::Manifest;
use crate::name::ServerName;
use reverb_files::{FileLock, is_locked, lock_directory};

pub(crate) const TABLES: &str = "tables.tfrecord";
pub(crate) const ITEMS: &str = "items.tfrecord";
pub(crate) const CHUNKS: &str = "chunks.tfrecord";
pub(crate) const DONE: &str = "DONE";

/// Prefix of the directory name of a checkpoint that is being written or deleted.
const PARTIAL: &str = ".partial-";

/// The complete checkpoint that a server on `root` restores: the last one, as in dm-reverb, or the
/// last one that a server of this name saved.
///
/// # Errors
///
/// `FailedPrecondition` if `root` exists and cannot be read.
pub(crate) fn latest(root: &Path, server: Option<&ServerName>) -> Result<Option<PathBuf>> {
    for name in names(root)?.into_iter().rev() {
        let path = root.join(name);
        if is_complete(&path)? && server.is_none_or(|server| may_be_of(&path, server)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns true if a server of this name saved a checkpoint, or if that cannot be determined: then
/// loading it fails with the reason, while skipping it would load an older checkpoint.
fn may_be_of(path: &Path, server: &ServerName) -> bool {
    Manifest::read_or_empty(path).map_or(true, |manifest| manifest.name.as_ref() == Some(server))
}

/// Returns true if a directory is a complete checkpoint.
///
/// # Errors
///
/// `FailedPrecondition` if this process may not read it: skipping it would load an older
/// checkpoint.
pub(crate) fn is_complete(path: &Path) -> Result<bool> {
    match path.join(DONE).try_exists() {
        // A plain file contains no checkpoint.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        found => found.map_err(|error| from_io("look into", path, &error)),
    }
}

/// Names in `root` that may be checkpoints, sorted by their bytes. Empty if the directory does not
/// exist.
fn names(root: &Path) -> Result<Vec<OsString>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(from_io("list", root, &error)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names: Vec<_> =
        names.collect::<io::Result<_>>().map_err(|error| from_io("list", root, &error))?;
    names.retain(|name| !is_partial(name));
    names.sort_by(|a, b| a.as_encoded_bytes().cmp(b.as_encoded_bytes()));
    Ok(names)
}

/// Names of the complete checkpoints in a directory, sorted. Empty if it cannot be read.
pub(crate) fn complete(root: &Path) -> Vec<String> {
    let names = names(root).unwrap_or_default();
    let complete = names.iter().filter(|name| matches!(is_complete(&root.join(name)), Ok(true)));
    complete.map(|name| name.to_string_lossy().into_owned()).collect()
}

fn is_partial(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PARTIAL.as_bytes())
}

/// A checkpoint that is being written. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct Partial {
    root: PathBuf,
    directory: PartialDirectory,
    tables: File,
    lock: Option<FileLock>,
}

/// The directory of a partial checkpoint. It is deleted unless the checkpoint is published.
#[derive(Debug)]
struct PartialDirectory {
    path: PathBuf,
    is_published: bool,
}

impl PartialDirectory {
    fn create_file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        File::create_new(&path).map_err(|error| from_io("create", &path, &error))
    }
}

fn new_partial(root: &Path) -> PathBuf {
    root.join(format!("{PARTIAL}{:016x}", rand::random::<u64>()))
}

impl Partial {
    /// Creates the directory, and `root` if needed.
    pub(crate) fn create(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(|error| from_io("create directory", root, &error))?;
        let _lock = lock_directory(root);
        let path = new_partial(root);
        fs::create_dir(&path).map_err(|error| from_io("create directory", &path, &error))?;
        let directory = PartialDirectory { path, is_published: false };
        let tables = directory.create_file(TABLES)?;
        let lock = FileLock::try_new(&tables);
        let lock = lock.inspect_err(|error| {
            tracing::debug!("{} cannot be locked: {error}", directory.path.display());
        });
        Ok(Self { root: root.to_owned(), directory, tables, lock: lock.ok() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory.path
    }

    /// The file of tables. It is created first because it is the locked file.
    pub(crate) fn tables(&self) -> &File {
        &self.tables
    }

    pub(crate) fn create_file(&self, name: &str) -> Result<File> {
        self.directory.create_file(name)
    }

    /// Completes the checkpoint and renames it. All other files must be on disk.
    pub(crate) fn publish(self, manifest: &Manifest) -> Result<HeldCheckpoint> {
        let Self { root, mut directory, lock, .. } = self;
        let done = directory.path.join(DONE);
        let write = || {
            fs::write(&done, manifest.to_text())?;
            File::open(&done)?.sync_all()?;
            sync_directory(&directory.path)
        };
        write().map_err(|error| from_io("write", &done, &error))?;
        let others_wait = lock_directory(&root);
        let path = root.join(next_name(&root, manifest.taken_at.unwrap_or_else(SystemTime::now))?);
        fs::rename(&directory.path, &path).map_err(|error| from_io("create", &path, &error))?;
        directory.is_published = true;
        drop(others_wait);
        sync_directory(&root).map_err(|error| from_io("write", &root, &error))?;
        if let Some(other) = latest(&root, manifest.name.as_ref())?.filter(|other| *other > path) {
            tracing::warn!(
                "checkpoint {}: {} sorts behind it, so a server that starts loads that one; move \
                 it to another directory",
                path.display(),
                other.display()
            );
        }
        Ok(HeldCheckpoint { path, _lock: lock })
    }
}

impl Drop for PartialDirectory {
    fn drop(&mut self) {
        if !self.is_published {
            delete_files(&self.path);
        }
    }
}

/// Makes renames and new names in a directory durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    // Only Unix can open a directory like a file.
    if cfg!(unix) { open_directory(path)?.sync_all() } else { Ok(()) }
}

/// A name for the time of a snapshot, which sorts after every existing checkpoint.
fn next_name(root: &Path, taken_at: SystemTime) -> Result<String> {
    let now = to_name(&DateTime::<Local>::from(taken_at).fixed_offset());
    let last = names(root)?.into_iter().rev().find_map(|name| {
        let time = DateTime::parse_from_rfc3339(name.to_str()?).ok()?;
        Some((name.to_str()?.to_owned(), time))
    });
    match last {
        // The clock was set back, or the offset from UTC has changed.
        Some((name, time)) if name >= now => Ok(to_name(&(time + TimeDelta::nanoseconds(1)))),
        _ => Ok(now),
    }
}

/// RFC 3339 in local time, like dm-reverb's names.
fn to_name(time: &DateTime<FixedOffset>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.9f%:z").to_string()
}

/// Deletes old checkpoints: all complete ones of this package that have the given server name (or
/// none, if `server` is `None`), except for the newest `keep`. The last of `held` is one of these.
/// The one that the user chose to load does not count and stays. Also deletes unfinished
/// checkpoints of processes that have ended. Never deletes files that this
/// package did not write, nor checkpoints of other running servers. Warns of running servers whose
/// checkpoints could be mistaken for this server's.
pub(crate) fn prune(root: &Path, keep: usize, server: Option<&ServerName>, held: &mut Held) {
    let _lock = lock_directory(root);
    delete_leftovers(root);
    let Ok(names) = names(root) else { return };
    let mut deletable = Vec::new();
    for name in names {
        let path = root.join(name);
        let Some(manifest) = own_manifest(&path) else { continue };
        let is_of_name = manifest.name.as_ref() == server;
        let is_mine = held.checkpoints.iter().any(|held| held.path == path);
        if held.chosen.as_ref() == Some(&path) {
            continue;
        }
        let is_new = held.checkpoints.last().is_some_and(|held| held.path == path);
        if !is_mine
            && (is_of_name || server.is_none())
            && matches!(is_locked(&path.join(TABLES)), Ok(true))
        {
            held.warn_of_server(root, &path, &manifest);
        } else if is_of_name
            && !is_new
            && has_only_our_files(&path)
            && (is_mine || !is_in_use(&path))
        {
            deletable.push(path);
        }
    }
    let surplus = deletable.len().saturating_sub(keep.saturating_sub(1));
    for path in &deletable[..surplus] {
        held.checkpoints.retain(|held| held.path != *path);
        // Rename it first: if the deletion is interrupted under its own name, an incomplete
        // checkpoint without an owner remains.
        let aside = new_partial(root);
        match fs::rename(path, &aside) {
            Ok(()) => delete_files(&aside),
            Err(error) => tracing::warn!("{} cannot be deleted: {error}", path.display()),
        }
    }
}

/// Deletes unfinished checkpoints of processes that have ended.
fn delete_leftovers(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        if is_partial(&entry.file_name()) && has_only_our_files(&entry.path()) {
            let path = entry.path();
            if !is_in_use(&path) {
                delete_files(&path);
            }
        }
    }
}

/// The manifest of a complete checkpoint that this package wrote. `None` if a user has renamed the
/// checkpoint.
fn own_manifest(path: &Path) -> Option<Manifest> {
    DateTime::parse_from_rfc3339(path.file_name()?.to_str()?).ok()?;
    Manifest::read(path).ok()?
}

fn has_only_our_files(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let ours = [TABLES, ITEMS, CHUNKS, DONE];
    entries.flatten().all(|entry| ours.iter().any(|name| entry.file_name() == *name))
}

/// Returns true if a running server wrote or loaded it, or if that cannot be determined.
pub(crate) fn is_in_use(path: &Path) -> bool {
    match is_locked(&path.join(TABLES)) {
        Ok(is_locked) => is_locked,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Deletes the files of a checkpoint and its directory.
fn delete_files(path: &Path) {
    // Delete the marker first, so that an interrupted deletion leaves no complete checkpoint.
    for name in [DONE, ITEMS, CHUNKS, TABLES] {
        let _ = fs::remove_file(path.join(name));
    }
    if let Err(error) = fs::remove_dir(path) {
        tracing::warn!("{} cannot be deleted: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(root: &Path) -> HeldCheckpoint {
        checkpoint_of(root, None)
    }

    fn checkpoint_of(root: &Path, name: Option<&ServerName>) -> HeldCheckpoint {
        Partial::create(root).unwrap().publish(&Manifest::new(name.cloned())).unwrap()
    }

    fn holding(checkpoints: Vec<HeldCheckpoint>) -> Held {
        let mut held = Held::default();
        held.checkpoints = checkpoints;
        held
    }

    #[test]
    fn names_increase_even_if_the_clock_does_not() {
        let root = tempfile::tempdir().unwrap();
        let future = "2999-01-01T00:00:00.5+00:00";
        fs::create_dir(root.path().join(future)).unwrap();
        let first = next_name(root.path(), SystemTime::now()).unwrap();
        assert_eq!(first, "2999-01-01T00:00:00.500000001+00:00");
        assert!(*first > *future);
    }

    #[test]
    fn the_newest_are_kept_and_foreign_files_stay() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("notes.txt"), "mine").unwrap();
        fs::create_dir(at("zzz")).unwrap();
        fs::rename(checkpoint(root.path()).path, at("best")).unwrap();
        fs::create_dir(at(".partial-nearly")).unwrap();
        fs::write(at(".partial-nearly").join("mine"), "x").unwrap();
        fs::create_dir(at("2020-01-01T00:00:00+00:00")).unwrap();
        fs::write(at("2020-01-01T00:00:00+00:00").join(DONE), "").unwrap();
        let mut held = holding((0..4).map(|_| checkpoint(root.path())).collect());
        let paths: Vec<_> = held.checkpoints.iter().map(|held| held.path.clone()).collect();
        let with_notes = paths[0].clone();
        fs::write(with_notes.join("notes"), "mine").unwrap();
        prune(root.path(), 2, None, &mut held);
        assert_eq!(held.checkpoints.len(), 3);
        for path in paths[2..].iter().chain([&with_notes]) {
            assert!(is_complete(path).unwrap());
        }
        assert_eq!(latest(root.path(), None).unwrap(), Some(at("best")));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 3 + 5);
    }

    #[test]
    fn checkpoints_in_use_are_kept_until_their_servers_end() {
        let root = tempfile::tempdir().unwrap();
        let theirs = checkpoint(root.path());
        let writing = Partial::create(root.path()).unwrap();
        let path = theirs.path.clone();
        let mut mine = holding(vec![checkpoint(root.path())]);
        prune(root.path(), 1, None, &mut mine);
        assert!(is_complete(&path).unwrap() && writing.path().exists());
        drop((theirs, writing));
        prune(root.path(), 1, None, &mut mine);
        assert!(!path.exists() && is_complete(&mine.checkpoints[0].path).unwrap());
    }

    #[test]
    fn checkpoints_of_other_names_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let names = [None, Some("a".parse().unwrap()), Some("b".parse().unwrap())];
        let mut latest_of = Vec::new();
        for _ in 0..3 {
            latest_of.clear();
            for name in &names {
                let mut held = holding(vec![checkpoint_of(root.path(), name.as_ref())]);
                latest_of.push(held.checkpoints[0].path.clone());
                prune(root.path(), 1, name.as_ref(), &mut held);
            }
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 3);
        for (name, path) in names.iter().zip(&latest_of).skip(1) {
            assert_eq!(latest(root.path(), name.as_ref()).unwrap().as_ref(), Some(path));
        }
        assert_eq!(latest(root.path(), None).unwrap().as_ref(), latest_of.last());
    }

    #[test]
    fn unfinished_checkpoints_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(latest(&root.path().join("nowhere"), None).unwrap(), None);
        let left_over = Partial::create(root.path()).unwrap();
        fs::write(left_over.path().join(DONE), "").unwrap();
        assert_eq!(latest(root.path(), None).unwrap(), None);
        let path = left_over.path().to_owned();
        drop(left_over);
        assert!(!path.exists());
    }
}
