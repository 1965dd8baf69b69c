// SPDX-License-Identifier: Apache-2.0
//! Errors of files, with the path and advice.

use std::io;
use std::path::Path;

use reverb_base::{Error, ErrorKind, Unreadable};

/// Converts an error of the system about a path.
pub(crate) fn from_io(what: &str, path: &Path, error: &io::Error) -> Error {
    let (kind, advice) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::ResourceExhausted, " Free some space, or choose another directory.")
        }
        io::ErrorKind::FileTooLarge => {
            (ErrorKind::ResourceExhausted, " Raise the limit of the size of files.")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::FailedPrecondition, " Choose a directory that this process may write to.")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            (ErrorKind::FailedPrecondition, " The path of a checkpointer must be a directory.")
        }
        _ => (ErrorKind::FailedPrecondition, ""),
    };
    Error::new(kind, format!("Checkpoint: cannot {what} {}: {error}.{advice}", path.display()))
}

pub(crate) fn unreadable(path: &Path, why: &Unreadable) -> Error {
    match why {
        Unreadable::Refused(error) => from_io("read", path, error),
        Unreadable::NoFile | Unreadable::TooLarge(_) => {
            damaged(path, "as a whole", &format!("it {why}."))
        }
    }
}

/// Error for a damaged file; `at` is the position.
pub(crate) fn damaged(path: &Path, at: &str, what: &str) -> Error {
    let directory = path.parent().unwrap_or(path);
    Error::data_loss(format!(
        "Checkpoint file {} is damaged {at}: {what} Nothing of the checkpoint was loaded. Restore \
         the file from a copy, or move {} away to continue from an older checkpoint or from nothing.",
        path.display(),
        directory.display()
    ))
}
