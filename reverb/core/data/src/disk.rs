// SPDX-License-Identifier: Apache-2.0
//! Disk chunks: chunks whose payload may leave memory, and is read back from a data file.
//!
//! A disk chunk has the key, range and flags of a plain chunk, which it holds until its payload is
//! forgotten. Readers of values get plain chunks: the one that is in memory, or one that was read.

pub(crate) mod data_file;
pub(crate) mod heads;
pub(crate) mod payload;

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use reverb_base::error::{Error, Result};

use self::data_file::Place;
use self::heads::{Heads, HeadsCache};
use self::payload::{DiskPayload, Readable};
use crate::chunk::{Chunk, SequenceRange};
use crate::codec::zeros;

/// What a journal knows of a disk chunk: its id, 0 before the first record, and the numbers of the
/// last log and the last base that have a record of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the sentence above names them")]
pub struct Recorded {
    pub id: u64,
    pub log: u32,
    pub base: u32,
}

impl Chunk {
    /// A disk chunk with the payload of a plain chunk, which is its own one while it is resident.
    ///
    /// `None` if the payload has to stay in memory: it has at most 1,024 bytes or 4 GiB and more, a
    /// tensor does not parse or lacks rows, or there are more than 1,024 tensors. `None` also for a
    /// disk chunk.
    pub fn on_disk(plain: &Self, heads: &mut HeadsCache) -> Option<Self> {
        let payload = DiskPayload::new(plain, heads)?;
        Some(Self::of_disk(plain.key(), plain.range(), plain.is_delta_encoded(), payload))
    }

    /// A disk chunk whose payload of `len` bytes is at a place, and not in memory; `None` if heads
    /// and rows make tensors that no memory holds. The first chunk with these heads counts them.
    ///
    /// # Panics
    ///
    /// If the place is at 32 GiB or above.
    pub fn at_place(
        (key, range, delta): (u64, SequenceRange, bool),
        (heads, num_rows): (&Arc<Heads>, u32),
        len: u32,
        place: Place,
    ) -> Option<Self> {
        if !heads.can_have(num_rows) {
            return None;
        }
        let is_first = Arc::strong_count(heads) == 1;
        let payload = DiskPayload::on_disk(range, heads.clone(), num_rows, len, is_first);
        payload.set_place(place);
        Some(Self::of_disk(key, range, delta, payload))
    }

    /// The heads of a disk chunk's tensors, and the number of rows of the first one.
    pub fn heads(&self) -> Option<(&Arc<Heads>, u32)> {
        self.disk().map(DiskPayload::heads)
    }

    /// What a journal knows of a disk chunk.
    pub fn recorded(&self) -> Option<Recorded> {
        self.disk().map(DiskPayload::recorded)
    }

    /// Notes what a journal knows of a disk chunk.
    pub fn set_recorded(&self, recorded: Recorded) {
        if let Some(payload) = self.disk() {
            payload.set_recorded(recorded);
        }
    }

    /// Returns true if the payload may leave memory.
    #[inline]
    pub fn is_disk_chunk(&self) -> bool {
        self.disk().is_some()
    }

    /// The plain chunk while it is in memory; a plain chunk itself.
    #[inline]
    pub fn resident(&self) -> Option<Self> {
        match self.disk() {
            Some(payload) => payload.resident(),
            None => Some(self.clone()),
        }
    }

    /// Where the payload of a disk chunk is, once it was written.
    pub fn place(&self) -> Option<Place> {
        self.disk()?.place()
    }

    /// Says where the payload of a disk chunk was written, or written anew.
    ///
    /// # Panics
    ///
    /// If the place is at 32 GiB or above.
    pub fn set_place(&self, place: Place) {
        if let Some(payload) = self.disk() {
            payload.set_place(place);
        }
    }

    /// Drops the payload in memory, if it can be read from a place; returns true then. Its bytes go
    /// off the server's account with the last reader of them.
    pub fn forget(&self) -> bool {
        self.disk().is_some_and(DiskPayload::forget)
    }

    /// The plain chunk: the one that is resident, or one that is read from the disk and checked. A
    /// plain chunk itself.
    ///
    /// # Errors
    ///
    /// `DataLoss` if the payload cannot be read back; the chunk is lost from then on.
    /// `ResourceExhausted` if there is no memory for it.
    pub fn load(&self) -> Result<Self> {
        let Some(payload) = self.disk() else { return Ok(self.clone()) };
        let place = match payload.readable() {
            Readable::InMemory(plain) => return Ok(plain),
            Readable::InFile(place) => place,
        };
        let mut bytes = zeros(payload.len())?;
        match place.file.read_exact_at(&mut bytes, place.offset) {
            Ok(()) => self.checked(payload, &place, bytes.into()),
            Err(error) => Err(lost(payload, &place, error)),
        }
    }

    /// The plain chunk of a payload that was read from the chunk's place.
    ///
    /// # Errors
    ///
    /// `DataLoss` if these are not the bytes that were written; the chunk is lost from then on.
    pub fn plain_of(&self, bytes: Bytes) -> Result<Self> {
        match self.disk().and_then(|payload| Some((payload, payload.place()?))) {
            Some((payload, place)) => self.checked(payload, &place, bytes),
            None => Err(Error::internal("a chunk without a place cannot have been read")),
        }
    }

    /// Returns true if the payload could not be read back.
    pub fn is_lost(&self) -> bool {
        self.disk().is_some_and(DiskPayload::is_lost)
    }

    /// Starts to bring what a disk chunk knows of its payload into the cache of the processor; does
    /// not wait for it.
    #[inline]
    pub fn prefetch_whereabouts(&self) {
        if let Some(payload) = self.disk() {
            reverb_base::memory::prefetch_from(payload, size_of::<DiskPayload>());
        }
    }

    fn checked(&self, payload: &DiskPayload, place: &Place, bytes: Bytes) -> Result<Self> {
        if bytes.len() != payload.len() {
            let text = format!("{} bytes instead of {}", bytes.len(), payload.len());
            return Err(lost(payload, place, text));
        }
        if crc32c::crc32c(&bytes) != place.crc {
            place.file.count_wrong_bytes();
            return Err(lost(payload, place, "checksum differs"));
        }
        Ok(Self::new(self.key(), self.range(), self.is_delta_encoded(), bytes))
    }
}

fn lost(payload: &DiskPayload, place: &Place, why: impl Display) -> Error {
    payload.lose();
    let path = place.file.path();
    let name = path.file_name().unwrap_or(path.as_os_str());
    Error::data_loss(format!("{} at {}: {why}", name.display(), place.offset))
}

#[cfg(test)]
mod tests;
