// SPDX-License-Identifier: Apache-2.0
//! The columns that a reader wants of the items.

use reverb_data::{Error, Result, Sampled, TrajectoryBuilder};
use reverb_engine::Table;

/// Columns of items, by their places in the flat structure.
pub(crate) struct Selection {
    /// Increasing; empty: all.
    columns: Box<[u32]>,
    builder: TrajectoryBuilder,
}

impl Selection {
    /// These columns of items of a table; all if there are none.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if they do not increase, or if the signature of the table has fewer.
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

    /// Whether it takes no column away.
    pub(crate) fn is_of_all(&self) -> bool {
        self.columns.is_empty()
    }

    /// Takes the other columns away.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if an item lacks one; a table without a signature may have such items.
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
