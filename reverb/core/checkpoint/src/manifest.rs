// SPDX-License-Identifier: Apache-2.0
//! The file `DONE`: it marks a checkpoint as complete and lists its files.
//!
//! dm-reverb writes an empty one and only checks whether it exists. Ours begins with the writer,
//! lists the files with their sizes, and ends with a checksum of itself.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reverb_base::{Error, Result, read_file};
use reverb_data::ShardIdentity;

use crate::directory::DONE;
use crate::failure::{damaged, unreadable};
use crate::name::ServerName;
use reverb_files::Owner;

/// Maximum size. Ours has some hundred bytes, and is read whole.
const MAX_BYTES: u64 = 16 << 20;

/// The first word of every `DONE` of ours.
const WRITER: &str = "reverb-replay";

/// Prefixes of words in the first line.
const NAME: &str = "name=";
const OWNER: &str = "process=";
const SHARD: &str = "shard=";
const STORE: &str = "store=";
const TAKEN_AT: &str = "taken_at_ns=";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) records: u64,
    /// Its size on disk.
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Manifest {
    pub(crate) name: Option<ServerName>,
    pub(crate) owner: Option<Owner>,
    /// Shard of the server, if it is in a group.
    pub(crate) shard: Option<ShardIdentity>,
    /// Id of the store of the server, if it has one.
    pub(crate) store: Option<u128>,
    /// Time of the snapshot; checkpoints of earlier releases do not have it.
    pub(crate) taken_at: Option<SystemTime>,
    pub(crate) files: Vec<FileEntry>,
}

impl Manifest {
    /// A manifest of this process, without files yet.
    pub(crate) fn new(name: Option<ServerName>) -> Self {
        Self { name, owner: Some(Owner::here()), ..Self::default() }
    }

    /// Reads the manifest of a checkpoint; an empty one if another program wrote the checkpoint.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if it cannot be read, `DataLoss` if it is damaged.
    pub(crate) fn read_or_empty(checkpoint: &Path) -> Result<Self> {
        Ok(Self::read(checkpoint)?.unwrap_or_default())
    }

    /// Reads the manifest of a checkpoint; `None` if another program wrote the checkpoint.
    pub(crate) fn read(checkpoint: &Path) -> Result<Option<Self>> {
        let done = checkpoint.join(DONE);
        let content = read_file(&done, MAX_BYTES).map_err(|why| unreadable(&done, &why))?;
        Self::parse(&content).map_err(|error| damaged(&done, "at byte 0", error.message()))
    }

    pub(crate) fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    pub(crate) fn to_text(&self) -> String {
        // Readers skip unknown words of the first line.
        let mut text = format!("{WRITER} {}", env!("CARGO_PKG_VERSION"));
        // Writing to a string cannot fail.
        if let Some(name) = &self.name {
            let _ = write!(text, " {NAME}{}", name.as_str());
        }
        if let Some(owner) = &self.owner {
            let _ = write!(text, " {OWNER}{}", owner.to_word());
        }
        if let Some(shard) = &self.shard {
            let _ = write!(text, " {SHARD}{}", shard.to_word());
        }
        if let Some(store) = self.store {
            let _ = write!(text, " {STORE}{store:032x}");
        }
        if let Some(taken_at) = self.taken_at {
            let since = taken_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let _ = write!(text, " {TAKEN_AT}{}", since.as_nanos());
        }
        text.push('\n');
        for FileEntry { name, records, bytes } in &self.files {
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
        let damage = || Error::data_loss("its lines and its checksum do not agree.");
        let text = std::str::from_utf8(content).map_err(|_| damage())?;
        let (body, last) = text.trim_end().rsplit_once('\n').ok_or_else(damage)?;
        let checksum = crc32c::crc32c(format!("{body}\n").as_bytes());
        if last != format!("crc32c={checksum:08x}") {
            return Err(damage());
        }
        let mut lines = body.lines();
        let first = lines.next().unwrap_or_default();
        let mut manifest = Self::default();
        for word in first.split(' ') {
            if let Some(name) = word.strip_prefix(NAME) {
                manifest.name = Some(name.parse().map_err(|_| damage())?);
            } else if let Some(owner) = word.strip_prefix(OWNER) {
                manifest.owner = owner.parse().ok();
            } else if let Some(shard) = word.strip_prefix(SHARD) {
                manifest.shard = shard.parse().ok();
            } else if let Some(store) = word.strip_prefix(STORE) {
                manifest.store = u128::from_str_radix(store, 16).ok();
            } else if let Some(nanoseconds) = word.strip_prefix(TAKEN_AT) {
                let since = nanoseconds.parse().ok().map(Duration::from_nanos);
                manifest.taken_at = since.and_then(|since| UNIX_EPOCH.checked_add(since));
            }
        }
        for line in lines {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default().to_owned();
            let mut number = |key: &str| {
                let value = words.next().and_then(|word| word.strip_prefix(key));
                value.and_then(|value| value.parse::<u64>().ok()).ok_or_else(damage)
            };
            let records = number("records=")?;
            let bytes = number("bytes=")?;
            manifest.files.push(FileEntry { name, records, bytes });
        }
        Ok(Some(manifest))
    }
}

/// Returns true if this package wrote a `DONE` file with this content.
pub(crate) fn is_ours(content: &[u8]) -> bool {
    content.starts_with(WRITER.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_back_and_damage_is_detected() {
        let entry = |name: &str, records| FileEntry { name: name.into(), records, bytes: 99 };
        let name = Some("learner-1.b".parse().unwrap());
        let files = vec![entry("a", 1), entry("b", 0)];
        let manifest = Manifest {
            files: files.clone(),
            shard: Some(ShardIdentity { group: "a b/c=é".into(), index: 2, num_shards: 3 }),
            store: Some(0x0123_4567),
            taken_at: Some(UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789)),
            ..Manifest::new(name)
        };
        let text = manifest.to_text();
        assert_eq!(Manifest::parse(text.as_bytes()), Ok(Some(manifest)));
        let nobodys = Manifest { files, ..Manifest::default() };
        assert_eq!(Manifest::parse(nobodys.to_text().as_bytes()), Ok(Some(nobodys)));
        assert_eq!(Manifest::parse(b""), Ok(None));
        assert_eq!(Manifest::parse(b"another program"), Ok(None));
        for at in WRITER.len()..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Manifest::parse(&bytes).is_err(), "byte {at}");
            assert!(Manifest::parse(&text.as_bytes()[..at]).is_err(), "first {at} bytes");
        }
    }
}
