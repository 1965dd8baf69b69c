// SPDX-License-Identifier: Apache-2.0
//! Trajectories of items of one chunk. Those of a program differ in nothing but the key of the chunk,
//! so the message of the last one is the template of the next: for a writer, which puts another key
//! into it, and for a reader, which compares all the rest and takes the key out.

use reverb_data::proto_bytes::{Field, Reader, put_bytes_field, varint};
use reverb_data::{Chunk, Frame, KnownKinds, OneChunkColumns, Result, Trajectory};
use smallvec::SmallVec;

use crate::codec::item::{RawItem, put_trajectory};

/// The templates of a stream, for one of its directions.
#[derive(Debug, Default)]
pub struct TrajectoryTemplates {
    known: KnownKinds<Template>,
    scratch: Vec<u8>,
}

impl TrajectoryTemplates {
    /// Appends a trajectory as field `field`.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, field: u32, trajectory: &Trajectory) {
        let Some(columns) = trajectory.one_chunk_columns() else {
            self.scratch.clear();
            put_trajectory(&mut self.scratch, trajectory, Chunk::key);
            return put_bytes_field(out, field, &self.scratch);
        };
        let number = trajectory.chunks()[0].key();
        let (key, key_len) = varint(number);
        // The key 0 is left out.
        let is_it = |it: &Template| it.columns == columns && it.key_len == key_len && number != 0;
        if let Some(template) = self.known.find(is_it) {
            put_bytes_field(out, field, &template.message);
            let begin = out.len() - template.message.len();
            let message = &mut out[begin..];
            for &place in &template.key_places {
                message[place..place + key_len].copy_from_slice(&key[..key_len]);
            }
            return;
        }
        self.scratch.clear();
        put_trajectory(&mut self.scratch, trajectory, Chunk::key);
        put_bytes_field(out, field, &self.scratch);
        let message = &self.scratch;
        self.known.learn(|| Template::new(message, columns));
    }

    /// The trajectory of an item, as [`RawItem::trajectory`] reads it and with the same errors.
    pub fn read<'c>(
        &mut self,
        item: &RawItem<'_>,
        mut find: impl FnMut(u64) -> Result<&'c Chunk>,
    ) -> Result<Trajectory> {
        let Some(message) = item.only_trajectory() else { return item.trajectory(find) };
        let mut key = None;
        let is_it = |it: &Template| {
            key = it.key_of(message);
            key.is_some()
        };
        let columns = self.known.find(is_it).map(|template| template.columns);
        if let (Some(columns), Some(key)) = (columns, key) {
            return Ok(columns.of(find(key)?.clone()));
        }
        let trajectory = item.trajectory(find)?;
        if let Some(columns) = trajectory.one_chunk_columns() {
            self.known.learn(|| Template::new(message, columns));
        }
        Ok(trajectory)
    }
}

/// The message of a trajectory of one chunk, in which only the key of the chunk may change, and not
/// its length.
#[derive(Debug)]
struct Template {
    columns: OneChunkColumns,
    message: Box<[u8]>,
    /// The message without the keys.
    frame: Frame,
    key_places: SmallVec<[usize; 8]>,
    key_len: usize,
}

impl Template {
    /// `None` if the message does not have exactly one key in each slice, all the same bytes.
    fn new(message: &[u8], columns: OneChunkColumns) -> Option<Self> {
        let mut key_places = SmallVec::new();
        let mut key: &[u8] = &[];
        for_each_message(message, |column| {
            for_each_message(column, |slice| {
                let its_key = only_key(slice)?;
                if !key.is_empty() && its_key != key {
                    return None;
                }
                key = its_key;
                key_places.push(key.as_ptr().addr() - message.as_ptr().addr());
                Some(())
            })
        })?;
        let key_len = key.len();
        let frame = Frame::new(message, key_places.iter().map(|&at| at..at + key_len))?;
        Some(Self { columns, message: message.into(), frame, key_places, key_len })
    }

    /// The key of the chunk, if the message has the form of this template.
    #[inline]
    fn key_of(&self, message: &[u8]) -> Option<u64> {
        if !self.frame.matches(message) {
            return None;
        }
        let key_at = |at: usize| &message[at..at + self.key_len];
        let (first, others) = self.key_places.split_first()?;
        let key = key_at(*first);
        let mut reader = Reader::new(key);
        let number = reader.varint().ok()?;
        (reader.is_empty() && others.iter().all(|&at| key_at(at) == key)).then_some(number)
    }
}

/// Calls `see` with each message in field 1, unless it returns `None`.
fn for_each_message<'a>(
    message: &'a [u8],
    mut see: impl FnMut(&'a [u8]) -> Option<()>,
) -> Option<()> {
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field().ok()? {
        if let (1, Field::Bytes(message)) = (field, value) {
            see(message)?;
        }
    }
    Some(())
}

/// The bytes of the key in a slice that has it once, behind a tag of one byte.
fn only_key(slice: &[u8]) -> Option<&[u8]> {
    let mut key = None;
    let mut reader = Reader::new(slice);
    let mut rest = slice;
    while let Some((number, _)) = reader.field().ok()? {
        let field = &rest[..rest.len() - reader.rest().len()];
        rest = reader.rest();
        if number == 1 && (field[0] != 1 << 3 || key.replace(&field[1..]).is_some()) {
            return None;
        }
    }
    key
}
