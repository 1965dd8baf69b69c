// SPDX-License-Identifier: Apache-2.0
//! Templates for trajectories of items of one chunk. Those of a program differ only in the key of
//! the chunk, so the message of one is the template of the next: a writer puts another key into it,
//! and a reader compares everything else and extracts the key.

use reverb_base::Result;
use reverb_data::proto_bytes::{Field, Reader, put_bytes_field, varint};
use reverb_data::{ByteMask, Chunk, OneChunkColumns, RecentCache, Trajectory};
use smallvec::SmallVec;

use crate::codec::item::{RawItem, Repeats, put_trajectory};

/// Templates of one direction of a stream.
#[derive(Debug, Default)]
pub struct TrajectoryTemplates {
    known: RecentCache<Template>,
    scratch: Vec<u8>,
    /// How they are written.
    pub(crate) repeats: Repeats,
}

impl TrajectoryTemplates {
    /// Appends a trajectory as field `field`.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, field: u32, trajectory: &Trajectory) {
        let columns = trajectory.one_chunk_columns();
        if let Some(columns) = columns {
            let number = trajectory.chunks()[0].key();
            let (key, key_len) = varint(number);
            // The key 0 is left out.
            let is_it = |template: &Template| {
                template.columns == columns && template.key_len == key_len && number != 0
            };
            if let Some(template) = self.known.find(is_it) {
                put_bytes_field(out, field, &template.message);
                let begin = out.len() - template.message.len();
                let message = &mut out[begin..];
                for &place in &template.key_places {
                    message[place..place + key_len].copy_from_slice(&key[..key_len]);
                }
                return;
            }
        }
        self.scratch.clear();
        put_trajectory(&mut self.scratch, trajectory, self.repeats, Chunk::key);
        put_bytes_field(out, field, &self.scratch);
        if let Some(columns) = columns {
            self.known.learn(|| Template::new(&self.scratch, columns));
        }
    }

    /// Trajectory of an item, as [`RawItem::trajectory`] reads it and with the same errors.
    pub fn read<'c>(
        &mut self,
        item: &RawItem<'_>,
        mut find: impl FnMut(u64) -> Result<&'c Chunk>,
    ) -> Result<Trajectory> {
        let Some(message) = item.only_trajectory() else { return item.trajectory(find) };
        let mut key = None;
        let is_it = |template: &Template| {
            key = template.key_of(message);
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

/// Message of a trajectory of one chunk, in which only the key of the chunk may change, and not its
/// length.
#[derive(Debug)]
struct Template {
    columns: OneChunkColumns,
    message: Box<[u8]>,
    /// Message without the keys.
    mask: ByteMask,
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
        let mask = ByteMask::new(message, key_places.iter().map(|&at| at..at + key_len))?;
        Some(Self { columns, message: message.into(), mask, key_places, key_len })
    }

    /// Key of the chunk, if the message matches this template.
    #[inline]
    fn key_of(&self, message: &[u8]) -> Option<u64> {
        if !self.mask.matches(message) {
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

/// Bytes of the key in a slice that has it once, behind a tag of one byte.
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use reverb_base::Error;
    use reverb_data::proto_bytes::{put_nested, put_tag, put_varint, put_varint_field};
    use reverb_data::{SequenceRange, TrajectoryBuilder};

    use super::*;

    /// Keys of every length, several of each, and 0, which is left out.
    fn any_key() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), (0u32..64, 0u64..3).prop_map(|(bit, low)| 1 << bit | low)]
    }

    fn chunk(key: u64) -> Chunk {
        Chunk::from_slice(key, SequenceRange::default(), false, &[])
    }

    /// Items of a few templates, and of several chunks if the flag is set.
    fn item(keys: [u64; 2], kind: (usize, usize, bool)) -> Trajectory {
        let (num_columns, length, has_two_chunks) = kind;
        let chunks = keys.map(chunk);
        let mut builder = TrajectoryBuilder::new();
        for tensor in 0..num_columns {
            builder.slice(&chunks[0], tensor, 0, length);
            builder.slice(&chunks[usize::from(has_two_chunks)], tensor, 5, 1);
            builder.end_column(length == 2);
        }
        builder.finish().unwrap()
    }

    /// Ways in which a peer may write the key of a slice.
    #[derive(Debug, Clone, Copy)]
    enum KeyForm {
        Plain,
        /// One byte longer than needed.
        Padded,
        /// Written twice, a wrong one first; the last one counts.
        Twice,
        Last,
        /// With a tag that is one byte longer than needed.
        LongTag,
        Missing,
    }

    fn put_slice(out: &mut Vec<u8>, key: u64, form: KeyForm, length: u64) {
        let put_padded = |out: &mut Vec<u8>, value: u64| {
            put_varint(out, value);
            if let Some(last) = out.last_mut() {
                *last |= 0x80;
            }
            out.push(0);
        };
        match form {
            KeyForm::Missing | KeyForm::Last => {}
            KeyForm::Plain => put_varint_field(out, 1, key),
            KeyForm::Padded => {
                put_tag(out, 1, 0);
                put_padded(out, key & (u64::MAX >> 8));
            }
            KeyForm::Twice => {
                put_varint_field(out, 1, !key);
                put_varint_field(out, 1, key);
            }
            KeyForm::LongTag => {
                put_padded(out, 1 << 3);
                put_varint(out, key);
            }
        }
        put_varint_field(out, 3, length);
        // A field that does not exist.
        put_varint_field(out, 9, 1);
        if matches!(form, KeyForm::Last) {
            put_varint_field(out, 1, key);
        }
    }

    fn any_form() -> impl Strategy<Value = KeyForm> {
        use KeyForm::{Last, LongTag, Missing, Padded, Plain, Twice};
        prop::sample::select(vec![
            Plain, Plain, Plain, Plain, Padded, Twice, Last, LongTag, Missing,
        ])
    }

    /// Visible content of a trajectory.
    fn content(trajectory: Result<Trajectory>) -> Result<(Vec<usize>, usize, Vec<u8>)> {
        trajectory.map(|trajectory| {
            let chunks = trajectory.chunks().iter().map(Chunk::identity).collect();
            (chunks, trajectory.num_columns(), trajectory.stored_columns().to_vec())
        })
    }

    proptest! {
        #[test]
        fn a_template_writes_the_bytes_that_are_written_without(
            items in prop::collection::vec(
                ([any_key(), any_key()], (1usize..4, 1usize..4, prop::bool::weighted(0.2))), 1..60,
            ),
        ) {
            let mut templates = TrajectoryTemplates::default();
            for (keys, kind) in items {
                let item = item(keys, kind);
                let (mut written, mut expected) = (vec![1], vec![1]);
                templates.put(&mut written, 8, &item);
                put_nested(&mut expected, 8, |out| put_trajectory(out, &item, Repeats::AsOne, Chunk::key));
                prop_assert_eq!(written, expected);
            }
        }

        /// Items are of a few templates, written in different ways, with missing chunks and damage:
        /// results and errors are the same as without templates.
        #[test]
        fn a_template_reads_what_is_read_without(
            chunk_keys in prop::collection::vec(any_key(), 1..6),
            items in prop::collection::vec(
                (
                    (any::<prop::sample::Index>(), prop::option::weighted(0.1, any_key())),
                    prop_oneof![3 => Just([KeyForm::Plain; 3]), 1 => [any_form(), any_form(), any_form()]],
                    (1usize..4, 0u64..3),
                    prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
                    prop::bool::weighted(0.1),
                ),
                1..60,
            ),
        ) {
            let chunks: HashMap<u64, Chunk> =
                chunk_keys.iter().map(|&key| (key, chunk(key))).collect();
            let find = |key| {
                chunks.get(&key).ok_or_else(|| Error::internal(format!("no chunk {key}")))
            };
            let mut templates = TrajectoryTemplates::default();
            for ((key, other_key), forms, (num_columns, length), damage, is_split) in items {
                let key = *key.get(&chunk_keys);
                let mut message = Vec::new();
                let mut put = |columns: &[KeyForm]| put_nested(&mut message, 8, |out| {
                    for (i, form) in columns.iter().enumerate() {
                        let key = other_key.filter(|_| i == 1).unwrap_or(key);
                        put_nested(out, 1, |out| {
                            put_nested(out, 1, |out| put_slice(out, key, *form, length));
                        });
                    }
                });
                if is_split {
                    put(&forms[..num_columns]);
                }
                put(&forms[..num_columns]);
                if let Some((at, byte)) = damage {
                    let at = at.index(message.len());
                    message[at] = byte;
                }
                let Ok(item) = RawItem::parse(&message) else { continue };
                prop_assert_eq!(content(templates.read(&item, find)), content(item.trajectory(find)));
            }
        }
    }

    #[test]
    fn items_that_differ_in_the_key_alone_are_read_by_the_template() {
        let mut templates = TrajectoryTemplates::default();
        for key in (0..100).map(|i| u64::MAX - i) {
            let mut message = Vec::new();
            put_nested(&mut message, 8, |out| {
                let item = item([key, key], (3, 1, false));
                put_trajectory(out, &item, Repeats::AsOne, Chunk::key);
            });
            let raw = RawItem::parse(&message).unwrap();
            let chunk = chunk(key);
            let mut asked = 0;
            let find = |wanted| {
                asked += 1;
                if wanted == key { Ok(&chunk) } else { Err(Error::internal("another key")) }
            };
            let trajectory = templates.read(&raw, find).unwrap();
            assert!(trajectory.chunks()[0].is_same(&chunk) && asked == 1);
        }
        assert!(templates.known.find(|_| true).is_some(), "one was learned");
    }
}
