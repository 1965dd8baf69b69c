// SPDX-License-Identifier: Apache-2.0
//! Inserts without a history: of single steps, each of which becomes one item in every table, and
//! of sequences, which become one item as a whole.
//!
//! The caller encodes the steps and sends them in a few large messages, on a stream that stays open
//! for the next insert. There is no task and no history, unlike in the writers.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::codec::Compression;
use reverb_data::column_names::ColumnNames;
use reverb_data::rollouts::{ItemChange, Refusal};
use reverb_data::tensor::shape_text;
use reverb_data::{
    ChunkMaker, DType, ItemPriority, KeyGenerator, NewItem, SequenceRange, Signature, Trajectory,
    TrajectoryBuilder,
};

use super::capture::cell::CellValue;
use super::capture::column_orders::{ColumnOrder, ColumnOrders, Matching};
use super::capture::rows::{ReadAs, RowEncoder, encode_sequence, encode_step};
use super::capture::signatures::{check_part, check_sequences, check_steps, unknown_table};
use super::send::delivery::{
    Delivery, MAX_IDLE, OpenStream, ShardStreams, deliver, deliver_to_shards,
};
use reverb_wire::generated::reverb::WaitReasonRequest;
use reverb_wire::{Calls, Capability};

use crate::session::{Session, Signatures};
use crate::waits::{WaitFor, reported};

/// Time limit for the reason of a wait, on the way to an error.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// Keys of refused items, and why.
type Refused = Vec<(u64, Refusal)>;

/// Idle streams, ready for the next insert.
#[derive(Debug)]
pub(crate) struct IdleStreams {
    /// Inserters of a single server, each with its stream.
    inserters: Mutex<Vec<Inserter>>,
    /// Streams that have carried only rollouts and late columns. A server reads them also where its
    /// memory has no room for inserts.
    growing: Mutex<Vec<OpenStream>>,
    /// Streams to the shards of a group.
    to_shards: ShardStreams,
    /// Order of columns in single steps.
    by_position: ColumnOrders,
    /// Order of columns in batches.
    by_name: ColumnOrders,
}

impl Default for IdleStreams {
    fn default() -> Self {
        Self {
            inserters: Mutex::default(),
            growing: Mutex::default(),
            to_shards: ShardStreams::default(),
            by_position: ColumnOrders::new(Matching::ByPosition),
            by_name: ColumnOrders::new(Matching::ByName),
        }
    }
}

/// State of an insert that is kept for the next one.
struct Inserter {
    /// `None` before the first insert.
    stream: Option<OpenStream>,
    /// Signatures for the check of items.
    signatures: Arc<Signatures>,
    keys: KeyGenerator,
    chunk_maker: ChunkMaker,
}

/// The priorities of the `B` items of a batch in one table.
#[derive(Debug, Clone)]
pub struct RowPriorities {
    /// The priority of each row.
    pub values: Vec<f64>,
    /// Removal priority of each row, used by the remover instead of `values`; of the same length.
    pub removal: Option<Vec<f64>>,
}

impl RowPriorities {
    /// The priority of a row.
    fn of(&self, row: usize) -> ItemPriority {
        let removal = self.removal.as_ref().map(|removal| removal[row]);
        ItemPriority { value: self.values[row], removal }
    }
}

/// Rows of a batch for one table.
struct RowsOfTable<'a> {
    table: Arc<str>,
    priorities: &'a RowPriorities,
    /// Order of the columns in the table's signature.
    order: Option<ColumnOrder>,
}

/// Insert of single steps.
///
/// Adding steps never waits, and copies the values, so the caller's memory is free after the call.
/// If adding fails, no item is created.
#[derive(Debug)]
pub struct Insertion {
    inserter: Inserter,
    session: Arc<Session>,
    idle: Arc<IdleStreams>,
    episode_id: u64,
    num_steps: i32,
    /// Items in order. The items of one step share a trajectory.
    items: Vec<NewItem>,
    /// Keys of the program's own for the items.
    own_keys: Option<OwnKeys>,
    /// Longest wait of the items at their server.
    max_wait: Option<Duration>,
    compression: Compression,
}

/// Keys of the program's own for the items of an insert, of any number of tables.
#[derive(Debug, Clone)]
pub struct OwnKeys {
    /// The key of each row, or of the only item.
    pub keys: Vec<u64>,
    /// True if they take the place of the items that have their keys; else those get their
    /// priorities.
    pub replace: bool,
}

impl Insertion {
    /// Takes an idle inserter, or makes one that opens its stream later.
    ///
    /// An inserter keeps its signatures. They are fetched again if the server may have been
    /// replaced by one with other tables.
    pub(crate) async fn start(
        session: &Arc<Session>,
        idle: &Arc<IdleStreams>,
        compression: Compression,
    ) -> Result<Self> {
        let several = session.has_several_servers();
        let inserter =
            idle.inserters.lock().pop().filter(|inserter| !several && !inserter.was_lost());
        // In process, no connection breaks when a server is replaced, so its id is compared. With
        // several servers, the new stream goes to the next one.
        let may_be_another = if inserter.is_none() {
            !several
        } else {
            let transport = session.transport()?;
            let id = transport.tables_state_id();
            transport.is_local() && !id.is_some_and(|id| session.knows_tables(id))
        };
        let fetched = pin!(async {
            if may_be_another {
                session.server_info().await?;
            }
            session.signatures().await
        });
        let signatures = reported(session, || WaitFor::Answer("ServerInfo"), fetched).await?;
        let current = inserter.filter(|kept| Arc::ptr_eq(&kept.signatures, &signatures));
        let mut inserter = current.unwrap_or_else(|| Inserter {
            stream: None,
            signatures,
            keys: KeyGenerator::new(),
            chunk_maker: ChunkMaker::default(),
        });
        let episode_id = inserter.keys.next_key();
        let session = Arc::clone(session);
        let idle = Arc::clone(idle);
        let num_steps = 0;
        let items = Vec::new();
        Ok(Self {
            inserter,
            session,
            idle,
            episode_id,
            num_steps,
            items,
            own_keys: None,
            max_wait: None,
            compression,
        })
    }

    /// Gives the items that are added after this keys of the program's own.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an address of several servers, of which each has other keys.
    pub fn use_keys(&mut self, keys: OwnKeys) -> Result<()> {
        self.check_one_server(
            "and keys of the program's own are for one server: an item is on the server that owns \
             its key. Start the group with num_shards=1, or leave out the keys.",
        )?;
        self.own_keys = Some(keys);
        Ok(())
    }

    /// Limits the wait of the items at their server.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an address of several servers, which insert parts of a batch.
    pub fn limit_wait(&mut self, max_wait: Duration) -> Result<()> {
        self.check_one_server(
            "which insert parts of a batch by themselves; timeout_ms is for an insert at one server.",
        )?;
        self.max_wait = Some(max_wait);
        Ok(())
    }

    /// `why` continues the sentence about the address.
    fn check_one_server(&self, why: &str) -> Result<()> {
        if self.session.leads_to_group() || self.session.has_several_servers() {
            let address = self.session.address();
            return Err(Error::invalid_argument(format!("{address} has several servers, {why}")));
        }
        Ok(())
    }

    /// Adds one step, whose columns have these names, and for each table an item of it with that
    /// table's priority. Never waits.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a priority that is NaN, `TableNotFound`, and `SignatureMismatch` for a
    /// step that does not fit the signature of a table. Then no item was created.
    pub fn add<P: Into<ItemPriority> + Copy>(
        &mut self,
        step: &[CellValue<'_>],
        names: &Arc<ColumnNames>,
        items: &[(String, P)],
    ) -> Result<()> {
        let columns: Vec<(DType, &[usize])> =
            step.iter().map(|cell| (cell.dtype(), cell.shape())).collect();
        for (table, priority) in items {
            check_priority(table, (*priority).into())?;
            let signature = self.signature(table)?;
            self.idle.by_position.of(table, names, signature)?;
            if let Some(signature) = signature {
                check_steps(signature, table, &columns, 1)?;
            }
        }
        let range = self.next_step();
        let Inserter { keys, chunk_maker, .. } = &mut self.inserter;
        let key = keys.next_key();
        let trajectory = encode_step(step, key, range, chunk_maker, self.compression)?;
        for (table, priority) in items {
            self.push(0, &Arc::from(table.as_str()), (*priority).into(), trajectory.clone());
        }
        Ok(())
    }

    /// Adds a step for each row of `columns` `[B, ...]`, and for each table an item per step with
    /// one of the table's `B` priorities. Columns with the names of a table's signature are
    /// reordered. Never waits.
    ///
    /// # Errors
    ///
    /// Errors of `add`; `InvalidArgument` for a column of another length; `SignatureMismatch` for
    /// names that a signature lacks. Then no item was created.
    ///
    /// # Panics
    ///
    /// If a table's number of priorities differs from the first table's, or from that of own keys.
    pub fn add_batch(
        &mut self,
        columns: &[CellValue<'_>],
        names: &Arc<ColumnNames>,
        items: &[(String, RowPriorities)],
    ) -> Result<()> {
        let num_rows = items.first().map_or(0, |(_, priorities)| priorities.values.len());
        for (table, priorities) in items {
            (0..num_rows).try_for_each(|row| check_priority(table, priorities.of(row)))?;
        }
        for (i, column) in columns.iter().enumerate() {
            if column.shape().first() != Some(&num_rows) {
                return Err(Error::invalid_argument(format!(
                    "leaf {i} must have a first dimension of {num_rows}, one row per priority, got shape {}",
                    shape_text(column.shape())
                )));
            }
        }
        if num_rows == 0 {
            return Ok(());
        }
        let row: Vec<(DType, &[usize])> =
            columns.iter().map(|column| (column.dtype(), &column.shape()[1..])).collect();
        let mut tables: Vec<RowsOfTable<'_>> = Vec::with_capacity(items.len());
        for (table, priorities) in items {
            let signature = self.signature(table)?;
            let order = self.idle.by_name.of(table, names, signature)?;
            if let Some(signature) = signature {
                check_steps(signature, table, &specs_in_order(&row, order.as_deref()), 1)?;
            }
            tables.push(RowsOfTable { table: table.as_str().into(), priorities, order });
        }
        self.items.reserve(num_rows * tables.len());
        let mut encoder = RowEncoder::new(columns, num_rows, self.compression);
        for row in 0..num_rows {
            let range = self.next_step();
            let Inserter { keys, chunk_maker, .. } = &mut self.inserter;
            let trajectory = encoder.encode(row, keys.next_key(), range, chunk_maker)?;
            if let [RowsOfTable { table, priorities, order: None }] = &tables[..] {
                self.push(row, table, priorities.of(row), trajectory);
                continue;
            }
            for RowsOfTable { table, priorities, order } in &tables {
                self.push(row, table, priorities.of(row), in_order(&trajectory, order.as_deref())?);
            }
        }
        Ok(())
    }

    /// Adds columns `[T, ...]`, which may differ in `T`, as one item for each table. Columns with
    /// the names of a table's signature are reordered. Never waits.
    ///
    /// # Errors
    ///
    /// Errors of `add_batch`; `InvalidArgument` for a column without steps. Then no item was
    /// created.
    pub fn add_sequence<P: Into<ItemPriority> + Copy>(
        &mut self,
        columns: &[CellValue<'_>],
        names: &Arc<ColumnNames>,
        items: &[(String, P)],
    ) -> Result<()> {
        for (i, column) in columns.iter().enumerate() {
            let path = names.0.get(i).map(ToString::to_string).filter(|path| !path.is_empty());
            check_has_steps(column, || path.unwrap_or_else(|| i.to_string()))?;
        }
        let specs: Vec<(DType, &[usize])> =
            columns.iter().map(|column| (column.dtype(), column.shape())).collect();
        let mut orders = Vec::with_capacity(items.len());
        for (table, priority) in items {
            check_priority(table, (*priority).into())?;
            let signature = self.signature(table)?;
            let order = self.idle.by_name.of(table, names, signature)?;
            if let Some(signature) = signature {
                check_sequences(signature, table, &specs_in_order(&specs, order.as_deref()))?;
            }
            orders.push(order);
        }
        let first = self.next_step();
        let Inserter { keys, chunk_maker, .. } = &mut self.inserter;
        let next_key = || keys.next_key();
        let cut = (self.compression, ReadAs::Windows);
        let trajectory = encode_sequence(columns, next_key, first, chunk_maker, cut)?;
        for ((table, priority), order) in items.iter().zip(orders) {
            let trajectory = in_order(&trajectory, order.as_deref())?;
            self.push(0, &Arc::from(table.as_str()), (*priority).into(), trajectory);
        }
        Ok(())
    }

    /// Adds a change of an item with rollouts: one that opens it, under a key that is drawn now, or
    /// one of the item with this key. `columns` are `[T, ...]`, one for each part of the change;
    /// those in `single` are one step without that dimension. Never waits. Returns the key.
    ///
    /// # Errors
    ///
    /// `TableNotFound`; `InvalidArgument` for another number of columns than parts;
    /// `SignatureMismatch` for a column that does not fit the signature.
    pub fn add_change(
        &mut self,
        table: &str,
        key: Option<u64>,
        priority: impl Into<ItemPriority>,
        columns: &[CellValue<'_>],
        single: &[bool],
        change: ItemChange,
    ) -> Result<u64> {
        let parts = match &change {
            ItemChange::Opens(opening) => Arc::clone(&opening.parts),
            ItemChange::Grows(growth) => Arc::clone(&growth.parts),
        };
        if columns.len() != parts.len() || columns.len() != single.len() {
            return Err(Error::invalid_argument("a change has a column for each of its parts."));
        }
        if let Some(signature) = self.signature(table)? {
            for ((part, column), &single) in parts.iter().zip(columns).zip(single) {
                check_part(signature, table, part.column, column, single)?;
            }
        }
        for (part, column) in parts.iter().zip(columns) {
            let signature = self.signature(table)?;
            let name = |it: &Arc<Signature>| it.name_of(part.column);
            check_has_steps(column, || signature.map_or_else(|| part.column.to_string(), name))?;
        }
        let mut builder = TrajectoryBuilder::new();
        let mut at = 0;
        for parts in parts.chunk_by(|a, b| a.sequence == b.sequence) {
            let first = self.next_step();
            let Inserter { keys, chunk_maker, .. } = &mut self.inserter;
            let next_key = || keys.next_key();
            let columns = &columns[at..at + parts.len()];
            let cut = (self.compression, ReadAs::Whole);
            let encoded = encode_sequence(columns, next_key, first, chunk_maker, cut)?;
            for (column, &single) in encoded.columns().zip(&single[at..]) {
                for run in column.runs() {
                    builder.run(&encoded.chunks()[run.slice.chunk], run);
                }
                builder.end_column(single);
            }
            at += parts.len();
        }
        let key = key.unwrap_or_else(|| self.inserter.keys.next_key());
        let mut item = NewItem::new(key, table, priority, builder.finish()?);
        item.change = Some(Box::new(change));
        self.items.push(item);
        Ok(key)
    }

    /// Like [`Self::finish`], for changes. Returns those that the server refused, and why. An
    /// insert that waits longer than `limit` is cancelled, because its stream is dropped.
    ///
    /// # Errors
    ///
    /// `Unimplemented` if the server knows no rollouts; `DeadlineExceeded`, with what the insert
    /// waits for, after `limit`; those of [`Self::finish`].
    pub async fn finish_changes(mut self, limit: Option<Duration>) -> Result<Refused> {
        let session = Arc::clone(&self.session);
        let table = self.items.first().map(|item| Arc::clone(&item.table)).unwrap_or_default();
        let grows = |item: &NewItem| matches!(item.change.as_deref(), Some(ItemChange::Grows(_)));
        let only_grows = self.items.iter().all(grows);
        let of_inserts = only_grows.then(|| self.inserter.stream.take());
        if only_grows {
            let idle = self.idle.growing.lock().pop();
            self.inserter.stream = idle.filter(|stream| !stream.has_ended());
        }
        let (may_keep_stream, refused) = {
            let what = || WaitFor::Inserts(Arc::clone(&table));
            let sent = pin!(self.send_changes());
            let sent = pin!(reported(&session, what, sent));
            within(limit, &session, &table, sent).await?
        };
        if !may_keep_stream {
            return Ok(refused);
        }
        if let Some(of_inserts) = of_inserts {
            let mut growing = self.idle.growing.lock();
            let stream = std::mem::replace(&mut self.inserter.stream, of_inserts);
            growing.extend(stream);
            growing.truncate(MAX_IDLE);
        }
        let mut idle = self.idle.inserters.lock();
        if idle.len() < MAX_IDLE {
            idle.push(self.inserter);
        }
        Ok(refused)
    }

    async fn send_changes(&mut self) -> Result<(bool, Refused)> {
        let session = Arc::clone(&self.session);
        session.require(&[Capability::Rollouts]).await?;
        session.check_priorities(&self.items).await?;
        let Self { inserter: Inserter { stream, signatures, .. }, items, .. } = self;
        // An item with rollouts is on one server, which knows a repeated change by its key.
        let how = Delivery { has_given_keys: true, deadline: None };
        let was_lost = deliver(&session, signatures, None, stream, items, how).await?;
        let refused = stream.as_ref().map(OpenStream::take_refused).unwrap_or_default();
        let may_keep = !was_lost && !session.has_several_servers() && !session.leads_to_group();
        Ok((may_keep, refused))
    }

    /// Keys of all items in order, those of one step side by side. Empty for a group, where each
    /// shard's keys are drawn when its items are sent.
    #[must_use]
    pub fn keys(&self) -> Vec<u64> {
        if self.session.leads_to_group() {
            return Vec::new();
        }
        self.items.iter().map(|item| item.key).collect()
    }

    /// Sends all items, waits for their confirmation, and keeps the stream for the next insert.
    /// Sends nothing if the server does not support the priorities.
    ///
    /// Unconfirmed items are sent again after a lost connection; see `deliver`.
    ///
    /// The server refuses items that wait for longer than the limit, if there is one. Only it says
    /// so: an answer that comes late is waited for.
    ///
    /// No stream is kept with several servers, because the next insert goes to another one, or
    /// after a lost connection, because the server may be a new one with other signatures.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` if items were refused; `Unavailable` if they were after a lost
    /// connection, over which they may have been inserted.
    pub async fn finish(mut self) -> Result<()> {
        let session = Arc::clone(&self.session);
        let table = self.items.first().map(|item| Arc::clone(&item.table)).unwrap_or_default();
        let num_items = self.items.len();
        let what = || WaitFor::Inserts(Arc::clone(&table));
        let (may_keep_stream, refused) = {
            let sent = pin!(self.send_all());
            reported(&session, what, sent).await?
        };
        let refusal = match self.max_wait.filter(|_| !refused.is_empty()) {
            Some(limit) if may_keep_stream => {
                Some(waited_in_vain(&table, limit, &refused, num_items))
            }
            Some(_) => Some(Error::unavailable(format!(
                "The connection was lost during the insert. {} of {num_items} items were not \
                 inserted when they were sent again, but may have been before.",
                refused.len(),
            ))),
            None => None,
        };
        let mut idle = self.idle.inserters.lock();
        if may_keep_stream && idle.len() < MAX_IDLE {
            idle.push(self.inserter);
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Sends all items. Returns true if the stream may be used again, and the refused items.
    async fn send_all(&mut self) -> Result<(bool, Refused)> {
        let session = Arc::clone(&self.session);
        session.check_priorities(&self.items).await?;
        let Self { inserter, idle, items, own_keys, .. } = self;
        if self.max_wait.is_some() {
            session.require(&[Capability::InsertTimeouts]).await?;
        }
        if let Some(own) = own_keys {
            if own.replace {
                session.require(&[Capability::Replace]).await?;
            }
            session.check_plain(items)?;
        }
        let Inserter { stream, signatures, .. } = inserter;
        if session.leads_to_group() {
            let items = std::mem::take(items);
            let was_lost = deliver_to_shards(&session, &idle.to_shards, signatures, items).await?;
            return Ok((!was_lost, Vec::new()));
        }
        let deadline = self.max_wait.and_then(|it| Instant::now().checked_add(it));
        let how = Delivery { has_given_keys: own_keys.is_some(), deadline };
        let was_lost = deliver(&session, signatures, None, stream, items, how).await?;
        let refused = stream.as_ref().map(OpenStream::take_refused).unwrap_or_default();
        Ok((!was_lost && !session.has_several_servers(), refused))
    }

    /// The signature of a table, if it has one.
    fn signature(&self, table: &str) -> Result<Option<&Arc<Signature>>> {
        let signatures = &self.inserter.signatures;
        match signatures.get(table) {
            None => unknown_table(table, &self.session, signatures).map(|()| None),
            Some(signature) => Ok(signature.as_ref()),
        }
    }

    fn next_step(&mut self) -> SequenceRange {
        let step = self.num_steps;
        self.num_steps += 1;
        SequenceRange { episode_id: self.episode_id, start: step, end: step, sparse: false }
    }

    fn push(
        &mut self,
        row: usize,
        table: &Arc<str>,
        priority: ItemPriority,
        trajectory: Trajectory,
    ) {
        let own = self.own_keys.as_ref();
        let key = own.map_or_else(|| self.inserter.keys.next_key(), |own| own.keys[row]);
        let mut item = NewItem::new(key, Arc::clone(table), priority, trajectory);
        item.replaces = own.is_some_and(|own| own.replace);
        self.items.push(item);
    }
}

/// Waits for an insert, at most that long; then says what it waits for, unless that ends meanwhile.
async fn within<T>(
    limit: Option<Duration>,
    session: &Session,
    table: &str,
    mut insert: Pin<&mut impl Future<Output = Result<T>>>,
) -> Result<T> {
    let Some(limit) = limit else { return insert.await };
    if let Ok(answer) = tokio::time::timeout(limit, insert.as_mut()).await {
        return answer;
    }
    tokio::select! {
        biased;
        answer = insert => answer,
        why = why_insert_waits(session, table) => {
            Err(Error::deadline_exceeded("insert_item", limit, &why))
        }
    }
}

/// The error of an insert of which these items have waited for too long, at the first one's table.
fn waited_in_vain(table: &str, limit: Duration, refused: &Refused, num_items: usize) -> Error {
    let reason = refused.iter().find_map(|(_, refusal)| match refusal {
        Refusal::Waited(reason) if !reason.is_empty() => Some(&**reason),
        _ => None,
    });
    let reason = reason.unwrap_or_default();
    let num_refused = refused.len();
    let waiting_for = format!(
        "a place in table {table}. {reason} {num_refused} of {num_items} items were not inserted"
    );
    Error::deadline_exceeded("the insert", limit, &waiting_for)
}

/// Why inserts into a table wait, in the words of its server; `None` if they do not, or if it does
/// not say so soon.
pub(super) async fn reason_of_inserts(session: &Session, table: &str) -> Option<String> {
    let request = WaitReasonRequest { table: table.to_owned() };
    let asked = async { session.transport()?.call(request).await };
    let answer = tokio::time::timeout(REASON_TIMEOUT, asked).await.ok().and_then(Result::ok);
    let reason = answer.and_then(|answer| Some(answer.table?.inserting?.reason));
    reason.filter(|reason| !reason.is_empty())
}

/// What an insert of an item with rollouts waits for.
async fn why_insert_waits(session: &Session, table: &str) -> String {
    match reason_of_inserts(session, table).await {
        Some(sentence) => format!("a place in table {table}. {sentence}"),
        None => format!(
            "a place in table {table}: `reverb why` says whether its backlog, its size, memory or \
             a pause is in the way"
        ),
    }
}

/// The same item with its columns in this order, if given.
fn in_order(trajectory: &Trajectory, order: Option<&[usize]>) -> Result<Trajectory> {
    let Some(order) = order else { return Ok(trajectory.clone()) };
    let columns: Vec<u32> = order.iter().map(|&at| at as u32).collect();
    TrajectoryBuilder::new().select(trajectory, &columns)
}

/// Dtypes and shapes of the columns in this order, if given.
fn specs_in_order<'a>(
    specs: &'a [(DType, &'a [usize])],
    order: Option<&[usize]>,
) -> Cow<'a, [(DType, &'a [usize])]> {
    match order {
        None => Cow::Borrowed(specs),
        Some(order) => order.iter().map(|&at| specs[at]).collect(),
    }
}

impl Inserter {
    /// True if the stream ended while it was idle.
    fn was_lost(&self) -> bool {
        self.stream.as_ref().is_some_and(OpenStream::has_ended)
    }
}

impl std::fmt::Debug for Inserter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inserter").field("keys", &self.keys).finish_non_exhaustive()
    }
}

fn check_has_steps(column: &CellValue<'_>, name: impl FnOnce() -> String) -> Result<()> {
    if column.shape().first().is_some_and(|&num_steps| num_steps > 0) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "column {} of a sequence must have shape [T, ...] with at least one step, got {}",
        name(),
        shape_text(column.shape())
    )))
}

fn check_priority(table: &str, priority: ItemPriority) -> Result<()> {
    if !priority.is_valid() {
        return Err(Error::invalid_argument(format!(
            "priority must not be NaN, got NaN for table {table}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reverb_base::ErrorKind;
    use reverb_wire::transport::{
        BoxFuture, InsertBatch, InsertSink, InsertStream, SampleStream, Transport, WaitHere,
    };
    use tokio::runtime::Handle;
    use tokio::sync::mpsc;

    use super::*;
    use crate::client::Client;
    use crate::session::Connector;
    use crate::writer::testing::{FakeServer, unexpected, unexpected_calls};

    /// A server whose first stream confirms some items of its first message and then fails.
    #[derive(Clone, Default)]
    struct FailingServer {
        /// Keys of each message on any stream.
        messages: Arc<Mutex<Vec<Vec<u64>>>>,
        confirmed_before_failure: usize,
        failure: Option<Error>,
    }

    struct Sink(FailingServer, mpsc::UnboundedSender<Result<Vec<u64>>>);

    impl InsertSink for Sink {
        fn limit_wait(&mut self, max_wait: Option<Duration>) {
            assert_eq!(max_wait, None, "no test needs it");
        }

        fn wait_here(&self) -> Option<WaitHere> {
            None
        }

        fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
            let keys: Vec<u64> = batch.items.iter().map(|item| item.key).collect();
            let mut messages = self.0.messages.lock();
            messages.push(keys.clone());
            let is_first = messages.len() == 1;
            let answer = match &self.0.failure {
                Some(error) if is_first => {
                    let _ = self.1.send(Ok(keys[..self.0.confirmed_before_failure].to_vec()));
                    Err(error.clone())
                }
                _ => Ok(keys),
            };
            let _ = self.1.send(answer);
            Box::pin(async { Ok(()) })
        }
    }

    impl Connector for FailingServer {
        fn transport(&self) -> Result<Arc<dyn Transport>> {
            Ok(Arc::new(self.clone()))
        }
    }

    impl Transport for FailingServer {
        fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
            let (sender, confirmations) = mpsc::unbounded_channel();
            let sink = Box::new(Sink(self.clone(), sender));
            Box::pin(async {
                Ok(InsertStream {
                    sink,
                    confirmations,
                    refused: Arc::default(),
                    shard: None,
                    server: None,
                })
            })
        }

        fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
            unexpected()
        }

        unexpected_calls!("failing:1");
    }

    fn insertion(server: &FailingServer) -> Insertion {
        let timeout = Duration::from_secs(5);
        let client = Client::new("failing:1", Box::new(server.clone()), timeout, Handle::current());
        let inserter = Inserter {
            stream: None,
            signatures: Arc::new(FakeServer::tables(&["a", "b"])),
            keys: KeyGenerator::new(),
            chunk_maker: ChunkMaker::default(),
        };
        Insertion {
            inserter,
            session: Arc::clone(client.session()),
            idle: Arc::default(),
            episode_id: 1,
            num_steps: 0,
            items: Vec::new(),
            own_keys: None,
            max_wait: None,
            compression: Compression::Auto,
        }
    }

    fn add_rows(insertion: &mut Insertion, num_rows: usize, tables: &[&str]) -> Result<()> {
        let bytes: Vec<u8> = (0..num_rows * 4).map(|i| i as u8).collect();
        let shape = [num_rows, 4];
        let column = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
        let priorities = RowPriorities { values: vec![1.0; num_rows], removal: None };
        let items: Vec<_> =
            tables.iter().map(|table| ((*table).to_owned(), priorities.clone())).collect();
        insertion.add_batch(&[column], &Arc::default(), &items)
    }

    #[tokio::test]
    async fn only_what_was_not_confirmed_is_sent_again() {
        for confirmed_before_failure in [0, 3, 10] {
            let failure = Some(Error::unavailable("gone"));
            let server =
                FailingServer { confirmed_before_failure, failure, ..FailingServer::default() };
            let mut insertion = insertion(&server);
            add_rows(&mut insertion, 10, &["a"]).unwrap();
            let idle = Arc::clone(&insertion.idle);
            insertion.finish().await.unwrap();
            let messages = server.messages.lock();
            let rest = &messages[0][confirmed_before_failure..];
            let again: Vec<u64> = messages[1..].iter().flatten().copied().collect();
            assert_eq!(again, rest);
            let may_be_another_server = confirmed_before_failure < 10;
            assert_eq!(idle.inserters.lock().is_empty(), may_be_another_server);
        }
    }

    #[tokio::test]
    async fn items_are_not_sent_to_another_server_without_their_table() {
        let failure = Some(Error::unavailable("gone"));
        let server = FailingServer { failure, ..FailingServer::default() };
        let mut insertion = insertion(&server);
        insertion.inserter.signatures = Arc::new(FakeServer::tables(&["gone"]));
        add_rows(&mut insertion, 3, &["gone"]).unwrap();
        let error = insertion.finish().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        assert_eq!(server.messages.lock().len(), 1);
    }

    #[tokio::test]
    async fn an_error_that_is_not_transient_ends_the_insert() {
        let failure = Some(Error::resource_exhausted("too much"));
        let server = FailingServer { failure, ..FailingServer::default() };
        let mut insertion = insertion(&server);
        add_rows(&mut insertion, 3, &["a"]).unwrap();
        let idle = Arc::clone(&insertion.idle);
        assert_eq!(insertion.finish().await.unwrap_err().message(), "too much");
        assert_eq!(server.messages.lock().len(), 1);
        assert!(idle.inserters.lock().is_empty(), "a broken stream is not used again");
    }

    #[tokio::test]
    async fn large_batches_go_in_several_messages_in_order() {
        let server = FailingServer::default();
        let mut insertion = insertion(&server);
        add_rows(&mut insertion, 1500, &["a", "b"]).unwrap();
        let keys = insertion.keys();
        insertion.finish().await.unwrap();
        let messages = server.messages.lock();
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [1024, 1024, 952]);
        assert_eq!(messages.concat(), keys);
    }

    #[tokio::test]
    async fn nothing_is_created_if_adding_fails() {
        let mut insertion = insertion(&FailingServer::default());
        assert!(add_rows(&mut insertion, 3, &["a", "unknown"]).is_err());
        let step = CellValue::Bytes { dtype: DType::UInt8, shape: &[1], bytes: &[1] };
        let tables = [("a".to_owned(), 1.0), ("b".to_owned(), f64::NAN)];
        assert!(insertion.add(&[step], &Arc::default(), &tables).is_err());
        assert!(insertion.items.is_empty());
    }
}
