// SPDX-License-Identifier: Apache-2.0
//! Columns that a reader requests.

use reverb_data::{Error, Result, Sampled, TrajectoryBuilder};
use reverb_engine::Table;

/// Selected columns of items, by position in the flat structure.
pub(crate) struct Selection {
    /// Positions in increasing order; empty: all.
    columns: Box<[u32]>,
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
        Ok(Self { columns: columns.into(), builder: TrajectoryBuilder::new() })
    }

    /// True if all columns are selected.
    pub(crate) fn is_of_all(&self) -> bool {
        self.columns.is_empty()
    }

    /// Removes all other columns.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if an item lacks a selected column, which only tables without a signature
    /// have.
    pub(crate) fn apply(&mut self, samples: &mut [Sampled]) -> Result<()> {
        if self.columns.is_empty() {
            return Ok(());
        }
        for sampled in samples {
            sampled.trajectory = self.builder.select(&sampled.trajectory, &self.columns)?;
        }
        Ok(())
    }
}
