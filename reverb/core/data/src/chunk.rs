// SPDX-License-Identifier: Apache-2.0
//! Chunks: consecutive cells of one or several columns, encoded, immutable, shared by reference.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{Ordering, fence};

use bytes::Bytes;
use reverb_base::memory::prefetch_from;
use triomphe::ThinArc;

use crate::account::{Booking, allocated_bytes};
use crate::codec::{Compression, Encoding, TensorView, put_string_tensor, put_tensor, tensors_of};
use crate::disk::payload::DiskPayload;
use crate::proto_bytes::{Field, Reader};
use crate::templates::known_layout::{INDEX_MASK, KnownLayout};
use crate::tensor::{Tensor, TensorData};
use crate::tensor_head::TensorHead;
use reverb_base::error::{Error, Result};

/// The range of an episode's steps that a chunk covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceRange {
    /// Random id of the episode.
    pub episode_id: u64,
    /// First step.
    pub start: i32,
    /// Last step, inclusive.
    pub end: i32,
    /// True if steps in between are missing.
    pub sparse: bool,
}

/// An encoded, immutable run of steps. Cloning shares it.
///
/// One allocation holds the header and a small payload, or its values alone if the rest of the
/// payload is in a known layout; a large payload stays in the buffer it arrived in. On a server
/// with a store it may be on disk; then `load` gives a chunk whose payload can be read.
#[derive(Clone)]
pub struct Chunk(ThinArc<Header, u8>);

/// Millions of these are in memory, so every field has its exact width, and a test holds the sum.
struct Header {
    key: u64,
    payload: Payload,
    start: i32,
    end: i32,
    /// Also holds flags, and the size of the allocation in units of `SIZE_UNIT`, or the index of
    /// the known layout.
    booking: Booking,
}

/// Where the payload is. The id of the episode stands beside the payload, because it would make the
/// header larger.
enum Payload {
    /// Behind the header.
    Inline {
        episode_id: u64,
    },
    Shared(Box<SharedPayload>),
    /// On disk, or on its way there.
    Disk(Box<DiskPayload>),
}

struct SharedPayload {
    episode_id: u64,
    data: Bytes,
    /// Bytes of the buffer that `data` keeps alive.
    pinned_bytes: usize,
}

const SPARSE: u16 = 1 << 15;
/// Flag of a chunk with a known layout, which also determines its size and `DELTA`.
const KNOWN: u16 = 1 << 14;
const DELTA: u16 = 1 << 13;
const SIZE_MASK: u16 = DELTA - 1;
/// Sizes of allocations are multiples of this.
const SIZE_UNIT: usize = 16;

/// Bytes that `ThinArc` adds to the header: the number of references, and the length of the slice.
pub(crate) const ARC_BYTES: usize = 16;

/// Payloads up to this size are copied next to the header; larger ones stay in their buffer.
const MAX_INLINE_BYTES: usize = 4096;

/// Largest payload next to a header; its size has to fit into 13 bits.
const MAX_COPIED_BYTES: usize = 96 * 1024;

/// Bytes behind the header that a prefetch brings: those of a small transition.
const FETCHED_PAYLOAD_BYTES: usize = 24;

/// Bytes of an allocation with `num_bytes` behind the header.
pub(crate) const fn bytes_beside(num_bytes: usize) -> usize {
    size_of::<Header>() + ARC_BYTES + num_bytes
}

impl Drop for Header {
    fn drop(&mut self) {
        if self.booking.is_charged() {
            self.booking.discharge(self.own_bytes());
        }
    }
}

impl Header {
    fn new(
        key: u64,
        range: SequenceRange,
        delta: bool,
        inline_bytes: usize,
        payload: Payload,
    ) -> Self {
        let size = allocated_bytes(bytes_beside(inline_bytes)) / SIZE_UNIT;
        let delta = if delta { DELTA } else { 0 };
        Self::with_bits(key, range, delta | (size as u16 & SIZE_MASK), payload)
    }

    fn with_bits(key: u64, range: SequenceRange, bits: u16, payload: Payload) -> Self {
        let SequenceRange { start, end, sparse, .. } = range;
        let booking = Booking::new(bits | if sparse { SPARSE } else { 0 });
        Self { key, payload, start, end, booking }
    }

    #[inline]
    fn is_set(&self, flag: u16) -> bool {
        self.booking.of_chunk & flag != 0
    }

    /// Index of its layout, if that is known.
    #[inline]
    fn layout_index(&self) -> Option<u16> {
        self.is_set(KNOWN).then_some(self.booking.of_chunk & INDEX_MASK)
    }

    #[inline]
    fn known_layout(&self) -> Option<&'static KnownLayout> {
        self.layout_index().map(KnownLayout::at)
    }

    /// Bytes in memory, without the plain chunk of a disk chunk.
    fn own_bytes(&self) -> u64 {
        if let Some(known) = self.known_layout() {
            return known.chunk_bytes;
        }
        let own = usize::from(self.booking.of_chunk & SIZE_MASK) * SIZE_UNIT;
        let outside = match &self.payload {
            Payload::Inline { .. } => 0,
            Payload::Shared(shared) => {
                allocated_bytes(size_of::<SharedPayload>()) + allocated_bytes(shared.pinned_bytes)
            }
            Payload::Disk(disk) => disk.own_bytes(),
        };
        (own + outside) as u64
    }
}

impl Chunk {
    /// Creates a chunk of the given payload, a serialized `ChunkData.Data` message.
    pub fn new(key: u64, range: SequenceRange, delta: bool, data: Bytes) -> Self {
        if data.len() <= MAX_INLINE_BYTES {
            return Self::from_slice(key, range, delta, &data);
        }
        let pinned_bytes = data.len();
        Self::from_shared(key, range, delta, data, pinned_bytes)
    }

    /// Creates a chunk whose payload is part of a buffer of `pinned_bytes`, which stays alive with
    /// it.
    pub fn from_shared(
        key: u64,
        range: SequenceRange,
        delta: bool,
        data: Bytes,
        pinned_bytes: usize,
    ) -> Self {
        let shared = SharedPayload { episode_id: range.episode_id, data, pinned_bytes };
        let header = Header::new(key, range, delta, 0, Payload::Shared(Box::new(shared)));
        Self(ThinArc::from_header_and_slice(header, &[]))
    }

    /// Creates a disk chunk.
    pub(crate) fn of_disk(
        key: u64,
        range: SequenceRange,
        delta: bool,
        payload: DiskPayload,
    ) -> Self {
        let header = Header::new(key, range, delta, 0, Payload::Disk(Box::new(payload)));
        Self(ThinArc::from_header_and_slice(header, &[]))
    }

    /// Bytes in memory of a plain chunk that `new` makes of a payload.
    pub(crate) fn bytes_of_plain(payload_len: usize) -> usize {
        if payload_len <= MAX_INLINE_BYTES {
            return allocated_bytes(bytes_beside(payload_len));
        }
        let outside = allocated_bytes(size_of::<SharedPayload>()) + allocated_bytes(payload_len);
        allocated_bytes(bytes_beside(0)) + outside
    }

    /// Creates a chunk whose payload is copied, next to its header or into a buffer of its own.
    pub fn from_payload(key: u64, range: SequenceRange, delta: bool, data: &[u8]) -> Self {
        if data.len() <= MAX_INLINE_BYTES {
            return Self::from_slice(key, range, delta, data);
        }
        Self::new(key, range, delta, Bytes::copy_from_slice(data))
    }

    /// Creates a chunk whose payload is copied: next to its header, or if it is large into a buffer
    /// of its own.
    pub fn from_slice(key: u64, range: SequenceRange, delta: bool, data: &[u8]) -> Self {
        if data.len() > MAX_COPIED_BYTES {
            return Self::new(key, range, delta, Bytes::copy_from_slice(data));
        }
        let payload = Payload::Inline { episode_id: range.episode_id };
        let header = Header::new(key, range, delta, data.len(), payload);
        Self(ThinArc::from_header_and_slice(header, data))
    }

    /// Creates a chunk of a known layout with these values.
    pub(crate) fn of_layout(
        key: u64,
        range: SequenceRange,
        layout: &'static KnownLayout,
        values: &[u8],
    ) -> Self {
        assert_eq!(values.len(), layout.num_value_bytes, "a layout has a fixed size");
        let payload = Payload::Inline { episode_id: range.episode_id };
        let header = Header::with_bits(key, range, KNOWN | layout.index, payload);
        Self(ThinArc::from_header_and_slice(header, values))
    }

    /// Starts to bring the header and a small payload into the cache of the processor; does not
    /// wait for them.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_from(self.header(), size_of::<Header>() + FETCHED_PAYLOAD_BYTES);
    }

    /// Its random key.
    #[inline]
    pub fn key(&self) -> u64 {
        self.header().key
    }

    /// The range of its steps in the episode.
    #[inline]
    pub fn range(&self) -> SequenceRange {
        let header = self.header();
        let episode_id = match &header.payload {
            Payload::Inline { episode_id } => *episode_id,
            Payload::Shared(shared) => shared.episode_id,
            Payload::Disk(disk) => disk.episode_id,
        };
        SequenceRange {
            episode_id,
            start: header.start,
            end: header.end,
            sparse: header.is_set(SPARSE),
        }
    }

    /// Returns true if its integer tensors are delta encoded.
    #[inline]
    pub fn is_delta_encoded(&self) -> bool {
        match self.known_layout() {
            Some(known) => known.layout.delta,
            None => self.header().is_set(DELTA),
        }
    }

    /// The payload: a serialized `ChunkData.Data` message.
    pub fn payload(&self) -> Cow<'_, [u8]> {
        match self.known_layout() {
            Some(_) => {
                let mut payload = Vec::with_capacity(self.payload_len());
                self.put_payload(&mut payload);
                payload.into()
            }
            None => self.stored().into(),
        }
    }

    /// Length of the payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        match self.known_layout() {
            Some(known) => known.payload_len(),
            None => match &self.header().payload {
                Payload::Inline { .. } => self.0.slice.len(),
                Payload::Shared(shared) => shared.data.len(),
                Payload::Disk(disk) => disk.len(),
            },
        }
    }

    /// Appends the payload.
    #[inline]
    pub fn put_payload(&self, out: &mut Vec<u8>) {
        match self.known_layout() {
            Some(known) => known.put_payload(self.stored(), out),
            None => out.extend_from_slice(self.stored()),
        }
    }

    /// Returns true if both have the same payload. Of disk chunks only the same one has, as their
    /// payloads are not read.
    pub fn has_payload_of(&self, other: &Self) -> bool {
        if self.is_disk_chunk() || other.is_disk_chunk() {
            self.is_same(other)
        } else if self.layout_index() == other.layout_index() {
            self.stored() == other.stored()
        } else {
            self.payload() == other.payload()
        }
    }

    /// Stored bytes: the payload, or its values alone if the layout is known. A disk chunk has
    /// none: it has to be loaded.
    #[inline]
    pub fn stored(&self) -> &[u8] {
        match &self.header().payload {
            Payload::Inline { .. } => &self.0.slice,
            Payload::Shared(shared) => &shared.data,
            Payload::Disk(_) => not_loaded(),
        }
    }

    /// What a disk chunk knows of its payload.
    #[inline]
    pub(crate) fn disk(&self) -> Option<&DiskPayload> {
        match &self.header().payload {
            Payload::Disk(disk) => Some(disk),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn known_layout(&self) -> Option<&'static KnownLayout> {
        self.header().known_layout()
    }

    /// Index of its layout, if that is known.
    #[inline]
    pub(crate) fn layout_index(&self) -> Option<u16> {
        self.header().layout_index()
    }

    /// The payload as a shared buffer, if it has one.
    #[inline]
    pub fn shared_payload(&self) -> Option<&Bytes> {
        match &self.header().payload {
            Payload::Shared(shared) => Some(&shared.data),
            _ => None,
        }
    }

    /// The tensors in order, with their headers parsed.
    pub fn tensors(&self) -> impl Iterator<Item = Result<TensorView<'_>>> {
        let known = self.known_layout();
        let num_known = known.map_or(0, |known| known.layout.tensors.len());
        let raw = known.into_iter().flat_map(move |known| {
            (0..num_known).filter_map(move |index| known.tensor(index, self.stored()).map(Ok))
        });
        let payload = if known.is_none() { self.stored() } else { &[] };
        raw.chain(tensors_of(payload, self.is_delta_encoded()))
    }

    /// The tensor at `index`.
    pub fn tensor(&self, index: usize) -> Result<TensorView<'_>> {
        if let Some(known) = self.known_layout() {
            let tensor = known.tensor(index, self.stored());
            return tensor.ok_or_else(|| self.out_of_range(index, known.layout.tensors.len()));
        }
        let mut reader = Reader::new(self.stored());
        let mut at = 0;
        while let Some((field, value)) = reader.field()? {
            if let (1, Field::Bytes(tensor)) = (field, value) {
                if at == index {
                    return TensorView::parse(tensor, self.is_delta_encoded());
                }
                at += 1;
            }
        }
        if self.is_disk_chunk() {
            return Err(Error::data_loss(format!("Chunk {} is not loaded.", self.key())));
        }
        Err(self.out_of_range(index, at))
    }

    /// Dtype and shape of the tensor at `index`; of a disk chunk too.
    #[inline]
    pub fn head(&self, index: usize) -> Result<TensorHead<'_>> {
        if let Some(known) = self.known_layout() {
            let head = known.head(index);
            return head.ok_or_else(|| self.out_of_range(index, known.layout.tensors.len()));
        }
        match self.disk() {
            Some(disk) => {
                disk.head(index).ok_or_else(|| self.out_of_range(index, disk.num_tensors()))
            }
            None => self.tensor(index).map(TensorView::into_head),
        }
    }

    /// The head of the tensor at `index`, if it holds rows `[offset, offset + length)`.
    pub(crate) fn head_with_rows(
        &self,
        index: usize,
        offset: usize,
        length: usize,
    ) -> Result<TensorHead<'_>> {
        if self.is_disk_chunk() {
            let head = self.head(index)?;
            return head.check_rows(offset, length).map(|()| head);
        }
        let tensor = self.tensor(index)?;
        tensor.check_rows(offset, length)?;
        tensor.plausible_bytes(length)?;
        Ok(tensor.into_head())
    }

    #[cold]
    fn out_of_range(&self, index: usize, num_tensors: usize) -> Error {
        Error::invalid_argument(format!(
            "Tensor index {index} is out of range: chunk {} holds {num_tensors} tensors.",
            self.key()
        ))
    }

    /// Number of tensors; in a damaged payload, of those before the damage.
    pub fn num_tensors(&self) -> usize {
        if let Some(known) = self.known_layout() {
            return known.layout.tensors.len();
        }
        if let Some(disk) = self.disk() {
            return disk.num_tensors();
        }
        let mut reader = Reader::new(self.stored());
        let mut tensors = 0;
        while let Ok(Some(field)) = reader.field() {
            tensors += usize::from(matches!(field, (1, Field::Bytes(_))));
        }
        tensors
    }

    /// Returns true if both are the same chunk in memory.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.header(), other.header())
    }

    /// An identifier that is unique among all live chunks, even those with the same key.
    pub fn identity(&self) -> usize {
        std::ptr::from_ref(self.header()).addr()
    }

    /// Bytes in memory: header, payload, and the rest of the buffer that it keeps alive. Those of a
    /// disk chunk are the same wherever its payload is.
    pub fn bytes(&self) -> u64 {
        self.own_bytes() + self.payload_bytes()
    }

    /// Part of `bytes` that leaves memory when the payload is forgotten: the plain chunk of a disk
    /// chunk, and nothing of any other.
    #[inline]
    pub fn payload_bytes(&self) -> u64 {
        self.disk().map_or(0, DiskPayload::plain_bytes)
    }

    /// Part of `bytes` that another server may count at another chunk, after a load for example:
    /// heads of a disk chunk, which the chunks after it share.
    #[inline]
    pub(crate) fn heads_bytes(&self) -> u64 {
        self.disk().map_or(0, DiskPayload::heads_bytes) as u64
    }

    /// `bytes` without `payload_bytes`, which this chunk itself is charged with.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.header().own_bytes()
    }

    pub(crate) fn booking(&self) -> &Booking {
        &self.header().booking
    }

    /// Number of references to this chunk, for tests and memory reports.
    #[inline]
    pub fn reference_count(&self) -> usize {
        ThinArc::strong_count(&self.0)
    }

    /// True if there is no other reference to this chunk. What others did to it before they let go
    /// of it is visible then.
    #[inline]
    pub(crate) fn is_referred_to_once(&self) -> bool {
        let is_alone = self.reference_count() == 1;
        fence(Ordering::Acquire);
        is_alone
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.0.header.header
    }
}

/// Readers of an empty payload report damage; a debug build stops at the mistake.
#[cold]
fn not_loaded() -> &'static [u8] {
    debug_assert!(false, "a disk chunk has to be loaded before its payload is read");
    &[]
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("key", &self.key())
            .field("range", &self.range())
            .field("bytes", &self.payload_len())
            .finish_non_exhaustive()
    }
}

/// Encodes tensors into a chunk.
#[derive(Debug, Default)]
pub struct ChunkBuilder {
    data: Vec<u8>,
    delta: bool,
}

impl ChunkBuilder {
    /// A builder; `delta` turns delta encoding on for the whole chunk.
    pub fn new(delta: bool) -> Self {
        Self { data: Vec::new(), delta }
    }

    /// Adds a stacked tensor.
    pub fn push(&mut self, tensor: &Tensor) {
        match &tensor.data {
            TensorData::Bytes(bytes) => {
                let encoding = Encoding { delta: self.delta, compression: Compression::Auto };
                put_tensor(&mut self.data, tensor.dtype, &tensor.shape, bytes, encoding);
            }
            TensorData::Strings(strings) => {
                put_string_tensor(&mut self.data, &tensor.shape, strings);
            }
        }
    }

    /// Builds the chunk from all tensors that were added.
    pub fn finish(self, key: u64, range: SequenceRange) -> Chunk {
        if self.data.len() <= MAX_INLINE_BYTES {
            return Chunk::from_slice(key, range, self.delta, &self.data);
        }
        Chunk::new(key, range, self.delta, Bytes::from(self.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_takes_forty_bytes() {
        assert_eq!(size_of::<Header>(), 40);
        assert_eq!(allocated_bytes(size_of::<SharedPayload>()), 48);
    }

    #[test]
    fn the_range_and_the_flags_come_back() {
        for (sparse, delta) in [(false, false), (true, false), (false, true), (true, true)] {
            let range = SequenceRange { episode_id: u64::MAX, start: i32::MIN, end: -7, sparse };
            for data in [24, MAX_COPIED_BYTES, MAX_COPIED_BYTES + 1].map(|bytes| vec![1u8; bytes]) {
                let data = &data[..];
                let chunk = Chunk::from_slice(9, range, delta, data);
                assert_eq!((chunk.range(), chunk.is_delta_encoded()), (range, delta));
                assert_eq!((chunk.key(), chunk.stored()), (9, data));
                assert!((data.len()..data.len() * 5 / 4 + 200).contains(&(chunk.bytes() as usize)));
            }
        }
    }

    #[test]
    fn a_chunk_counts_the_buffer_that_it_keeps_alive() {
        let buffer = Bytes::from(vec![0; 300_000]);
        let range = SequenceRange::default();
        let chunk = Chunk::from_shared(1, range, false, buffer.slice(..200_000), buffer.len());
        let buffer = 5 << 16;
        assert_eq!(chunk.bytes(), buffer + 48 + 64);
    }
}
