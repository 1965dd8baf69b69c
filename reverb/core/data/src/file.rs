// SPDX-License-Identifier: Apache-2.0
//! Small files that are read as a whole: certificates, keys and tokens.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

/// Why a file was not read; to be said after its name.
#[derive(Debug)]
pub enum Unreadable {
    /// The system says why.
    Refused(io::Error),
    /// It is a directory, a pipe or a device.
    NoFile,
    /// It has more bytes than this.
    TooLarge(u64),
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

/// Reads a whole file, and nothing that is none: a pipe or a device may keep its reader waiting for
/// ever.
pub fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Unreadable> {
    if !std::fs::metadata(path).map_err(Unreadable::Refused)?.is_file() {
        return Err(Unreadable::NoFile);
    }
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(Unreadable::Refused)?;
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
