// SPDX-License-Identifier: Apache-2.0
//! Inserts of single steps: each step becomes one item in every table.

use std::sync::Arc;

use parking_lot::Mutex;
use reverb_data::tensor::shape_text;
use reverb_data::{Error, Result};

use super::cell::CellValue;
use super::legacy::{LegacyOptions, LegacyWriter};
use crate::session::Session;

/// Maximum number of idle writers.
const MAX_IDLE: usize = 8;

/// Open writers of single steps with nothing to send.
#[derive(Debug, Default)]
pub(crate) struct IdleWriters(Mutex<Vec<LegacyWriter>>);

/// An insert of single steps. It owns a writer until all items are confirmed.
///
/// Adding steps never waits and copies the values, so a binding needs to lend its memory only for
/// the call. If adding fails, no item is created.
#[derive(Debug)]
pub struct Insertion {
    writer: LegacyWriter,
    session: Arc<Session>,
    idle: Arc<IdleWriters>,
}

impl Insertion {
    /// Takes an idle writer, or makes one.
    ///
    /// A writer keeps the signatures that it was made with. They are fetched again if the server
    /// may have been replaced by one with other tables.
    pub(crate) async fn start(session: &Arc<Session>, idle: &Arc<IdleWriters>) -> Result<Self> {
        let several = session.has_several_servers();
        let writer = idle.0.lock().pop();
        let writer = writer.filter(|writer| !several && !writer.queue().send_queue().was_lost());
        // In process, there is no connection that breaks when a server is replaced, but asking is
        // cheap. With several servers, the new writer asks the next one in turn.
        let may_be_another = writer.is_none() && !several;
        if may_be_another || session.transport()?.is_local() {
            session.server_info().await?;
        }
        let writer = match writer.filter(|writer| session.is_current(writer.signatures())) {
            Some(writer) => writer,
            None => new_writer(session).await?,
        };
        Ok(Self { writer, session: Arc::clone(session), idle: Arc::clone(idle) })
    }

    /// Adds one step, and for each table an item of it with that table's priority. Never waits.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a priority that is NaN, `TableNotFound`, and `SignatureMismatch` for a
    /// step that does not fit the signature of a table. Then no item was created.
    pub fn add(&self, step: Vec<CellValue<'_>>, items: &[(String, f64)]) -> Result<()> {
        self.writer.append(step)?;
        for (table, priority) in items {
            check_priority(table, *priority)?;
            self.writer.check(table, 1)?;
        }
        items.iter().try_for_each(|(table, priority)| self.writer.create_item(table, 1, *priority))
    }

    /// Adds a step for each row of `columns` `[B, ...]`, and for each table an item per step with
    /// one of that table's `B` priorities. Never waits.
    ///
    /// # Errors
    ///
    /// Those of `add`, and `InvalidArgument` for a column of another length. Then no item was
    /// created.
    pub fn add_batch(&self, columns: &[CellValue<'_>], items: &[(String, Vec<f64>)]) -> Result<()> {
        let num_rows = items.first().map_or(0, |(_, priorities)| priorities.len());
        for (table, priorities) in items {
            priorities.iter().try_for_each(|priority| check_priority(table, *priority))?;
        }
        for (i, column) in columns.iter().enumerate() {
            if column.shape().first() != Some(&num_rows) {
                return Err(Error::invalid_argument(format!(
                    "leaf {i} must have a first dimension of {num_rows}, one row per priority, got shape {}",
                    shape_text(column.shape())
                )));
            }
        }
        for row in 0..num_rows {
            self.writer.append(columns.iter().map(|column| column.row(row, num_rows)).collect())?;
            if row == 0 {
                items.iter().try_for_each(|(table, _)| self.writer.check(table, 1))?;
            }
            for (table, priorities) in items {
                self.writer.create_item(table, 1, priorities[row])?;
            }
        }
        Ok(())
    }

    /// Waits until all items are confirmed, and keeps the writer for the next insert.
    ///
    /// With several servers, the next insert goes to another one, so no writer is kept.
    pub async fn finish(self) -> Result<()> {
        self.writer.flush_all().await?;
        if self.session.has_several_servers() {
            return Ok(());
        }
        self.writer.begin_episode();
        let mut idle = self.idle.0.lock();
        if idle.len() < MAX_IDLE {
            idle.push(self.writer);
        }
        Ok(())
    }
}

async fn new_writer(session: &Arc<Session>) -> Result<LegacyWriter> {
    let signatures = session.signatures().await?;
    let options = LegacyOptions {
        max_sequence_length: 1,
        chunk_length: 1,
        delta_encoded: false,
        max_in_flight_items: usize::MAX,
    };
    Ok(LegacyWriter::in_session(session, options, signatures))
}

fn check_priority(table: &str, priority: f64) -> Result<()> {
    if priority.is_nan() {
        return Err(Error::invalid_argument(format!(
            "priority must not be NaN, got NaN for table {table}"
        )));
    }
    Ok(())
}
