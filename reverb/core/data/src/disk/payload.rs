// SPDX-License-Identifier: Apache-2.0
//! Payloads of disk chunks: in memory, in a data file, or in both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Recorded;
use super::data_file::{DataFile, PAYLOAD_ALIGNMENT, Place};
use super::heads::{Heads, HeadsCache};
use crate::account::allocated_bytes;
use crate::chunk::{Chunk, SequenceRange};
use crate::tensor_head::TensorHead;

/// Smaller payloads stay in memory: what is known of a payload on disk takes 144 bytes.
const MAX_SMALL_PAYLOAD_BYTES: usize = 1024;

/// What a disk chunk knows of its payload. Millions of these are in memory, so every field has its
/// exact width, and a test holds the sum.
#[derive(Debug)]
pub(crate) struct DiskPayload {
    /// Id of the chunk's episode.
    pub(crate) episode_id: u64,
    heads: Arc<Heads>,
    /// Rows of the first tensor.
    num_rows: u32,
    /// Length of the payload.
    len: u32,
    /// Bytes of the plain chunk in memory.
    plain_bytes: u32,
    /// True if the heads were made for this chunk, which then counts them.
    counts_heads: bool,
    is_lost: AtomicBool,
    whereabouts: Mutex<Whereabouts>,
}

/// Where a payload is; at least one of `plain` and `file` is there.
#[derive(Debug)]
struct Whereabouts {
    plain: Option<Chunk>,
    file: Option<Arc<DataFile>>,
    /// Position in the file, in units of `PAYLOAD_ALIGNMENT`.
    position: u32,
    crc: u32,
    recorded: Recorded,
}

impl Whereabouts {
    fn new(plain: Option<Chunk>) -> Self {
        Self { plain, file: None, position: 0, crc: 0, recorded: Recorded::default() }
    }

    fn place(&self) -> Option<Place> {
        let file = Arc::clone(self.file.as_ref()?);
        Some(Place { file, offset: u64::from(self.position) * PAYLOAD_ALIGNMENT, crc: self.crc })
    }
}

/// A payload that can be read.
pub(super) enum Readable {
    InMemory(Chunk),
    InFile(Place),
}

impl DiskPayload {
    /// The payload of a plain chunk, in memory; `None` if it has to stay there.
    pub(super) fn new(plain: &Chunk, heads: &mut HeadsCache) -> Option<Self> {
        if plain.is_disk_chunk() || plain.payload_len() <= MAX_SMALL_PAYLOAD_BYTES {
            return None;
        }
        let len = u32::try_from(plain.payload_len()).ok()?;
        let plain_bytes = u32::try_from(plain.bytes()).ok()?;
        let found = heads.find(plain)?;
        Some(Self {
            episode_id: plain.range().episode_id,
            heads: found.heads,
            num_rows: found.num_rows,
            len,
            plain_bytes,
            counts_heads: found.is_new,
            is_lost: AtomicBool::new(false),
            whereabouts: Mutex::new(Whereabouts::new(Some(plain.clone()))),
        })
    }

    /// A payload of this length that is on disk; its place is set next.
    pub(super) fn on_disk(
        range: SequenceRange,
        heads: Arc<Heads>,
        num_rows: u32,
        len: u32,
        counts_heads: bool,
    ) -> Self {
        let plain_bytes = Chunk::bytes_of_plain(len as usize);
        Self {
            episode_id: range.episode_id,
            heads,
            num_rows,
            len,
            plain_bytes: u32::try_from(plain_bytes).unwrap_or(u32::MAX),
            counts_heads,
            is_lost: AtomicBool::new(false),
            whereabouts: Mutex::new(Whereabouts::new(None)),
        }
    }

    /// Length of the payload.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Number of tensors.
    #[inline]
    pub(crate) fn num_tensors(&self) -> usize {
        self.heads.len()
    }

    /// The head of a tensor. Its content holds all its rows, which was checked at first.
    #[inline]
    pub(crate) fn head(&self, index: usize) -> Option<TensorHead<'_>> {
        self.heads.get(index, self.num_rows)
    }

    /// The heads of all tensors, together with the number of rows of the first one.
    #[inline]
    pub(crate) fn heads(&self) -> (&Arc<Heads>, u32) {
        (&self.heads, self.num_rows)
    }

    /// Bytes of the plain chunk in memory, wherever it is now.
    #[inline]
    pub(crate) fn plain_bytes(&self) -> u64 {
        u64::from(self.plain_bytes)
    }

    /// Bytes in memory without the plain chunk.
    pub(crate) fn own_bytes(&self) -> usize {
        allocated_bytes(size_of::<Self>()) + self.heads_bytes()
    }

    /// Part of `own_bytes` that depends on the chunks before it: heads that were made for this one.
    #[inline]
    pub(crate) fn heads_bytes(&self) -> usize {
        if self.counts_heads { self.heads.bytes() } else { 0 }
    }

    /// The plain chunk while it is in memory.
    #[inline]
    pub(crate) fn resident(&self) -> Option<Chunk> {
        self.whereabouts.lock().plain.clone()
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.whereabouts.lock().place()
    }

    pub(super) fn recorded(&self) -> Recorded {
        self.whereabouts.lock().recorded
    }

    pub(super) fn set_recorded(&self, recorded: Recorded) {
        self.whereabouts.lock().recorded = recorded;
    }

    pub(super) fn set_place(&self, Place { file, offset, crc }: Place) {
        debug_assert!(offset.is_multiple_of(PAYLOAD_ALIGNMENT), "payloads are aligned");
        let position =
            u32::try_from(offset / PAYLOAD_ALIGNMENT).expect("a data file has less than 32 GiB");
        file.add_live(self.len);
        let mut whereabouts = self.whereabouts.lock();
        let before = whereabouts.file.replace(file);
        (whereabouts.position, whereabouts.crc) = (position, crc);
        // The last reference to a file closes it, which is not done under a lock.
        drop(whereabouts);
        if let Some(before) = before {
            before.remove_live(self.len);
        }
    }

    /// Drops the plain chunk, if there is a place.
    pub(super) fn forget(&self) -> bool {
        let mut whereabouts = self.whereabouts.lock();
        let plain = if whereabouts.file.is_some() { whereabouts.plain.take() } else { None };
        drop(whereabouts);
        plain.is_some()
    }

    pub(super) fn readable(&self) -> Readable {
        let whereabouts = self.whereabouts.lock();
        match &whereabouts.plain {
            Some(plain) => Readable::InMemory(plain.clone()),
            None => Readable::InFile(
                whereabouts.place().expect("only a payload with a place is forgotten"),
            ),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    pub(super) fn lose(&self) {
        self.is_lost.store(true, Relaxed);
    }
}

impl Drop for DiskPayload {
    fn drop(&mut self) {
        if let Some(file) = &self.whereabouts.get_mut().file {
            file.remove_live(self.len);
        }
    }
}
