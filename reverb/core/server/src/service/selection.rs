// SPDX-License-Identifier: Apache-2.0
//! Columns and windows that a reader requests.

use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use reverb_data::{ColumnSpan, Sampled, SampledWindow, StepWindow, Trajectory, TrajectoryBuilder};
use reverb_engine::Table;
use reverb_wire::codec::item::{COLUMN_BYTES, Repeats, SLICE_BYTES, max_trajectory_bytes};
use reverb_wire::codec::sample::{CHUNK_BYTES, SAMPLE_BYTES};

/// Largest size of the padding of a window in a message, if each step is a slice of its own.
/// Readers that know `times` never have so much.
const MAX_PADDED_BYTES: usize = 4 << 20;

/// Part of each item that a reader gets, cut out after the lock and before anything reads a chunk.
pub(crate) struct Selection {
    /// Positions in the flat structure, in increasing order; empty: all.
    columns: Box<[u32]>,
    window: Option<StepWindow>,
    spans: Box<[ColumnSpan]>,
    builder: TrajectoryBuilder,
    /// Bytes of the chunks of the last parts, above all of large ones: those of the next one are
    /// likely the same.
    last_chunk_bytes: Option<usize>,
}

/// Size of the selected part of an item in messages, at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartBytes {
    /// Without its chunks. This part of it is in one message.
    pub(crate) head: usize,
    /// With its chunks, which for parts are estimated.
    pub(crate) all: usize,
}

/// Bytes of the chunks of an item in messages.
fn bytes_of_chunks(trajectory: &Trajectory) -> usize {
    trajectory.chunk_bytes() + trajectory.chunks().len() * CHUNK_BYTES
}

impl Selection {
    /// Selects these columns of a table's items; all if empty.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the positions do not increase, or exceed the table's signature.
    pub(crate) fn new(table: &Table, columns: &[u32]) -> Result<Self> {
        if let Some((one, next)) =
            columns.iter().zip(columns.iter().skip(1)).find(|(one, next)| one >= next)
        {
            return Err(Error::invalid_argument(format!(
                "`columns` must increase, got {one} before {next}."
            )));
        }
        if let Some(&last) = columns.last()
            && let Some(signature) = &table.config().signature
            && let count = signature.flat.0.len()
            && last as usize >= count
        {
            return Err(Error::invalid_argument(format!(
                "columns has column {last}, but the signature of table {} has {count} columns.",
                table.name()
            )));
        }
        let columns = columns.into();
        let builder = TrajectoryBuilder::new();
        Ok(Self { columns, window: None, spans: Box::default(), builder, last_chunk_bytes: None })
    }

    /// Selects the window of each item, and of some columns only a part of it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a span is not within the window, or there is no window.
    pub(crate) fn with_window(
        self,
        window: Option<StepWindow>,
        spans: &[ColumnSpan],
    ) -> Result<Self> {
        match window {
            Some(window) => ColumnSpan::validate(spans, window)?,
            None if spans.is_empty() => {}
            None => return Err(Error::invalid_argument("`spans` need a window.")),
        }
        Ok(Self { window, spans: spans.into(), ..self })
    }

    /// True if the items stay whole.
    pub(crate) fn is_of_all(&self) -> bool {
        self.columns.is_empty() && self.window.is_none()
    }

    /// Size of the selected part of an item, before it is made.
    ///
    /// # Errors
    ///
    /// Errors of [`Self::part`]; `InvalidArgument` if the padding of a window is a slice for each
    /// step, and too long.
    pub(crate) fn bytes(&mut self, sampled: &Sampled, repeats: Repeats) -> Result<PartBytes> {
        let trajectory = &sampled.trajectory;
        let mut head = max_trajectory_bytes(trajectory);
        if let Some(window) = self.window {
            let num_columns = match self.columns.len() {
                0 => trajectory.num_columns(),
                selected => selected,
            };
            let padding = window.padding(sampled.window) as usize;
            let (runs, bytes) = match repeats {
                Repeats::AsOne => (padding.min(2), 0),
                Repeats::OneByOne => (padding, num_columns * padding * SLICE_BYTES),
            };
            if bytes > MAX_PADDED_BYTES {
                return Err(too_much_padding(sampled.key, bytes));
            }
            let most_runs = window.num_steps() as usize - padding + runs;
            let most = num_columns * (COLUMN_BYTES + most_runs * SLICE_BYTES);
            head = (head + num_columns * runs * SLICE_BYTES).min(most);
        }
        head += SAMPLE_BYTES;
        let whole = bytes_of_chunks(trajectory);
        if self.is_of_all() {
            return Ok(PartBytes { head, all: head + whole });
        }
        if self.last_chunk_bytes.is_none() {
            self.part(sampled)?;
        }
        Ok(PartBytes {
            head,
            all: head + self.last_chunk_bytes.map_or(whole, |bytes| bytes.min(whole)),
        })
    }

    /// The selected part of an item; `None` if that is all of it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the item lacks a selected column, which only items of tables without a
    /// signature do, or if a span is about a single value.
    pub(crate) fn part(&mut self, sampled: &Sampled) -> Result<Option<Trajectory>> {
        if self.is_of_all() {
            return Ok(None);
        }
        let Self { columns, window, spans, builder, last_chunk_bytes } = self;
        let part = if let Some(window) = *window {
            let SampledWindow { start, count } = sampled.window;
            let is_whole = start == 0 && window.num_steps() == window.steps_of(count);
            if is_whole && columns.is_empty() && spans.is_empty() {
                return Ok(None);
            }
            builder.cut(&sampled.trajectory, columns, window, start, spans)?
        } else {
            builder.select(&sampled.trajectory, columns)?
        };
        let before = last_chunk_bytes.unwrap_or(0);
        *last_chunk_bytes = Some(bytes_of_chunks(&part).max(before - before / 8));
        Ok(Some(part))
    }

    /// Removes everything else from these items.
    ///
    /// # Errors
    ///
    /// Errors of [`Self::part`].
    pub(crate) fn apply_to_all(&mut self, samples: &mut [Sampled]) -> Result<()> {
        if self.is_of_all() {
            return Ok(());
        }
        for sampled in samples {
            if let Some(part) = self.part(sampled)? {
                sampled.trajectory = part;
            }
        }
        Ok(())
    }
}

#[cold]
fn too_much_padding(key: u64, bytes: usize) -> Error {
    Error::invalid_argument(format!(
        "The padding of a window of item {key} takes {} bytes in the answer to this client, which \
         is older than the server; at most {} are sent. Update the client, or request a shorter \
         window or fewer columns.",
        grouped(bytes),
        grouped(MAX_PADDED_BYTES),
    ))
}
