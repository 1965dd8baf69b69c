// SPDX-License-Identifier: Apache-2.0
//! The legacy writer: whole steps, one chunk for all columns, items over the last steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::codec::Encoding;
use reverb_data::column_names::ColumnNames;
use reverb_data::{DType, ItemPriority, KeyGenerator};

use super::capture::block::{Appended, Block, BlockColumn, BlockColumns, BlockRef};
use super::capture::cell::{CellRef, CellSpec, CellValue};
use super::capture::column_orders::{ColumnOrders, Matching};
use super::capture::item::ColumnRefs;
use super::capture::item_maker::ItemMaker;
use super::capture::signatures::check_steps;
use super::send::send_queue::SendQueue;
use crate::client::Client;
use crate::session::Signatures;

/// Settings of a legacy writer, checked by the caller.
#[derive(Debug, Clone, Copy)]
pub struct LegacyOptions {
    /// Maximum number of steps per item.
    pub max_sequence_length: usize,
    /// Steps per chunk.
    pub chunk_length: usize,
    /// True if integer columns are delta encoded.
    pub delta_encoded: bool,
    /// Maximum number of items in flight before a call waits.
    pub max_in_flight_items: usize,
}

/// Writes whole steps; every item covers the last steps of all columns.
#[derive(Debug)]
pub struct LegacyWriter {
    state: Mutex<State>,
    items: ItemMaker,
    queue: Arc<SendQueue>,
    signatures: Arc<Signatures>,
    orders: ColumnOrders,
    options: LegacyOptions,
    encoding: Encoding,
}

#[derive(Debug)]
struct State {
    episode_id: u64,
    /// Number of steps written so far, which is the index of the next.
    steps: i32,
    /// The last steps, oldest first, each with one cell per column.
    history: VecDeque<Vec<CellRef>>,
    block: Option<Arc<Block>>,
    /// The columns of the last block.
    columns: Option<Arc<BlockColumns>>,
    /// Names of the newest step's columns.
    names: Arc<ColumnNames>,
    closed: bool,
}

impl LegacyWriter {
    /// A writer of one episode.
    pub fn new(client: &Client, options: LegacyOptions, signatures: Arc<Signatures>) -> Self {
        let state = State {
            episode_id: KeyGenerator::new().next_key(),
            steps: 0,
            history: VecDeque::new(),
            block: None,
            columns: None,
            names: Arc::default(),
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            items: ItemMaker::new(client.session(), None, Matching::ByPosition),
            queue: SendQueue::start(client.session(), 1),
            signatures,
            orders: ColumnOrders::new(Matching::ByPosition),
            encoding: Encoding { delta: options.delta_encoded, compression: client.compression() },
            options,
        }
    }

    /// The items in flight.
    pub fn queue(&self) -> &Arc<SendQueue> {
        &self.queue
    }

    /// Settings of the writer.
    pub fn options(&self) -> LegacyOptions {
        self.options
    }

    /// Id of its episode and number of steps so far.
    pub fn position(&self) -> (u64, i32) {
        let state = self.state.lock();
        (state.episode_id, state.steps)
    }

    /// True if `close` was called.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Appends one step, whose columns have these names. Never waits. Returns true if it completed
    /// a chunk; then call `settle`.
    pub fn append(&self, mut cells: Vec<CellValue<'_>>, names: &Arc<ColumnNames>) -> Result<bool> {
        let completed = self.store(&mut cells, names)?;
        if completed {
            self.queue.blocks_completed();
        }
        Ok(completed)
    }

    /// Waits while more than the allowed number of items are in flight.
    pub async fn settle(&self) -> Result<()> {
        self.wait_for_room(self.options.max_in_flight_items.saturating_add(1)).await
    }

    /// Waits until one more item may be created.
    pub async fn wait_for_item_room(&self) -> Result<()> {
        self.wait_for_room(self.options.max_in_flight_items).await
    }

    /// True if `wait_for_item_room` would return at once.
    pub fn has_item_room(&self) -> bool {
        self.queue.num_sendable() < self.options.max_in_flight_items
    }

    fn store(&self, cells: &mut [CellValue<'_>], names: &Arc<ColumnNames>) -> Result<bool> {
        let options = self.options;
        let encoding = self.encoding;
        let mut state = self.state.lock();
        state.check_open()?;
        if let Some(block) = &state.block {
            if block.columns().len() != cells.len() {
                let difference = names.difference_from(&state.names, "the new step", "the chunk");
                let colon = if difference.is_empty() { "" } else { ": " };
                return Err(Error::invalid_argument(format!(
                    "Every step of a chunk must have the same number of tensors: the chunk has {}, the new step \
                     {}{colon}{difference}.",
                    block.columns().len(),
                    cells.len(),
                )));
            }
            for (i, (cell, column)) in cells.iter().zip(block.columns()).enumerate() {
                cell.check(&column.spec, &i)?;
            }
        }
        let step = state.steps;
        let episode_id = state.episode_id;
        let mut refs = Vec::with_capacity(cells.len());
        let full = loop {
            let State { block, columns, .. } = &mut *state;
            let block = block.get_or_insert_with(|| {
                if !columns.as_ref().is_some_and(|known| known.are_of(cells.iter())) {
                    let specs = cells.iter().map(|cell| (Arc::new(cell.spec()), Arc::default()));
                    let new = BlockColumns::new(specs, encoding);
                    *columns = Some(Arc::new(new));
                }
                let columns = columns.as_ref().expect("set above");
                let block = Block::new(columns, episode_id, true);
                block.columns().iter().for_each(BlockColumn::mark_referenced);
                block
            });
            let mut cells: Vec<(usize, &mut CellValue<'_>)> =
                cells.iter_mut().enumerate().collect();
            let limit = options.chunk_length;
            let appended = block.append(step, &mut cells, limit, |position, index| {
                let block = BlockRef::Own(Arc::clone(block));
                refs.push(CellRef { block, position: position as u16, index });
            });
            if appended != Appended::Nothing {
                break appended == Appended::AndFroze;
            }
            // At `max_pending_bytes`, unfinished chunks are sent as they are.
            state.block = None;
        };
        if full {
            state.block = None;
        }
        state.history.push_back(refs);
        if state.history.len() > options.max_sequence_length {
            state.history.pop_front();
        }
        state.steps += 1;
        if !Arc::ptr_eq(&state.names, names) {
            state.names = Arc::clone(names);
        }
        Ok(full)
    }

    /// Checks the arguments of `create_item` without creating anything.
    pub fn check(&self, table: &str, num_timesteps: usize) -> Result<()> {
        let state = self.state.lock();
        state.check_open()?;
        self.check_item(&state, table, num_timesteps)
    }

    /// Creates an item over the last `num_timesteps` steps. Never waits; see `wait_for_item_room`.
    pub fn create_item(
        &self,
        table: &str,
        num_timesteps: usize,
        priority: ItemPriority,
    ) -> Result<()> {
        let state = self.state.lock();
        state.check_open()?;
        self.check_item(&state, table, num_timesteps)?;
        let first = state.history.len() - num_timesteps;
        let num_columns = state.history[first].len();
        let columns: Vec<Vec<CellRef>> = (0..num_columns)
            .map(|column| {
                state.history.iter().skip(first).map(|step| step[column].clone()).collect()
            })
            .collect();
        let refs: Vec<ColumnRefs<'_>> =
            columns.iter().map(|cells| ColumnRefs { cells, squeeze: false }).collect();
        self.queue.push(self.items.item(table, priority, &refs)?)
    }

    fn check_item(&self, state: &State, table: &str, num_timesteps: usize) -> Result<()> {
        let max = self.options.max_sequence_length;
        if num_timesteps < 1 || num_timesteps > max {
            return Err(Error::invalid_argument(format!(
                "num_timesteps must be between 1 and max_sequence_length={max}, got {num_timesteps}"
            )));
        }
        if num_timesteps > state.history.len() {
            return Err(Error::invalid_argument(format!(
                "num_timesteps must not exceed the {} steps that were appended, got {num_timesteps}",
                state.history.len()
            )));
        }
        let steps = state.history.range(state.history.len() - num_timesteps..);
        let num_columns = steps.clone().next().map_or(0, Vec::len);
        if let Some(step) = steps.clone().find(|step| step.len() != num_columns) {
            return Err(Error::invalid_argument(format!(
                "All steps of an item must have the same number of tensors, got {num_columns} and {}",
                step.len()
            )));
        }
        let Some(signature) = self.signatures.get(table) else {
            return self.items.unknown_table(table, &self.signatures);
        };
        let Some(signature) = signature else { return Ok(()) };
        self.orders.of(table, &state.names, Some(signature))?;
        for step in steps {
            let specs: Vec<&Arc<CellSpec>> = step.iter().map(CellRef::spec).collect();
            let columns: Vec<(DType, &[usize])> =
                specs.iter().map(|spec| (spec.dtype, spec.shape.as_slice())).collect();
            check_steps(signature, table, &columns, num_timesteps)?;
        }
        Ok(())
    }

    async fn wait_for_room(&self, limit: usize) -> Result<()> {
        if self.queue.num_sendable() < limit {
            return self.queue.check();
        }
        self.queue.wait_for_room(limit).await
    }

    /// Sends waiting items without waiting for their confirmation. If there are none, waits until
    /// all items are confirmed.
    pub async fn flush(&self) -> Result<()> {
        self.state.lock().check_open()?;
        if self.queue.has_unready() {
            self.end_chunk();
            self.settle().await
        } else {
            self.queue.flush(0, None).await
        }
    }

    /// Sends waiting items, and waits for all confirmations.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` after `timeout`; errors of the stream.
    pub async fn confirm(&self, timeout: Duration) -> Result<()> {
        self.state.lock().check_open()?;
        self.end_chunk();
        self.queue.flush(0, Some(timeout)).await
    }

    /// Closes at once; unconfirmed items are abandoned.
    pub fn abandon(&self) {
        self.state.lock().closed = true;
        self.queue.close();
    }

    fn end_chunk(&self) {
        if let Some(block) = self.state.lock().block.take() {
            block.freeze();
        }
        self.queue.blocks_completed();
    }

    /// Sends waiting items, waits for all confirmations, and ends the stream.
    ///
    /// Without `retry_on_unavailable`, an unreachable server is only logged, and the writer is
    /// closed.
    pub async fn close(&self, retry_on_unavailable: bool) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Error::invalid_argument(
                    "close was called on a writer that is closed already",
                ));
            }
            state.closed = true;
        }
        self.end_chunk();
        let queue = &self.queue;
        let result = tokio::select! {
            biased;
            result = self.queue.flush(0, None) => result,
            error = queue.stream_lost(), if !retry_on_unavailable => {
                tracing::warn!(
                    %error,
                    "the writer was closed with {} unconfirmed items",
                    queue.num_pending()
                );
                Ok(())
            }
        };
        queue.close();
        result
    }
}

impl State {
    fn check_open(&self) -> Result<()> {
        if self.closed {
            return Err(Error::failed_precondition(
                "The writer is closed. Create a new one with Client.writer to write on.",
            ));
        }
        Ok(())
    }
}

impl Drop for LegacyWriter {
    fn drop(&mut self) {
        self.queue.close();
    }
}
