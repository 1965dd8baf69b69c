// SPDX-License-Identifier: Apache-2.0
//! The file `DONE`: that a checkpoint is complete, and what it consists of.
//!
//! dm-reverb writes an empty one and only looks whether it exists. Ours begins with who wrote it,
//! lists the files with their sizes, and ends with a checksum of itself.

use std::fmt::Write;

use reverb_data::{Error, Result};

/// What every `DONE` of ours begins with.
const WRITER: &str = "reverb-replay";

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) records: u64,
    /// Its size on disk.
    pub(crate) bytes: u64,
}

/// The files of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Manifest {
    pub(crate) files: Vec<FileEntry>,
}

impl Manifest {
    pub(crate) fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{WRITER} {}\n", env!("CARGO_PKG_VERSION"));
        for FileEntry { name, records, bytes } in &self.files {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} records={records} bytes={bytes}");
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c={checksum:08x}");
        text
    }

    /// Reads the content of a `DONE` file; `None` if another program wrote it.
    ///
    /// # Errors
    ///
    /// `DataLoss` if it is one of ours and damaged.
    pub(crate) fn parse(content: &[u8]) -> Result<Option<Self>> {
        if !is_ours(content) {
            return Ok(None);
        }
        let damaged = || Error::data_loss("its lines and its checksum do not agree.");
        let text = std::str::from_utf8(content).map_err(|_| damaged())?;
        let (body, last) = text.trim_end().rsplit_once('\n').ok_or_else(damaged)?;
        let checksum = crc32c::crc32c(format!("{body}\n").as_bytes());
        if last != format!("crc32c={checksum:08x}") {
            return Err(damaged());
        }
        let mut files = Vec::new();
        for line in body.lines().skip(1) {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default().to_owned();
            let mut number = |key: &str| {
                let value = words.next().and_then(|word| word.strip_prefix(key));
                value.and_then(|value| value.parse::<u64>().ok()).ok_or_else(damaged)
            };
            let (records, bytes) = (number("records=")?, number("bytes=")?);
            files.push(FileEntry { name, records, bytes });
        }
        Ok(Some(Self { files }))
    }
}

/// Whether this package wrote a `DONE` file with this content.
pub(crate) fn is_ours(content: &[u8]) -> bool {
    content.starts_with(WRITER.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        let entry = |name: &str, records| FileEntry { name: name.into(), records, bytes: 99 };
        let manifest = Manifest { files: vec![entry("a", 1), entry("b", 0)] };
        let text = manifest.to_text();
        assert_eq!(Manifest::parse(text.as_bytes()), Ok(Some(manifest)));
        assert_eq!(Manifest::parse(b""), Ok(None));
        assert_eq!(Manifest::parse(b"somebody else"), Ok(None));
        for at in WRITER.len()..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Manifest::parse(&bytes).is_err(), "byte {at}");
            assert!(Manifest::parse(&text.as_bytes()[..at]).is_err(), "first {at} bytes");
        }
    }
}
