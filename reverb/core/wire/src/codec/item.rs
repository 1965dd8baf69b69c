// SPDX-License-Identifier: Apache-2.0
//! `PrioritizedItem`: an item whose columns refer to chunks by key.

use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{
    Field, Reader, put_bytes_field, put_double_field, put_int_field, put_nested, put_tag,
    put_varint_field,
};
use reverb_data::trajectory::{Run, Slice};
use reverb_data::{
    Chunk, MAX_PRIORITY, StepWindow, StoredItem, Trajectory, TrajectoryBuilder, is_max_priority,
};

use crate::codec::trajectory_template::TrajectoryTemplates;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Number of the field of a slice that repeats it.
const TIMES: u32 = 1000;

/// An encoded item in a message. Its trajectory is read when its chunks are available.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawItem<'a> {
    /// Key.
    pub key: u64,
    /// Name of its table.
    pub table: &'a str,
    /// Priority; `MAX_PRIORITY` for an item that gets the largest one of its table.
    pub priority: f64,
    /// Priority for the remover, if it differs.
    pub removal_priority: Option<f64>,
    /// Number of times it was sampled.
    pub times_sampled: i32,
    /// Wall time of its insertion, nanoseconds since 1970; 0 if it is missing.
    pub inserted_at_ns: i64,
    /// True if it has the chunk references of early checkpoints, which `trajectory` does not read.
    pub has_deprecated_references: bool,
    /// True if it takes the place of the item that has its key.
    pub replaces: bool,
    /// Message for what the columns are for, in a table with rollouts.
    pub change: Option<&'a [u8]>,
    /// Message for how far an item with rollouts is, in a checkpoint.
    pub growing: Option<&'a [u8]>,
    message: &'a [u8],
    trajectory: &'a [u8],
    num_trajectories: usize,
}

/// How the repeated slices of a window are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Repeats {
    /// As one slice with a number, which only readers that say so understand.
    AsOne,
    /// One by one.
    #[default]
    OneByOne,
}

/// The parts of a trajectory, in the order in which they are read.
enum Part {
    Slice { chunk_key: u64, offset: i32, length: i32, index: i32, times: u32 },
    EndOfColumn { squeeze: bool },
}

impl<'a> RawItem<'a> {
    /// Reads a `PrioritizedItem` message.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let mut item = Self {
            key: 0,
            table: "",
            priority: 0.0,
            removal_priority: None,
            times_sampled: 0,
            inserted_at_ns: 0,
            has_deprecated_references: false,
            replaces: false,
            change: None,
            growing: None,
            message,
            trajectory: &[],
            num_trajectories: 0,
        };
        let mut reader = Reader::new(message);
        let mut has_max_priority = false;
        item.read_in_order(&mut reader)?;
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Varint(key)) => item.key = key,
                (2, Field::Bytes(table)) => item.table = parse_table(table)?,
                (3, _) => item.has_deprecated_references = true,
                (5, Field::Fixed64(bits)) => item.priority = f64::from_bits(bits),
                (6, Field::Varint(times)) => item.times_sampled = times as i32,
                (7, Field::Bytes(timestamp)) => item.inserted_at_ns = parse_timestamp(timestamp)?,
                (8, Field::Bytes(trajectory)) => {
                    item.trajectory = trajectory;
                    item.num_trajectories += 1;
                }
                (1001, Field::Varint(flag)) => has_max_priority = flag != 0,
                (1002, Field::Fixed64(bits)) => item.removal_priority = Some(f64::from_bits(bits)),
                (1003, Field::Bytes(change)) => item.change = Some(change),
                (1004, Field::Bytes(growing)) => item.growing = Some(growing),
                (1005, Field::Varint(flag)) => item.replaces = flag != 0,
                _ => {}
            }
        }
        if has_max_priority {
            item.priority = MAX_PRIORITY;
        } else if is_max_priority(item.priority) {
            // A NaN that is not flagged is no `MAX_PRIORITY`.
            item.priority = f64::NAN;
        }
        Ok(item)
    }

    /// Reads the fields that come in the order of their numbers, each once.
    #[inline]
    fn read_in_order(&mut self, reader: &mut Reader<'a>) -> Result<()> {
        if let Some(key) = reader.next_varint(1)? {
            self.key = key;
        }
        if let Some(table) = reader.next_bytes(2)? {
            self.table = parse_table(table)?;
        }
        if let Some(bits) = reader.next_fixed64(5)? {
            self.priority = f64::from_bits(bits);
        }
        if let Some(times) = reader.next_varint(6)? {
            self.times_sampled = times as i32;
        }
        if let Some(timestamp) = reader.next_bytes(7)? {
            self.inserted_at_ns = parse_timestamp(timestamp)?;
        }
        if let Some(trajectory) = reader.next_bytes(8)? {
            self.trajectory = trajectory;
            self.num_trajectories = 1;
        }
        Ok(())
    }

    /// Reads its trajectory. `find` returns the chunk of a key.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there are no columns, a column is empty or a number is negative; and
    /// errors of `find`.
    pub fn trajectory<'c>(
        &self,
        mut find: impl FnMut(u64) -> Result<&'c Chunk>,
    ) -> Result<Trajectory> {
        let mut builder = TrajectoryBuilder::new();
        let mut last: Option<(u64, &Chunk)> = None;
        let mut is_empty_column = true;
        self.walk(|part| {
            match part {
                Part::Slice { chunk_key, offset, length, index, times } => {
                    let chunk = match last {
                        Some((key, chunk)) if key == chunk_key => chunk,
                        _ => find(chunk_key)?,
                    };
                    last = Some((chunk_key, chunk));
                    let offset = natural("offset", offset)?;
                    let length = natural("length", length)?;
                    let tensor = natural("index", index)?;
                    let slice = Slice { chunk: 0, tensor, offset, length };
                    builder.run(chunk, Run { slice, times: times as usize });
                    is_empty_column = false;
                }
                Part::EndOfColumn { .. } if is_empty_column => {
                    return Err(Error::invalid_argument("Item trajectory must not be empty."));
                }
                Part::EndOfColumn { squeeze } => {
                    builder.end_column(squeeze);
                    is_empty_column = true;
                }
            }
            Ok(())
        })?;
        builder.finish()
    }

    /// Message of its trajectory, unless it is split.
    #[inline]
    pub(crate) fn only_trajectory(&self) -> Option<&'a [u8]> {
        (self.num_trajectories == 1).then_some(self.trajectory)
    }

    /// Calls `call` with every slice of its columns: position of the column, key of the chunk,
    /// number of steps.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the message is malformed.
    pub fn for_each_slice(&self, mut call: impl FnMut(usize, u64, i32)) -> Result<()> {
        let mut column = 0;
        self.walk(|part| {
            match part {
                Part::Slice { chunk_key, length, .. } => call(column, chunk_key, length),
                Part::EndOfColumn { .. } => column += 1,
            }
            Ok(())
        })
    }

    fn walk(&self, mut visit: impl FnMut(Part) -> Result<()>) -> Result<()> {
        let mut item = Reader::new(self.message);
        while let Some((field, value)) = item.field()? {
            let (8, Field::Bytes(trajectory)) = (field, value) else { continue };
            let mut trajectory = Reader::new(trajectory);
            while let Some((field, value)) = trajectory.field()? {
                let (1, Field::Bytes(column)) = (field, value) else { continue };
                walk_column(column, &mut visit)?;
            }
        }
        Ok(())
    }
}

fn walk_column(column: &[u8], visit: &mut impl FnMut(Part) -> Result<()>) -> Result<()> {
    let mut squeeze = false;
    let mut reader = Reader::new(column);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Bytes(slice)) => visit(parse_slice(slice)?)?,
            (2, Field::Varint(flag)) => squeeze = flag != 0,
            _ => {}
        }
    }
    visit(Part::EndOfColumn { squeeze })
}

fn parse_slice(message: &[u8]) -> Result<Part> {
    let mut chunk_key = 0;
    let mut times = 1;
    let mut numbers = [0; 3];
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Varint(key)) => chunk_key = key,
            (2..=4, Field::Varint(number)) => numbers[field as usize - 2] = number as i32,
            (TIMES, Field::Varint(number)) => times = number as u32,
            _ => {}
        }
    }
    if times > StepWindow::MAX_STEPS {
        return Err(Error::invalid_argument(format!(
            "`times` of a chunk slice must be at most {}, got {times}.",
            StepWindow::MAX_STEPS
        )));
    }
    let [offset, length, index] = numbers;
    Ok(Part::Slice { chunk_key, offset, length, index, times: times.max(1) })
}

fn natural(name: &str, value: i32) -> Result<usize> {
    usize::try_from(value).map_err(|_| {
        Error::invalid_argument(format!(
            "The {name} of a chunk slice must not be negative, got {value}."
        ))
    })
}

#[inline]
fn parse_table(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|_| Error::invalid_argument("Malformed message: a table name is not UTF-8."))
}

fn parse_timestamp(message: &[u8]) -> Result<i64> {
    let mut reader = Reader::new(message);
    let seconds = reader.next_varint(1)?.unwrap_or(0) as i64;
    let nanos = i64::from(reader.next_varint(2)?.unwrap_or(0) as i32);
    let mut nanoseconds = seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos);
    while let Some((field, value)) = reader.field()? {
        let part = match (field, value) {
            (1, Field::Varint(seconds)) => (seconds as i64).saturating_mul(NANOS_PER_SECOND),
            (2, Field::Varint(nanos)) => i64::from(nanos as i32),
            _ => 0,
        };
        nanoseconds = nanoseconds.saturating_add(part);
    }
    Ok(nanoseconds)
}

/// The fields of an item besides its trajectory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemHead<'a> {
    /// Key.
    pub key: u64,
    /// Name of its table.
    pub table: &'a str,
    /// Priority, or `MAX_PRIORITY`.
    pub priority: f64,
    /// Priority for the remover, if it differs.
    pub removal_priority: Option<f64>,
    /// Number of times it was sampled.
    pub times_sampled: i32,
    /// Wall time of its insertion, nanoseconds since 1970; `None` leaves it out.
    pub inserted_at_ns: Option<i64>,
}

impl<'a> ItemHead<'a> {
    /// Fields of a stored item of this table.
    pub fn of_stored(table: &'a str, item: &StoredItem) -> Self {
        Self {
            key: item.key,
            table,
            priority: item.priority,
            removal_priority: item.removal_priority,
            times_sampled: item.times_sampled,
            inserted_at_ns: Some(item.inserted_at_ns),
        }
    }
}

/// Appends the fields of a `PrioritizedItem` message.
pub(crate) fn put_item(
    out: &mut Vec<u8>,
    head: &ItemHead<'_>,
    trajectory: &Trajectory,
    templates: &mut TrajectoryTemplates,
) {
    put_head(out, head);
    templates.put(out, 8, trajectory);
    put_extensions(out, head);
}

/// Like `put_item`, for checkpoints; `key_of` returns the keys of chunks at the destination.
pub fn put_item_with_keys(
    out: &mut Vec<u8>,
    head: &ItemHead<'_>,
    trajectory: &Trajectory,
    key_of: impl Fn(&Chunk) -> u64,
) {
    put_head(out, head);
    put_nested(out, 8, |out| put_trajectory(out, trajectory, Repeats::OneByOne, key_of));
    put_extensions(out, head);
}

/// Priority for servers that do not know `MAX_PRIORITY`; an empty table uses it too.
const PRIORITY_INSTEAD: f64 = 1.0;

/// Appends the fields that dm-reverb does not know.
#[inline]
fn put_extensions(out: &mut Vec<u8>, head: &ItemHead<'_>) {
    if is_max_priority(head.priority) {
        put_varint_field(out, 1001, 1);
    }
    if let Some(priority) = head.removal_priority {
        // Written even if it is 0.
        put_tag(out, 1002, 1);
        out.extend(priority.to_le_bytes());
    }
}

fn put_head(out: &mut Vec<u8>, head: &ItemHead<'_>) {
    put_varint_field(out, 1, head.key);
    put_bytes_field(out, 2, head.table.as_bytes());
    let has_max_priority = is_max_priority(head.priority);
    put_double_field(out, 5, if has_max_priority { PRIORITY_INSTEAD } else { head.priority });
    put_int_field(out, 6, i64::from(head.times_sampled));
    if let Some(time) = head.inserted_at_ns {
        put_nested(out, 7, |out| {
            put_int_field(out, 1, time.div_euclid(NANOS_PER_SECOND));
            put_int_field(out, 2, time.rem_euclid(NANOS_PER_SECOND));
        });
    }
}

/// Appends the fields of a `FlatTrajectory` message.
pub(crate) fn put_trajectory(
    out: &mut Vec<u8>,
    trajectory: &Trajectory,
    repeats: Repeats,
    key_of: impl Fn(&Chunk) -> u64,
) {
    for column in trajectory.columns() {
        put_nested(out, 1, |out| {
            for Run { slice, times } in column.runs() {
                let (written, times) = match repeats {
                    Repeats::AsOne => (1, times),
                    Repeats::OneByOne => (times, 1),
                };
                for _ in 0..written {
                    put_nested(out, 1, |out| {
                        put_varint_field(out, 1, key_of(&trajectory.chunks()[slice.chunk]));
                        put_int_field(out, 2, slice.offset as i64);
                        put_int_field(out, 3, slice.length as i64);
                        put_int_field(out, 4, slice.tensor as i64);
                        if times > 1 {
                            put_varint_field(out, TIMES, times as u64);
                        }
                    });
                }
            }
            put_varint_field(out, 2, u64::from(column.squeeze));
        });
    }
}

/// Bytes of a slice in a message, at most: two tags and a length, and four tags and numbers.
pub const SLICE_BYTES: usize = 31;

/// Bytes of a column in a message beside its slices, at most.
pub const COLUMN_BYTES: usize = 8;

/// Bytes of a trajectory in a message for each stored byte, at most: a slice of four bytes takes
/// 24, the rest of a column eight for its one.
const BYTES_FOR_STORED: usize = 7;

/// Largest size of a trajectory without repeated slices in a message, without its chunks.
pub fn max_trajectory_bytes(trajectory: &Trajectory) -> usize {
    trajectory.stored_columns().len().saturating_mul(BYTES_FOR_STORED)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use prost::Message as _;
    use reverb_data::SequenceRange;
    use reverb_data::trajectory::Column;

    use super::*;
    use crate::generated as proto;
    use crate::generated::flat_trajectory as parts;
    use crate::generated::google::protobuf::Timestamp;

    fn slices() -> impl Strategy<Value = Vec<parts::ChunkSlice>> {
        let slice = (any::<u64>(), 0..=i32::MAX, 1..9i32, 0..5i32);
        let slice = slice.prop_map(|(chunk_key, offset, length, index)| parts::ChunkSlice {
            chunk_key,
            offset,
            length,
            index,
            times: 0,
        });
        prop::collection::vec(slice, 1..4)
    }

    prop_compose! {
        /// An item. All fields are named, so that the compiler points here when one is added.
        fn messages()(
            key: u64,
            table in "[a-z]{0,5}",
            priority in prop::num::f64::NORMAL | prop::num::f64::ZERO,
            has_max_priority: bool,
            removal_priority in prop::option::of(prop::num::f64::NORMAL | prop::num::f64::ZERO),
            times_sampled: i32,
            inserted_at in prop::option::of((-1_000_000_000..1_000_000_000i64, 0..1_000_000_000i32)),
            columns in prop::collection::vec((slices(), any::<bool>()), 1..4),
        ) -> proto::PrioritizedItem {
            let columns = columns.into_iter();
            let columns = columns
                .map(|(chunk_slices, squeeze)| parts::Column { chunk_slices, squeeze })
                .collect();
            #[expect(deprecated, reason = "they are fields, too")]
            proto::PrioritizedItem {
                key,
                table,
                deprecated_chunk_keys: Vec::new(),
                deprecated_sequence_range: None,
                priority: if has_max_priority { PRIORITY_INSTEAD } else { priority },
                times_sampled,
                inserted_at: inserted_at.map(|(seconds, nanos)| Timestamp { seconds, nanos }),
                flat_trajectory: Some(proto::FlatTrajectory { columns }),
                has_max_priority,
                removal_priority,
                change: None,
                rollouts: None,
                replaces: false,
            }
        }
    }

    proptest! {
        #[test]
        fn an_item_is_read_and_written_as_by_protobuf(message in messages()) {
            let encoded = message.encode_to_vec();
            let item = RawItem::parse(&encoded).unwrap();
            let mut chunks = HashMap::new();
            item.for_each_slice(|_, key, _| {
                let chunk = || Chunk::from_slice(key, SequenceRange::default(), false, &[]);
                chunks.entry(key).or_insert_with(chunk);
            }).unwrap();
            let trajectory = item.trajectory(|key| Ok(&chunks[&key])).unwrap();
            let head = ItemHead {
                key: item.key,
                table: item.table,
                priority: item.priority,
                removal_priority: item.removal_priority,
                times_sampled: item.times_sampled,
                inserted_at_ns: message.inserted_at.map(|_| item.inserted_at_ns),
            };
            let (mut sent, mut saved) = (Vec::new(), Vec::new());
            put_item(&mut sent, &head, &trajectory, &mut TrajectoryTemplates::default());
            put_item_with_keys(&mut saved, &head, &trajectory, Chunk::key);
            for written in [sent, saved] {
                prop_assert_eq!(&proto::PrioritizedItem::decode(&written[..]).unwrap(), &message);
            }
        }

        /// Numbers of all lengths, in as many columns and slices as there are.
        #[test]
        fn a_trajectory_takes_no_more_than_is_said(
            columns in prop::collection::vec(
                prop::collection::vec(
                    ((0u32..31, 0u32..31), (0u32..8, 1usize..5_000), 0usize..200), 1..5,
                ),
                1..5,
            ),
            key_bits in 0u32..64,
        ) {
            let chunks: Vec<Chunk> = (0..200)
                .map(|at| Chunk::from_slice(at | 1 << key_bits, SequenceRange::default(), false, &[]))
                .collect();
            let mut builder = TrajectoryBuilder::new();
            for runs in &columns {
                for &((offset, length), (tensor, times), chunk) in runs {
                    let (offset, length) = ((1 << offset) - 1, 1 << length);
                    let slice = Slice { chunk: 0, tensor: 1 << tensor, offset, length };
                    builder.run(&chunks[chunk], Run { slice, times });
                }
                builder.end_column(false);
            }
            let trajectory = builder.finish().unwrap();
            let mut out = Vec::new();
            put_trajectory(&mut out, &trajectory, Repeats::AsOne, Chunk::key);
            prop_assert!(out.len() <= max_trajectory_bytes(&trajectory));
            let of_column = |column: Column<'_>| COLUMN_BYTES + column.runs().count() * SLICE_BYTES;
            prop_assert!(out.len() <= trajectory.columns().map(of_column).sum());
        }
    }
}
