// SPDX-License-Identifier: Apache-2.0
//! The directory of checkpoints: names, what is complete, whose it is, and what may be deleted.
//!
//! A checkpoint is written in a directory `.partial-*` and renamed when all of it is on disk. Who
//! writes one locks its tables file (`flock`), and keeps that lock for as long as its server runs:
//! so everybody sees, without asking, what belongs to somebody who is alive. A lock ends with its
//! process, however that ends.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, FixedOffset, Local, TimeDelta};
use reverb_data::Result;

use crate::failure::of_io;
use crate::manifest::{self, Manifest};

pub(crate) const TABLES: &str = "tables.tfrecord";
pub(crate) const ITEMS: &str = "items.tfrecord";
pub(crate) const CHUNKS: &str = "chunks.tfrecord";
pub(crate) const DONE: &str = "DONE";

/// What the directory of a checkpoint is called while it is written or deleted.
const PARTIAL: &str = ".partial-";

/// A checkpoint that a server of this process wrote. Dropping it lets others delete it.
#[derive(Debug)]
pub struct Owned {
    path: PathBuf,
    tables: File,
}

impl Owned {
    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child that is still there has the same file open; closing alone would not do.
        let _ = self.tables.unlock();
    }
}

/// The complete checkpoint that a server on `root` restores: the last by name, as in the original.
///
/// # Errors
///
/// `FailedPrecondition` if `root` is there and cannot be read.
pub(crate) fn latest(root: &Path) -> Result<Option<PathBuf>> {
    for name in names(root)?.into_iter().rev() {
        let path = root.join(name);
        if is_complete(&path)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Whether a directory is a complete checkpoint.
///
/// # Errors
///
/// `FailedPrecondition` if this process may not look: passing over it would load an older one.
pub(crate) fn is_complete(path: &Path) -> Result<bool> {
    match path.join(DONE).try_exists() {
        // A plain file has nothing in it.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        found => found.map_err(|error| of_io("look into", path, &error)),
    }
}

/// Names in `root` that may be checkpoints, by their bytes. A directory that is not there is empty.
fn names(root: &Path) -> Result<Vec<OsString>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(of_io("list", root, &error)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names: Vec<_> =
        names.collect::<io::Result<_>>().map_err(|error| of_io("list", root, &error))?;
    names.retain(|name| !is_partial(name));
    names.sort_by(|a, b| a.as_encoded_bytes().cmp(b.as_encoded_bytes()));
    Ok(names)
}

fn is_partial(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PARTIAL.as_bytes())
}

/// A lock on `root` for moments in which others must not look. On file systems without locks it
/// locks nothing, and two servers should not share a directory.
fn lock_root(root: &Path) -> Option<File> {
    let directory = File::open(root).ok()?;
    directory.lock().ok().map(|()| directory)
}

/// A checkpoint that is being written. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct Partial {
    root: PathBuf,
    directory: PartialDirectory,
    tables: File,
}

/// Its directory, which goes unless the checkpoint is published.
#[derive(Debug)]
struct PartialDirectory {
    path: PathBuf,
    is_published: bool,
}

impl PartialDirectory {
    fn create_file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        File::create_new(&path).map_err(|error| of_io("create", &path, &error))
    }
}

/// A new name of that kind.
fn new_partial(root: &Path) -> PathBuf {
    root.join(format!("{PARTIAL}{:016x}", rand::random::<u64>()))
}

impl Partial {
    /// Makes the directory, and `root` before it.
    pub(crate) fn create(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(|error| of_io("create directory", root, &error))?;
        let _lock = lock_root(root);
        let path = new_partial(root);
        fs::create_dir(&path).map_err(|error| of_io("create directory", &path, &error))?;
        let directory = PartialDirectory { path, is_published: false };
        let tables = directory.create_file(TABLES)?;
        if let Err(error) = tables.try_lock() {
            log::debug!("{} cannot be locked: {error}", directory.path.display());
        }
        Ok(Self { root: root.to_owned(), directory, tables })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory.path
    }

    /// The file of tables, made at the beginning because the lock is on it.
    pub(crate) fn tables(&self) -> &File {
        &self.tables
    }

    pub(crate) fn create_file(&self, name: &str) -> Result<File> {
        self.directory.create_file(name)
    }

    /// Makes the checkpoint complete and gives it its name. All other files are on disk.
    pub(crate) fn publish(self, manifest: &Manifest) -> Result<Owned> {
        let Self { root, mut directory, tables } = self;
        let done = directory.path.join(DONE);
        let write = || {
            fs::write(&done, manifest.to_text())?;
            File::open(&done)?.sync_all()?;
            sync_directory(&directory.path)
        };
        write().map_err(|error| of_io("write", &done, &error))?;
        let lock = lock_root(&root);
        let path = root.join(next_name(&root)?);
        fs::rename(&directory.path, &path).map_err(|error| of_io("create", &path, &error))?;
        directory.is_published = true;
        drop(lock);
        sync_directory(&root).map_err(|error| of_io("write", &root, &error))?;
        if let Some(other) = latest(&root)?.filter(|other| *other > path) {
            log::warn!(
                "checkpoint {}: {} sorts behind it, so a server that starts loads that one; move \
                 it to another directory",
                path.display(),
                other.display()
            );
        }
        Ok(Owned { path, tables })
    }
}

impl Drop for PartialDirectory {
    fn drop(&mut self) {
        if !self.is_published {
            delete_files(&self.path);
        }
    }
}

/// Makes what was done to the names in a directory last.
fn sync_directory(path: &Path) -> io::Result<()> {
    // Only Unix can open a directory like a file.
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The present time as a name that sorts behind every checkpoint there is.
fn next_name(root: &Path) -> Result<String> {
    let now = name_of(&Local::now().fixed_offset());
    let last = names(root)?.into_iter().rev().find_map(|name| {
        let time = DateTime::parse_from_rfc3339(name.to_str()?).ok()?;
        Some((name.to_str()?.to_owned(), time))
    });
    match last {
        // The clock was set back, or the offset from UTC has changed.
        Some((name, time)) if name >= now => Ok(name_of(&(time + TimeDelta::nanoseconds(1)))),
        _ => Ok(now),
    }
}

/// RFC 3339 in local time, like the original's names.
fn name_of(time: &DateTime<FixedOffset>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.9f%:z").to_string()
}

/// Deletes complete checkpoints of this package but for the newest `keep`, one of which is the last
/// of `owned`, and what processes that are gone have left unfinished. Nothing else: no file that this
/// package did not write, and nothing of servers that are running.
pub(crate) fn prune(root: &Path, keep: usize, owned: &mut Vec<Owned>) {
    let _lock = lock_root(root);
    delete_left_overs(root);
    let Ok(names) = names(root) else { return };
    let mut deletable = Vec::new();
    for name in names {
        let path = root.join(name);
        let is_mine = owned.iter().any(|owned| owned.path == path);
        let is_new = owned.last().is_some_and(|owned| owned.path == path);
        if !is_new && is_ours(&path) && (is_mine || !is_in_use(&path)) {
            deletable.push(path);
        }
    }
    let surplus = deletable.len().saturating_sub(keep.saturating_sub(1));
    for path in &deletable[..surplus] {
        owned.retain(|owned| owned.path != *path);
        // Under its own name it would be incomplete, and nobody's, if this is interrupted.
        let aside = new_partial(root);
        match fs::rename(path, &aside) {
            Ok(()) => delete_files(&aside),
            Err(error) => log::warn!("{} cannot be deleted: {error}", path.display()),
        }
    }
}

/// What unfinished checkpoints of processes that are gone there are goes.
fn delete_left_overs(root: &Path) {
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

/// Whether a directory is a complete checkpoint that this package wrote, with nothing else in it.
/// One that somebody has given another name is somebody's.
fn is_ours(path: &Path) -> bool {
    let time = path.file_name().and_then(|name| DateTime::parse_from_rfc3339(name.to_str()?).ok());
    time.is_some()
        && fs::read(path.join(DONE)).is_ok_and(|content| manifest::is_ours(&content))
        && has_only_our_files(path)
}

fn has_only_our_files(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let ours = [TABLES, ITEMS, CHUNKS, DONE];
    entries.flatten().all(|entry| ours.iter().any(|name| entry.file_name() == *name))
}

/// Whether a server that is running wrote it, or somebody reads it. If that cannot be known, it is.
fn is_in_use(path: &Path) -> bool {
    match File::open(path.join(TABLES)) {
        Ok(tables) => tables.try_lock().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Deletes the files of a checkpoint and its directory.
fn delete_files(path: &Path) {
    // The marker first: what is left if this is interrupted is not complete.
    for name in [DONE, ITEMS, CHUNKS, TABLES] {
        let _ = fs::remove_file(path.join(name));
    }
    if let Err(error) = fs::remove_dir(path) {
        log::warn!("{} cannot be deleted: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(root: &Path) -> Owned {
        Partial::create(root).unwrap().publish(&Manifest::default()).unwrap()
    }

    #[test]
    fn names_grow_even_if_the_clock_does_not() {
        let root = tempfile::tempdir().unwrap();
        let future = "2999-01-01T00:00:00.5+00:00";
        fs::create_dir(root.path().join(future)).unwrap();
        let first = next_name(root.path()).unwrap();
        assert_eq!(first, "2999-01-01T00:00:00.500000001+00:00");
        assert!(*first > *future);
    }

    #[test]
    fn the_newest_are_kept_and_foreign_files_stay() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("notes.txt"), "mine").unwrap();
        fs::create_dir(at("zzz")).unwrap();
        fs::rename(checkpoint(root.path()).path(), at("best")).unwrap();
        fs::create_dir(at(".partial-nearly")).unwrap();
        fs::write(at(".partial-nearly").join("mine"), "x").unwrap();
        fs::create_dir(at("2020-01-01T00:00:00+00:00")).unwrap();
        fs::write(at("2020-01-01T00:00:00+00:00").join(DONE), "").unwrap();
        let mut owned: Vec<_> = (0..4).map(|_| checkpoint(root.path())).collect();
        let with_notes = owned[0].path().to_owned();
        fs::write(with_notes.join("notes"), "mine").unwrap();
        let kept = [owned[2].path().to_owned(), owned[3].path().to_owned()];
        prune(root.path(), 2, &mut owned);
        assert_eq!(owned.len(), 3);
        for path in kept.iter().chain([&with_notes]) {
            assert!(is_complete(path).unwrap());
        }
        assert_eq!(latest(root.path()).unwrap(), Some(at("best")));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 3 + 5);
    }

    #[test]
    fn what_others_use_is_left_alone_until_they_are_gone() {
        let root = tempfile::tempdir().unwrap();
        let theirs = checkpoint(root.path());
        let writing = Partial::create(root.path()).unwrap();
        let path = theirs.path().to_owned();
        let mut mine = vec![checkpoint(root.path())];
        prune(root.path(), 1, &mut mine);
        assert!(is_complete(&path).unwrap() && writing.path().exists());
        drop((theirs, writing));
        prune(root.path(), 1, &mut mine);
        assert!(!path.exists() && is_complete(mine[0].path()).unwrap());
    }

    #[test]
    fn what_is_not_finished_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(latest(&root.path().join("nowhere")).unwrap(), None);
        let left_over = Partial::create(root.path()).unwrap();
        fs::write(left_over.path().join(DONE), "").unwrap();
        assert_eq!(latest(root.path()).unwrap(), None);
        let path = left_over.path().to_owned();
        drop(left_over);
        assert!(!path.exists());
    }
}
