// SPDX-License-Identifier: Apache-2.0
//! Names and checkpoints that a server holds in a directory of checkpoints.
//!
//! Both are held by file locks. So other processes can see what a running server holds, and a
//! killed server holds nothing.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reverb_base::{Error, Result, Unreadable, open_file, read_file};

use crate::directory::{DONE, TABLES, complete, is_complete, latest};
use crate::manifest::Manifest;
use crate::name::ServerName;
use crate::pipeline::check;
use crate::progress::Progress;
use reverb_files::Owner;
use reverb_files::{FileLock, lock_directory, open_to_lock};

/// Prefix of the file of a name. The server with that name locks it.
const NAME_FILE: &str = ".server-";

/// Maximum size of that file, which holds one word.
const MAX_NAME_FILE_BYTES: u64 = 4096;

/// Time that a start waits for a lock of another server. A server that shuts down, or whose start
/// was interrupted, releases its locks soon.
const MAX_WAIT: Duration = Duration::from_secs(1);

const POLL: Duration = Duration::from_millis(20);

/// Number of checkpoints that an error names.
const MAX_LISTED: usize = 10;

/// The name and the checkpoints that a server holds. Dropping it releases them.
#[derive(Debug, Default)]
pub struct Held {
    name: Option<FileLock>,
    /// Checkpoints in the order in which they were written. A loaded one comes first.
    pub(crate) checkpoints: Vec<HeldCheckpoint>,
    /// The checkpoint that the user chose to load, which no save deletes.
    pub(crate) chosen: Option<PathBuf>,
    /// Servers for which a warning was logged.
    known_servers: BTreeSet<String>,
}

/// A checkpoint that a server wrote or loaded.
#[derive(Debug)]
pub(crate) struct HeldCheckpoint {
    pub(crate) path: PathBuf,
    /// `None` on a file system without locks.
    pub(crate) _lock: Option<FileLock>,
}

impl Held {
    /// Takes a name until the value is dropped.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if another running server has it, naming that server, or if the lock
    /// file is not a regular file.
    pub fn take_name(&mut self, root: &Path, name: &ServerName, progress: &Progress) -> Result<()> {
        let path = root.join(format!("{NAME_FILE}{}", name.as_str()));
        self.name = retry(progress, || {
            let error = match open_name_file(root, &path) {
                Ok(file) => match lock_name(root, file, &path) {
                    Ok(lock) => return Ok(Ok(Some(lock))),
                    Err(TryLockError::WouldBlock) => {
                        return Ok(Err(name_is_taken(root, &path, name)));
                    }
                    Err(TryLockError::Error(error)) => error,
                },
                Err(Unreadable::NoFile) => return Err(is_no_file(&path, name)),
                Err(why) => why.into(),
            };
            tracing::warn!(
                "{} cannot be locked, so that a second server of the name {name} would not be \
                 noticed: {error}",
                path.display()
            );
            Ok(Ok(None))
        })?;
        Ok(())
    }

    /// Takes the latest checkpoint, to load it; `None` if there is none.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if another running server has it. The message names that server.
    pub(crate) fn take_latest(
        &mut self,
        root: &Path,
        name: Option<&ServerName>,
        progress: &Progress,
    ) -> Result<Option<PathBuf>> {
        retry(progress, || {
            // Locked so that it is not deleted before it is taken.
            let _directory = lock_directory(root);
            let Some(path) = latest(root, name)? else { return Ok(Ok(None)) };
            Ok(self.lock(root, &path).map(|()| Some(path)))
        })
    }

    /// Takes the checkpoint that the user chose, to load it. One in another directory than `root`
    /// is only read: other servers may have it, and no save of this server deletes it.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if there is no complete checkpoint at `path`, with what is there, or if
    /// it is in `root` and another running server has it.
    pub(crate) fn take_chosen(
        &mut self,
        root: &Path,
        path: &Path,
        progress: &Progress,
    ) -> Result<PathBuf> {
        retry(progress, || {
            let _directory = lock_directory(root);
            if !is_complete(path)? {
                return Err(is_gone(path));
            }
            let Some(path_in_root) = in_root(root, path) else { return Ok(Ok(path.to_owned())) };
            let locked = self.lock(root, &path_in_root);
            Ok(locked.map(|()| self.chosen.insert(path_in_root).clone()))
        })
    }

    /// Locks a checkpoint; an error if another server has it.
    fn lock(&mut self, root: &Path, path: &Path) -> std::result::Result<(), Error> {
        let tables = path.join(TABLES);
        let lock = match open_to_lock(&tables).map(|file| FileLock::try_new(&file)) {
            Ok(Ok(lock)) => Some(lock),
            Ok(Err(TryLockError::WouldBlock)) => return Err(checkpoint_is_taken(root, path)),
            Ok(Err(TryLockError::Error(error))) => {
                tracing::info!("{} cannot be locked: {error}", tables.display());
                None
            }
            // Reading it will fail with the reason.
            Err(_) => None,
        };
        self.checkpoints.push(HeldCheckpoint { path: path.to_owned(), _lock: lock });
        Ok(())
    }

    /// Releases the checkpoint that was taken last.
    pub(crate) fn release_checkpoint(&mut self) {
        self.checkpoints.pop();
    }

    /// Warns of another running server that has a checkpoint in the directory, once for each
    /// server.
    pub(crate) fn warn_of_server(&mut self, root: &Path, path: &Path, manifest: &Manifest) {
        let server = describe(path, manifest);
        if self.known_servers.contains(&server) {
            return;
        }
        tracing::warn!(
            "checkpoint directory {}: {server} uses it too, at present checkpoint {}; a server that \
             starts loads the last checkpoint, whoever saved it. Give each server a name of its own \
             by DefaultCheckpointer(..., name=...), or a directory of its own",
            root.display(),
            path.display()
        );
        self.known_servers.insert(server);
    }
}

/// Retries `attempt` for a limited time while another server prevents it, because that server may
/// be shutting down. `attempt` returns an outer error if a retry would not help.
fn retry<T>(
    progress: &Progress,
    mut attempt: impl FnMut() -> Result<std::result::Result<T, Error>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt()? {
            Ok(taken) => return Ok(taken),
            Err(refused) if start.elapsed() >= MAX_WAIT => return Err(refused),
            Err(_) => {
                check(progress.cancelled())?;
                std::thread::sleep(POLL);
            }
        }
    }
}

/// The path of a checkpoint in `root` as saves see it; `None` if it is in another directory.
/// Different paths may lead to one directory.
fn in_root(root: &Path, path: &Path) -> Option<PathBuf> {
    let path = fs::canonicalize(path).ok()?;
    let is_there = path.parent() == Some(fs::canonicalize(root).ok()?.as_path());
    path.file_name().filter(|_| is_there).map(|name| root.join(name))
}

/// Opens the file of a name, and creates it if needed.
fn open_name_file(root: &Path, path: &Path) -> std::result::Result<File, Unreadable> {
    fs::create_dir_all(root).map_err(Unreadable::Refused)?;
    open_file(path, OpenOptions::new().read(true).write(true).create(true))
}

/// Locks the file of a name and writes its owner into it.
fn lock_name(
    root: &Path,
    mut file: File,
    path: &Path,
) -> std::result::Result<FileLock, TryLockError> {
    let _directory = lock_directory(root);
    let lock = FileLock::try_new(&file)?;
    if let Err(error) = write_owner(&mut file) {
        tracing::debug!("{} cannot be written: {error}", path.display());
    }
    Ok(lock)
}

fn write_owner(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(format!("{}\n", Owner::here().to_word()).as_bytes())
}

/// Describes the running server that has a checkpoint: the one that locked it, if known, else the
/// one that wrote it.
fn describe(path: &Path, manifest: &Manifest) -> String {
    let owner = Owner::of_lock(&path.join(TABLES)).or_else(|| manifest.owner.clone());
    let name = manifest.name.as_ref().map_or_else(String::new, |name| format!(" named {name}"));
    format!("another server{name} that is running{}", in_parentheses(owner.as_ref()))
}

fn in_parentheses(owner: Option<&Owner>) -> String {
    owner.map_or_else(String::new, |owner| format!(" ({owner})"))
}

fn name_is_taken(root: &Path, file: &Path, name: &ServerName) -> Error {
    let content = read_file(file, MAX_NAME_FILE_BYTES).ok();
    let owner = content.and_then(|content| std::str::from_utf8(&content).ok()?.parse().ok());
    Error::failed_precondition(format!(
        "Another server that is running{} has the name {name} in the checkpoint directory {}. Stop \
         it, or give this server another name or another directory.",
        in_parentheses(owner.as_ref()),
        root.display()
    ))
}

/// Says that a checkpoint that was chosen does not exist, and which there are beside or in it.
fn is_gone(path: &Path) -> Error {
    let is_there = path.exists();
    let inside = complete(path);
    let (place, mut names) = match path.parent() {
        Some(parent) if inside.is_empty() => (parent, complete(parent)),
        _ => (path, inside),
    };
    let num_more = names.len().saturating_sub(MAX_LISTED);
    let names = names.split_off(num_more);
    let more = if num_more > 0 { format!(", and {num_more} before these") } else { String::new() };
    let what = if is_there { format!("it has no file {DONE}") } else { "it is gone".to_owned() };
    let found = match names.as_slice() {
        [] if place.is_dir() => format!("The directory {} has no checkpoint", place.display()),
        [] => format!("There is no directory {}", place.display()),
        _ => format!(
            "The directory {} has the checkpoints {}{more}",
            place.display(),
            names.join(", ")
        ),
    };
    Error::failed_precondition(format!(
        "There is no checkpoint {} to load: {what}. {found}. Choose another one to load, or none to \
         load the latest.",
        path.display()
    ))
}

fn is_no_file(path: &Path, name: &ServerName) -> Error {
    Error::failed_precondition(format!(
        "Checkpoint: the server locks {} for its name {name}, and that is not a file. Delete it, or \
         give this server another directory.",
        path.display()
    ))
}

fn checkpoint_is_taken(root: &Path, path: &Path) -> Error {
    let manifest = Manifest::read_or_empty(path).unwrap_or_default();
    Error::failed_precondition(format!(
        "Checkpoint {} belongs to {}: if this server loaded it, both would hold the same data. Stop \
         the other server, or give each server a name of its own in the directory {} by \
         DefaultCheckpointer(..., name=...), or a directory of its own.",
        path.display(),
        describe(path, &manifest),
        root.display()
    ))
}
