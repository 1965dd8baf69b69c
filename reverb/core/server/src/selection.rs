// SPDX-License-Identifier: Apache-2.0
//! Columns and windows that a reader requests.

use reverb_data::{
    ColumnSpan, Error, Result, Sampled, SampledWindow, StepWindow, Trajectory, TrajectoryBuilder,
};
use reverb_engine::Table;

/// Part of each item that a reader gets, cut out after the lock and before anything reads a chunk.
pub(crate) struct Selection {
    /// Positions in the flat structure, in increasing order; empty: all.
    columns: Box<[u32]>,
    window: Option<StepWindow>,
    spans: Box<[ColumnSpan]>,
    builder: TrajectoryBuilder,
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
        let (columns, builder) = (columns.into(), TrajectoryBuilder::new());
        Ok(Self { columns, window: None, spans: Box::default(), builder })
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

    /// The selected part of an item; `None` if that is all of it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the item lacks a selected column, which only items of tables without a
    /// signature do, or if a span is about a single value.
    pub(crate) fn part(&mut self, sampled: &Sampled) -> Result<Option<Trajectory>> {
        let Self { columns, window, spans, builder } = self;
        if let Some(window) = *window {
            let SampledWindow { start, count } = sampled.window;
            let is_whole = start == 0 && window.num_steps() == window.steps_of(count);
            if is_whole && columns.is_empty() && spans.is_empty() {
                return Ok(None);
            }
            let window = (window, start);
            builder.cut(&sampled.trajectory, columns, window, spans).map(Some)
        } else if columns.is_empty() {
            Ok(None)
        } else {
            builder.select(&sampled.trajectory, columns).map(Some)
        }
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
