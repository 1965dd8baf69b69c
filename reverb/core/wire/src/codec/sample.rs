// SPDX-License-Identifier: Apache-2.0
//! `SampleStreamResponse`: splits samples into messages and joins them again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{
    Field, Reader, put_bytes_field, put_double_field, put_int_field, put_nested,
    put_nested_of_width, put_tag, put_varint, put_varint_field, varint_len,
};
use reverb_data::{
    Chunk, SampleOptions, Sampled, SampledWindow, Stacking, Trajectory, WithinEpoch,
};
use smallvec::SmallVec;

use crate::codec::chunk::{
    ChunkMeasure, RawChunk, put_chunk, put_chunk_with, put_payload, put_small_chunk,
};
use crate::codec::item::{ItemHead, RawItem, Repeats, put_item};
use crate::codec::kept_chunks::KeptChunks;
use crate::codec::trajectory_template::TrajectoryTemplates;
use crate::convert::window::{to_window, window_message};
use crate::generated::{SampleStreamRequest, Timeout, sample_stream_request};
use crate::transport::SampleRequest;
use reverb_rpc::message::{Message, MessageBuilder, PREFIX_BYTES};

/// Size after which a message is closed.
pub const MAX_MESSAGE_BYTES: usize = 2 << 20;

/// Bytes of a chunk in a message beside its payload, at most.
pub const CHUNK_BYTES: usize = 96;

/// Bytes of a sample in a message beside its chunks and its trajectory, at most, without the name
/// of its table.
pub const SAMPLE_BYTES: usize = 160;

/// Number of the field of `SampleStreamResponse` that ends a request.
const EPOCH_IS_OVER: u32 = 1000;

/// Creates the message of a request.
///
/// dm-reverb's servers take a timeout of zero as "no timeout", so their shortest timeout is sent
/// instead.
pub fn request(request: &SampleRequest<'_>) -> SampleStreamRequest {
    let SampleRequest { table, num_samples, timeout, options, columns, spans } = *request;
    let SampleOptions { stacking, all_or_nothing, distinct, epoch, window, waits_since } = options;
    let milliseconds = timeout.map_or(-1, |timeout| {
        i64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).max(1)
    });
    SampleStreamRequest {
        table: table.to_owned(),
        num_samples: i64::try_from(num_samples).unwrap_or(i64::MAX),
        rate_limiter_timeout: Some(Timeout { milliseconds }),
        stacking: stacking.map(|stacking| sample_stream_request::Stacking {
            batch_size: stacking.batch_size as u64,
            position: stacking.position as u64,
        }),
        all_or_nothing,
        distinct,
        columns: columns.to_vec(),
        epoch: epoch.map(|epoch| match epoch {
            WithinEpoch::New => sample_stream_request::Epoch { begin: true, up_to: 0 },
            WithinEpoch::UpTo(up_to) => sample_stream_request::Epoch { begin: false, up_to },
        }),
        window: window.map(|window| window_message(window, spans)),
        waited_ms: waits_since
            .map_or(0, |since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)),
    }
}

/// Options of a request of a peer that has been connected since then.
///
/// # Errors
///
/// `InvalidArgument` for invalid numbers.
pub fn options(request: &SampleStreamRequest, connected_at: Instant) -> Result<SampleOptions> {
    let SampleStreamRequest { all_or_nothing, distinct, waited_ms, .. } = *request;
    let epoch = request
        .epoch
        .map(|epoch| if epoch.begin { WithinEpoch::New } else { WithinEpoch::UpTo(epoch.up_to) });
    if epoch.is_some() && (all_or_nothing || distinct) {
        return Err(Error::invalid_argument(
            "`epoch` may not be set together with `all_or_nothing` or `distinct`: a request that \
             ends with an epoch may be short, and has no item twice.",
        ));
    }
    let stacking = stacking(request)?;
    let window = request.window.as_ref().map(to_window).transpose()?;
    let waits_since = (waited_ms > 0).then(|| {
        let since = Instant::now().checked_sub(Duration::from_millis(waited_ms));
        since.map_or(connected_at, |since| since.max(connected_at))
    });
    Ok(SampleOptions { stacking, all_or_nothing, distinct, epoch, window, waits_since })
}

fn stacking(request: &SampleStreamRequest) -> Result<Option<Stacking>> {
    let Some(sample_stream_request::Stacking { batch_size, position }) = request.stacking else {
        return Ok(None);
    };
    if batch_size == 0 || position >= batch_size {
        return Err(Error::invalid_argument(format!(
            "`stacking` needs a `batch_size` of at least 1 and a `position` below it, got \
             {batch_size} and {position}."
        )));
    }
    let number = |value| usize::try_from(value).unwrap_or(usize::MAX);
    Ok(Some(Stacking { batch_size: number(batch_size), position: number(position) }))
}

/// Splits samples into messages: one message has several samples, or a large sample spans several
/// messages.
///
/// Payloads of disk chunks are left out, and filled in when the message is taken: the caller reads
/// them one message at a time.
#[derive(Debug)]
pub struct SampleEncoder {
    builder: MessageBuilder,
    capacity: usize,
    scratch: Vec<u8>,
    templates: TrajectoryTemplates,
    /// Chunks that the reader of a scan has. For other readers, each sample is sent with all its
    /// chunks.
    kept: Option<KeptChunks>,
    /// Number of chunks of the current sample that were written.
    written: Option<usize>,
    /// Chunks of the current sample that its reader does not have, if it keeps chunks.
    new_chunks: Vec<Chunk>,
    /// Disk chunks in the message, whose payloads are left out.
    missing: Vec<Chunk>,
    /// Positions of their payloads in what is written.
    gaps: Vec<usize>,
    missing_bytes: usize,
}

/// Initial capacity, so that the buffer of a small sample need not grow.
const SAMPLE_CAPACITY: usize = 256;

/// Maximum capacity that is reserved because of the previous message.
const MAX_CAPACITY: usize = 64 << 10;

/// Payloads below this size are written before their entry's length, which may move them.
const MAX_SMALL_PAYLOAD: usize = 4096;

impl Default for SampleEncoder {
    fn default() -> Self {
        Self::new()
    }
}

impl SampleEncoder {
    /// An encoder without samples.
    pub fn new() -> Self {
        Self {
            builder: MessageBuilder::with_capacity(0),
            capacity: SAMPLE_CAPACITY,
            scratch: Vec::new(),
            templates: TrajectoryTemplates::default(),
            kept: None,
            written: None,
            new_chunks: Vec::new(),
            missing: Vec::new(),
            gaps: Vec::new(),
            missing_bytes: 0,
        }
    }

    /// An encoder for a reader that keeps this many bytes of chunks.
    #[must_use]
    pub fn with_kept_chunks(mut self, bytes: usize) -> Self {
        self.kept = Some(KeptChunks::new(bytes));
        self
    }

    /// Sets how the next samples are written: the reader of each request knows a form.
    pub fn set_repeats(&mut self, repeats: Repeats) {
        self.templates.repeats = repeats;
    }

    /// How the next samples are written.
    pub fn repeats(&self) -> Repeats {
        self.templates.repeats
    }

    /// Returns true if the message has more than `max_bytes`, and should be taken before a sample
    /// is added.
    pub fn is_over(&self, max_bytes: usize) -> bool {
        self.body_len() > max_bytes
    }

    /// Length of the message so far, with the payloads that are left out.
    fn body_len(&self) -> usize {
        self.builder.body_len() + self.missing_bytes
    }

    /// Writes a sample of `table`, with this trajectory, or more of it, until the message has more
    /// than `max_bytes`. Returns true if the sample is complete; if not, the message must be taken,
    /// and the same sample be given again.
    pub fn write(
        &mut self,
        table: &str,
        sample: &Sampled,
        trajectory: &Trajectory,
        max_bytes: usize,
    ) -> bool {
        let chunks = trajectory.chunks();
        if self.written.is_none() {
            if let [chunk] = chunks
                && chunk.shared_payload().is_none()
                && chunk.payload_len() <= MAX_SMALL_PAYLOAD
                && !chunk.is_disk_chunk()
                && self.kept.is_none()
            {
                self.put_small_entry(table, sample, trajectory, chunk);
                return true;
            }
            self.scratch.clear();
            put_sample_info(&mut self.scratch, table, sample, trajectory, &mut self.templates);
            if let Some(kept) = &mut self.kept {
                self.new_chunks = chunks.iter().filter(|chunk| kept.add(chunk)).cloned().collect();
                kept.end_sample();
            }
        }
        let new_chunks = std::mem::take(&mut self.new_chunks);
        let chunks = if self.kept.is_some() { &new_chunks[..] } else { chunks };
        let written = self.put_entry_of(chunks, self.written.unwrap_or(0), max_bytes);
        let is_complete = written == chunks.len();
        self.written = (!is_complete).then_some(written);
        if !is_complete {
            self.new_chunks = new_chunks;
        }
        is_complete
    }

    /// Writes a sample of one small chunk, the most common case, at once. The bytes are the same.
    fn put_small_entry(
        &mut self,
        table: &str,
        sample: &Sampled,
        trajectory: &Trajectory,
        chunk: &Chunk,
    ) {
        self.reserve();
        let out = self.builder.out();
        let templates = &mut self.templates;
        put_nested_of_width::<2>(out, 1, |out| {
            put_nested(out, 1, |out| put_sample_info(out, table, sample, trajectory, templates));
            put_small_chunk(out, 2, chunk);
            put_varint_field(out, 3, 1);
        });
    }

    /// Writes an entry with the chunks from `begin` on, until the message has more than
    /// `max_bytes`. Returns the index after the last written chunk.
    fn put_entry_of(&mut self, chunks: &[Chunk], begin: usize, max_bytes: usize) -> usize {
        let mut end = begin;
        let mut bytes = self.body_len() + self.scratch.len();
        while end < chunks.len() {
            bytes += chunks[end].payload_len() + CHUNK_BYTES;
            end += 1;
            if bytes > max_bytes {
                break;
            }
        }
        self.put_entry(&chunks[begin..end], end == chunks.len());
        end
    }

    /// Returns true if the message that begins now may be discarded: not if it continues a sample,
    /// or its reader would be thought to keep chunks of it.
    pub fn may_discard(&self) -> bool {
        self.written.is_none() && self.kept.is_none()
    }

    /// Drops the message. The samples that it has begun may be written again.
    pub fn discard(&mut self) {
        self.builder = MessageBuilder::with_capacity(0);
        self.written = None;
        self.forget_missing();
    }

    /// Disk chunks in the message. [`Self::take`] needs their plain chunks in the same order.
    pub fn missing(&self) -> &[Chunk] {
        &self.missing
    }

    /// Takes the written message with the payloads of `plain`, the plain chunks of
    /// [`Self::missing`], and begins the next one.
    ///
    /// # Panics
    ///
    /// If `plain` are other chunks: the reader could read nothing of the message.
    pub fn take(&mut self, plain: &[Chunk]) -> Message {
        self.capacity = self.builder.out().len().clamp(SAMPLE_CAPACITY, MAX_CAPACITY);
        let written = std::mem::replace(&mut self.builder, MessageBuilder::with_capacity(0));
        let lengths = plain.iter().map(Chunk::payload_len);
        let is_complete = lengths.eq(self.missing.iter().map(Chunk::payload_len));
        assert!(is_complete, "a message needs the plain chunks of all its disk chunks");
        if plain.is_empty() {
            return written.finish();
        }
        let message = fill(written.finish(), &self.gaps, plain);
        self.forget_missing();
        message
    }

    fn forget_missing(&mut self) {
        self.missing.clear();
        self.gaps.clear();
        self.missing_bytes = 0;
    }

    fn reserve(&mut self) {
        if self.builder.body_len() == 0 {
            self.builder.out().reserve(self.capacity);
        }
    }

    /// Writes an entry. The first entry of a sample takes the sample's information from `scratch`.
    fn put_entry(&mut self, chunks: &[Chunk], is_last: bool) {
        let info_len = if self.scratch.is_empty() {
            0
        } else {
            1 + varint_len(self.scratch.len() as u64) + self.scratch.len()
        };
        let measures: SmallVec<[ChunkMeasure; 4]> = chunks.iter().map(ChunkMeasure::new).collect();
        let chunks_len: usize = measures.iter().map(|measure| measure.field_len()).sum();
        self.reserve();
        let out = self.builder.out();
        put_tag(out, 1, 2);
        put_varint(out, (info_len + chunks_len + if is_last { 2 } else { 0 }) as u64);
        if info_len > 0 {
            put_bytes_field(out, 1, &self.scratch);
            self.scratch.clear();
        }
        for (chunk, measure) in chunks.iter().zip(measures) {
            if chunk.is_disk_chunk() {
                self.put_disk_chunk(chunk, measure);
            } else {
                put_chunk(&mut self.builder, 2, chunk, measure);
            }
        }
        put_varint_field(self.builder.out(), 3, u64::from(is_last));
    }

    /// Writes a disk chunk without its payload.
    fn put_disk_chunk(&mut self, chunk: &Chunk, measure: ChunkMeasure) {
        let gaps = &mut self.gaps;
        put_chunk_with(&mut self.builder, 2, chunk, measure, |builder| {
            gaps.push(builder.body_len());
        });
        self.missing_bytes += chunk.payload_len();
        self.missing.push(chunk.clone());
    }
}

/// The written message with the payloads of these chunks in its gaps.
fn fill(mut written: Message, gaps: &[usize], chunks: &[Chunk]) -> Message {
    written.advance(PREFIX_BYTES);
    let copied = chunks.iter().filter(|chunk| chunk.shared_payload().is_none());
    let copied_bytes: usize = copied.map(Chunk::payload_len).sum();
    let mut filled = MessageBuilder::with_capacity(written.remaining() + copied_bytes);
    let mut at = 0;
    for (&gap, chunk) in gaps.iter().zip(chunks) {
        filled.out().put((&mut written).take(gap - at));
        put_payload(&mut filled, chunk);
        at = gap;
    }
    filled.out().put(written);
    filled.finish()
}

fn put_sample_info(
    out: &mut Vec<u8>,
    table: &str,
    sample: &Sampled,
    trajectory: &Trajectory,
    templates: &mut TrajectoryTemplates,
) {
    let head = ItemHead {
        key: sample.key,
        table,
        priority: sample.priority,
        removal_priority: sample.removal_priority,
        times_sampled: sample.times_sampled,
        inserted_at_ns: Some(sample.inserted_at_ns),
    };
    put_nested(out, 1, |out| put_item(out, &head, trajectory, templates));
    put_double_field(out, 2, sample.probability);
    put_int_field(out, 3, sample.table_size);
    put_varint_field(out, 4, u64::from(sample.rate_limited));
    if sample.min_probability != 0.0 {
        put_double_field(out, 1000, sample.min_probability);
    }
    if sample.epoch != 0 {
        put_int_field(out, 1001, sample.epoch);
    }
    let SampledWindow { start, count } = sample.window;
    if count != 0 {
        put_int_field(out, 1002, i64::from(start));
        put_varint_field(out, 1003, u64::from(count));
    }
}

/// Joins the entries of any number of messages to samples.
///
/// The chunks of a sample may come in any order, and some may be unused. Its information must come
/// with its last entry at the latest.
#[derive(Debug, Default)]
pub struct SampleDecoder {
    /// The serialized `SampleInfo` of the current sample.
    info: Option<Bytes>,
    chunks: Vec<Chunk>,
    /// Used instead of `chunks` in a scan, where chunks outlive their sample.
    kept: Option<KeptChunks>,
    templates: TrajectoryTemplates,
    epoch_is_over: bool,
}

impl SampleDecoder {
    /// A decoder before the first sample.
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder that keeps this many bytes of chunks, at least as many as the encoder.
    #[must_use]
    pub fn with_kept_chunks(mut self, bytes: usize) -> Self {
        self.kept = Some(KeptChunks::new(bytes));
        self
    }

    /// Returns true if a sample has begun and not ended.
    pub fn is_within_sample(&self) -> bool {
        self.info.is_some() || !self.chunks.is_empty()
    }

    /// Returns true once for each message that says that the epoch is over.
    pub fn take_epoch_end(&mut self) -> bool {
        std::mem::take(&mut self.epoch_is_over)
    }

    /// Reads a message and appends the samples that it completes.
    pub fn push(&mut self, message: &Bytes, samples: &mut Vec<Sampled>) -> Result<()> {
        let mut reader = Reader::new(message);
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Bytes(entry)) => self.push_entry(message, entry, samples)?,
                (EPOCH_IS_OVER, Field::Varint(flag)) => self.epoch_is_over = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }

    fn push_entry(
        &mut self,
        message: &Bytes,
        entry: &[u8],
        samples: &mut Vec<Sampled>,
    ) -> Result<()> {
        let mut is_last = false;
        let mut reader = Reader::new(entry);
        let mut own_info = reader.next_bytes(1)?;
        while let Some(chunk) = reader.next_bytes(2)? {
            self.push_chunk(message, chunk)?;
        }
        if let Some(flag) = reader.next_varint(3)? {
            is_last = flag != 0;
        }
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Bytes(info)) => own_info = own_info.or(Some(info)),
                (2, Field::Bytes(chunk)) => self.push_chunk(message, chunk)?,
                (3, Field::Varint(flag)) => is_last = flag != 0,
                _ => {}
            }
        }
        if !is_last {
            self.info = self.info.take().or_else(|| own_info.map(|info| message.slice_ref(info)));
            return Ok(());
        }
        let earlier_info = self.info.take();
        let info = earlier_info.as_deref().or(own_info).ok_or_else(|| {
            Error::internal("The server sent a sample without the information about it.")
        })?;
        samples.push(self.finish_sample(info)?);
        Ok(())
    }

    #[inline]
    fn push_chunk(&mut self, message: &Bytes, chunk: &[u8]) -> Result<()> {
        let chunk = RawChunk::parse(chunk)?.to_transient(message);
        match &mut self.kept {
            Some(kept) => _ = kept.add(&chunk),
            None => self.chunks.push(chunk),
        }
        Ok(())
    }

    fn finish_sample(&mut self, info: &[u8]) -> Result<Sampled> {
        let templates = &mut self.templates;
        if let Some(kept) = &mut self.kept {
            let find = |key| kept.get(key).ok_or_else(|| missing(key));
            let sample = build_sample(info, templates, find);
            kept.end_sample();
            return sample;
        }
        let lookup = ChunkLookup::new(&self.chunks);
        let find = |key| lookup.find(key).ok_or_else(|| missing(key));
        let sample = build_sample(info, templates, find);
        self.chunks.clear();
        sample
    }
}

fn missing(key: u64) -> Error {
    Error::internal(format!("The server sent a sample without its chunk {key}."))
}

fn build_sample<'a>(
    info: &[u8],
    templates: &mut TrajectoryTemplates,
    find: impl Fn(u64) -> Result<&'a Chunk>,
) -> Result<Sampled> {
    let mut reader = Reader::new(info);
    let mut item = reader.next_bytes(1)?.unwrap_or_default();
    let mut probability = reader.next_fixed64(2)?.map_or(0.0, f64::from_bits);
    let mut table_size = reader.next_varint(3)?.map_or(0, |size| size as i64);
    let mut rate_limited = reader.next_varint(4)?.is_some_and(|flag| flag != 0);
    let mut min_probability = 0.0;
    let mut epoch = 0;
    let mut window = SampledWindow::default();
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Bytes(bytes)) => item = bytes,
            (2, Field::Fixed64(bits)) => probability = f64::from_bits(bits),
            (3, Field::Varint(size)) => table_size = size as i64,
            (4, Field::Varint(flag)) => rate_limited = flag != 0,
            (1000, Field::Fixed64(bits)) => min_probability = f64::from_bits(bits),
            (1001, Field::Varint(number)) => epoch = number as i64,
            (1002, Field::Varint(start)) => window.start = start as i32,
            (1003, Field::Varint(count)) => window.count = count as u32,
            _ => {}
        }
    }
    let item = RawItem::parse(item)?;
    Ok(Sampled {
        key: item.key,
        priority: item.priority,
        times_sampled: item.times_sampled,
        probability,
        table_size,
        inserted_at_ns: item.inserted_at_ns,
        rate_limited,
        min_probability,
        epoch,
        removal_priority: item.removal_priority,
        window,
        trajectory: templates.read(&item, find)?,
    })
}

/// Finds the chunks of a sample by key. If several have the same key, it finds the first.
struct ChunkLookup<'a> {
    chunks: &'a [Chunk],
    /// Present only if a linear search would be slow.
    by_key: Option<HashMap<u64, &'a Chunk>>,
}

const MAX_LINEAR_SEARCH: usize = 16;

impl<'a> ChunkLookup<'a> {
    fn new(chunks: &'a [Chunk]) -> Self {
        let by_key = (chunks.len() > MAX_LINEAR_SEARCH)
            .then(|| chunks.iter().rev().map(|chunk| (chunk.key(), chunk)).collect());
        Self { chunks, by_key }
    }

    fn find(&self, key: u64) -> Option<&'a Chunk> {
        match &self.by_key {
            Some(by_key) => by_key.get(&key).copied(),
            None => self.chunks.iter().find(|chunk| chunk.key() == key),
        }
    }
}
