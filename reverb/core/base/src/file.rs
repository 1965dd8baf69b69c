// SPDX-License-Identifier: Apache-2.0
//! Reading regular files only, because pipes and devices could block the reader.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reason why a file was not read; it follows the file's name in a message.
#[derive(Debug)]
pub enum Unreadable {
    /// Error of the system.
    Refused(io::Error),
    /// It is a directory, a pipe, a socket or a device.
    NoFile,
    /// It has more bytes than this.
    TooLarge(u64),
}

impl From<Unreadable> for io::Error {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::Refused(error) => error,
            Unreadable::NoFile | Unreadable::TooLarge(_) => {
                Self::new(ErrorKind::InvalidInput, why.to_string())
            }
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "cannot be read: {error}"),
            Self::NoFile => f.write_str("is not a file"),
            Self::TooLarge(max_bytes) => write!(f, "is larger than {max_bytes} bytes"),
        }
    }
}

/// Opens a regular file: a pipe or a device could block its opener or its reader forever. Symbolic
/// links are followed.
///
/// # Errors
///
/// Error of the system, or `NoFile`.
pub fn open_file(path: &Path, options: &mut OpenOptions) -> Result<File, Unreadable> {
    // Checked before it is opened, because opening some devices has an effect.
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(Unreadable::NoFile),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Unreadable::Refused(error));
        }
        _ => {}
    }
    let file = without_waiting(options).open(path).map_err(Unreadable::Refused)?;
    // Another file may have replaced it meanwhile.
    if !file.metadata().map_err(Unreadable::Refused)?.is_file() {
        return Err(Unreadable::NoFile);
    }
    Ok(file)
}

/// Opens a directory, to lock it or to make its names durable.
///
/// # Errors
///
/// Error of the system: `NotADirectory` for everything else.
pub fn open_directory(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    without_waiting(OpenOptions::new().read(true)).open(path)
}

/// Makes opening a pipe return at once.
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    }
    options
}

/// Reads a whole file of at most `max_bytes`; see [`open_file`].
///
/// # Errors
///
/// Those of [`open_file`], or `TooLarge`.
pub fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Unreadable> {
    let file = open_file(path, OpenOptions::new().read(true))?;
    if file.metadata().map_err(Unreadable::Refused)?.len() > max_bytes {
        return Err(Unreadable::TooLarge(max_bytes));
    }
    let mut content = Vec::new();
    // The file may grow meanwhile.
    file.take(max_bytes + 1).read_to_end(&mut content).map_err(Unreadable::Refused)?;
    if content.len() as u64 > max_bytes {
        return Err(Unreadable::TooLarge(max_bytes));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_says_why() {
        let path = std::env::temp_dir().join(format!("reverb-file-{}", std::process::id()));
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_file(&path, 5).unwrap(), b"12345");
        assert_eq!(read_file(&path, 4).unwrap_err().to_string(), "is larger than 4 bytes");
        std::fs::remove_file(&path).unwrap();
        let missing = read_file(&path, 5).unwrap_err().to_string();
        assert!(missing.starts_with("cannot be read: "), "{missing}");
        let directory = read_file(&std::env::temp_dir(), 5).unwrap_err();
        assert_eq!(directory.to_string(), "is not a file");
    }
}
