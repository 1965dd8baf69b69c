// SPDX-License-Identifier: Apache-2.0
//! Item queue, shared by all writers: checks items and queues them.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::figures::Bound;
use reverb_base::{Error, Result};
use reverb_data::column_names::ColumnNames;
use reverb_data::{DType, ItemPriority};
use reverb_wire::Calls as _;
use reverb_wire::generated::deepmind::reverb::{RateLimiterCallStats, TableInfo};
use reverb_wire::generated::reverb::{Diagnosis, StatusRequest, StatusResponse, TableStatus};

use super::cell::{Cell, CellRef};
use super::column_orders::{ColumnOrder, ColumnOrders, Matching};
use super::item::{ColumnRefs, PendingItem};
use super::item_kind::{ItemKind, KnownItemKinds};
use super::send_queue::{Gathering, SendQueue};
use super::signatures::unknown_table;
use crate::retry::short;
use crate::session::{Session, Signatures};
use crate::waits::{WaitFor, reported};

/// Time limit for reading the rate limiters' state for the text of a deadline error.
const LIMITER_LOOKUP: Duration = Duration::from_millis(100);

/// Polling interval of a flush that ends when tables are blocked.
const BLOCKED_INTERVAL: Duration = Duration::from_millis(50);

/// Age of a blocked insert, in seconds, from which its table counts as blocked.
const MIN_BLOCKED_S: f64 = 0.02;

/// Unconfirmed items of one writer, and the signatures for their check.
#[derive(Debug)]
pub struct ItemQueue {
    send_queue: Arc<SendQueue>,
    signatures: OnceLock<Arc<Signatures>>,
    orders: ColumnOrders,
    session: Arc<Session>,
    /// Names of the tables used so far, shared by all items.
    tables: Mutex<Vec<Arc<str>>>,
    /// Tables whose items have columns of `T + 1` and `T` rows, as was logged.
    told_of_rows: Mutex<Vec<Arc<str>>>,
    /// True if the caller awaits `throttle` itself instead of being blocked.
    is_throttled_by_caller: AtomicBool,
    /// True once the log has counted the items that the program left unconfirmed.
    has_reported: AtomicBool,
}

impl ItemQueue {
    /// Makes a queue; with `signatures`, every item is checked against its table's signature.
    /// `matching` is the rule for `order_of`.
    pub(crate) fn new(
        session: &Arc<Session>,
        signatures: Option<Arc<Signatures>>,
        matching: Matching,
    ) -> Self {
        Self::gathering(Gathering::IN_FLIGHT, session, signatures, matching)
    }

    /// Like `new`, with other numbers of items that are sent together.
    pub(crate) fn gathering(
        gathering: Gathering,
        session: &Arc<Session>,
        signatures: Option<Arc<Signatures>>,
        matching: Matching,
    ) -> Self {
        Self {
            send_queue: SendQueue::start(Arc::clone(session), gathering),
            signatures: signatures.map_or_else(OnceLock::new, OnceLock::from),
            orders: ColumnOrders::new(matching),
            session: Arc::clone(session),
            tables: Mutex::default(),
            told_of_rows: Mutex::default(),
            is_throttled_by_caller: AtomicBool::new(false),
            has_reported: AtomicBool::new(false),
        }
    }

    /// Sets the signatures for the check, unless they are set.
    pub(crate) fn check_against(&self, signatures: Arc<Signatures>) {
        let _ = self.signatures.set(signatures);
    }

    /// True if items are checked against signatures.
    pub(crate) fn has_signatures(&self) -> bool {
        self.signatures.get().is_some()
    }

    pub(crate) fn send_queue(&self) -> &Arc<SendQueue> {
        &self.send_queue
    }

    /// Returns the error that ended the insert stream for good, or an error if the writer is
    /// closed.
    pub fn check(&self) -> Result<()> {
        self.send_queue.check()
    }

    /// True if so many bytes are unconfirmed that the caller should call `throttle`.
    pub fn is_over_limit(&self) -> bool {
        self.send_queue.is_over_limit()
    }

    /// Makes `throttle` wait while this many bytes are unconfirmed, even if nothing is being
    /// confirmed.
    pub fn limit_pending(&self, max_pending_bytes: usize) {
        self.send_queue.limit_pending(max_pending_bytes);
    }

    /// Declares that the caller awaits `throttle` itself, because it must not be blocked.
    pub fn leave_throttling_to_caller(&self) {
        self.is_throttled_by_caller.store(true, Ordering::Relaxed);
    }

    /// True if the caller awaits `throttle` itself.
    pub fn is_throttled_by_caller(&self) -> bool {
        self.is_throttled_by_caller.load(Ordering::Relaxed)
    }

    /// Waits while many bytes are unconfirmed and confirmations arrive. Returns after a while if
    /// the table accepts no items, unless there is a limit of unconfirmed bytes. Logs a long wait
    /// for that limit.
    pub async fn throttle(&self) -> Result<()> {
        self.reported(self.send_queue.throttle()).await
    }

    /// Waits until fewer than `limit` items are ready or sent, and unconfirmed.
    pub(crate) async fn wait_for_room(&self, limit: usize) -> Result<()> {
        self.reported(self.send_queue.wait_for_room(limit)).await
    }

    async fn reported<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let what = || WaitFor::Inserts(self.send_queue.oldest_table().unwrap_or_default());
        reported(&self.session, what, pin!(call)).await
    }

    /// Wakes the send task: waiting items may have become ready.
    pub fn blocks_completed(&self) {
        self.send_queue.blocks_completed();
    }

    /// Handles the end of an episode: in a group, the next one may go to another shard.
    pub fn episode_ended(&self) {
        self.send_queue.episode_ended();
    }

    /// Number of items that are not confirmed yet.
    pub fn num_pending(&self) -> usize {
        self.send_queue.num_pending()
    }

    /// True if the writer was closed.
    pub fn is_closed(&self) -> bool {
        self.send_queue.is_closed()
    }

    /// Order of the columns with these names in the table's signature; `None`: unchanged.
    ///
    /// # Errors
    ///
    /// `SignatureMismatch` for other names, if the writer matches columns by name.
    pub fn order_of(&self, table: &str, names: &Arc<ColumnNames>) -> Result<Option<ColumnOrder>> {
        let Some(signatures) = self.signatures.get() else { return Ok(None) };
        let signature = signatures.get(table).and_then(Option::as_ref);
        self.orders.of(table, names, signature)
    }

    /// Dtype of a column in the table's signature; `None` if there is none.
    pub fn signature_dtype(&self, table: &str, column: usize) -> Option<DType> {
        let signature = self.signatures.get()?.get(table)?.as_ref()?;
        signature.0.get(column).map(|spec| spec.dtype)
    }

    /// Queues an item. Never waits.
    pub fn create_item<'a>(
        &self,
        table: &str,
        priority: impl Into<ItemPriority>,
        columns: &[ColumnRefs<'a>],
    ) -> Result<()> {
        let cells =
            |column: &ColumnRefs<'a>| (column.cells.iter().map(CellRef::as_cell), column.squeeze);
        let item = self.items_of(table).make(priority, columns.iter().map(cells))?;
        self.send_queue.push(item)
    }

    /// Makes items of one table, without queueing them.
    pub(crate) fn items_of(&self, table: &str) -> ItemMaker<'_> {
        ItemMaker {
            queue: self,
            kinds: KnownItemKinds::new(self.table_name(table)),
            usable: self.send_queue.check(),
        }
    }

    /// Waits until at most `max_pending` items are unconfirmed. Completes the chunks of all items
    /// except the last `max_pending`.
    pub async fn flush(&self, max_pending: usize, timeout: Option<Duration>) -> Result<()> {
        self.flush_for("flush", max_pending, timeout).await
    }

    /// Like `flush`, with the name of the call for error texts.
    pub(crate) async fn flush_for(
        &self,
        operation: &str,
        max_pending: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.send_queue.check()?;
        let done = self.reported(self.send_queue.flush(max_pending));
        let Some(timeout) = timeout else { return done.await };
        match tokio::time::timeout(timeout, done).await {
            Ok(result) => result,
            Err(_) => {
                Err(Error::deadline_exceeded(operation, timeout, &self.describe_wait().await))
            }
        }
    }

    /// Waits until all items are confirmed, or until a server reports that their tables block
    /// inserts.
    pub(crate) async fn flush_unless_blocked(&self) -> Result<()> {
        let mut done = std::pin::pin!(self.flush(0, None));
        loop {
            if let Ok(result) = tokio::time::timeout(BLOCKED_INTERVAL, done.as_mut()).await {
                return result;
            }
            let tables = self.send_queue.waiting_tables();
            let request = StatusRequest::default();
            let status = async { self.session.transport()?.call(request).await };
            let status = tokio::time::timeout(LIMITER_LOOKUP, status).await;
            let is_blocked = |table: &TableStatus| {
                let inserting = table.inserting.as_ref();
                let wait = inserting.and_then(|inserting| inserting.oldest_wait_s);
                tables.contains(&table.name) && wait.is_some_and(|wait| wait > MIN_BLOCKED_S)
            };
            if matches!(status, Ok(Ok(status)) if status.tables.iter().any(is_blocked)) {
                return Ok(());
            }
        }
    }

    /// Like `flush`, but returns false after the timeout, and asks no server for the reason.
    pub async fn is_confirmed_within(&self, max_pending: usize, timeout: Duration) -> Result<bool> {
        self.send_queue.check()?;
        let done = self.reported(self.send_queue.flush(max_pending));
        match tokio::time::timeout(timeout, done).await {
            Ok(result) => result.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Logs how many items are not confirmed when a program leaves the writer, once. `how` is what
    /// the program did. Of many writers that it leaves in the same way, the log has one line a
    /// minute, so their numbers are in a field.
    pub fn report_unconfirmed(&self, how: &str) {
        let num_items = self.send_queue.num_pending();
        let tables = self.send_queue.waiting_tables();
        if num_items == 0 || tables.is_empty() || self.has_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            items = num_items,
            "a writer was left with items of {} {} that {} has not confirmed: {how}",
            if tables.len() == 1 { "table" } else { "tables" },
            tables.join(", "),
            short(self.session.address()),
        );
    }

    /// Like `report_unconfirmed`, for a writer that is dropped.
    pub(crate) fn report_deleted(&self) {
        self.report_unconfirmed(
            "it was deleted without a flush, which abandons them. Flush it, or use it in a with \
             block.",
        );
    }

    /// Text about what a flush is waiting for, with the state of the rate limiters if the server
    /// answers quickly.
    async fn describe_wait(&self) -> String {
        let waiting = self.send_queue.describe_wait();
        if self.send_queue.was_lost() {
            return waiting;
        }
        let tables = self.send_queue.waiting_tables();
        if tables.is_empty() {
            return waiting;
        }
        if self.session.has_several_servers() {
            // With several servers, a status call would go to the next one.
            return format!("{waiting}. A table confirms an item once its rate limiter lets it in");
        }
        let limiters = async {
            let info = self.session.transport()?.server_info().await?;
            Ok::<_, Error>(describe_limiters(&info.tables, &tables))
        };
        // Servers of dm-reverb do not report it.
        let request = StatusRequest::default();
        let reasons = async {
            let status = self.session.transport()?.call(request).await?;
            Ok::<_, Error>(describe_reasons(&status, &tables))
        };
        let limiters = tokio::time::timeout(LIMITER_LOOKUP, limiters).await;
        let limiters = match limiters {
            Ok(Ok(limiters)) => limiters,
            _ => "The state of their rate limiters is not available".to_owned(),
        };
        let reasons = tokio::time::timeout(LIMITER_LOOKUP, reasons).await;
        let reasons = reasons.map_or(String::new(), Result::unwrap_or_default);
        format!(
            "{waiting}.{reasons} A table confirms an item once its rate limiter lets it in. \
             {limiters}"
        )
    }

    fn table_name(&self, name: &str) -> Arc<str> {
        let mut tables = self.tables.lock();
        if let Some(known) = tables.iter().find(|known| ***known == *name) {
            return Arc::clone(known);
        }
        tables.push(Arc::from(name));
        Arc::clone(&tables[tables.len() - 1])
    }

    /// Logs, once for each table, that rows of the columns do not belong together.
    #[cold]
    fn tell_of_rows(&self, table: &Arc<str>, [longest, shortest]: [(usize, usize); 2]) {
        let mut told = self.told_of_rows.lock();
        if told.iter().any(|known| known == table) {
            return;
        }
        told.push(Arc::clone(table));
        let ((long, rows), (short, fewer)) = (longest, shortest);
        tracing::warn!(
            table = %table,
            "items have {rows} rows in column {long} and {fewer} in column {short}: row i of one is \
             not of the same step as row i of the other in windows, steps and datasets, which \
             refuse such items. Write as many rows in each column, or ignore this if whole items \
             are sampled."
        );
    }

    pub(super) fn unknown_table(&self, table: &str, signatures: &Signatures) -> Result<()> {
        unknown_table(table, &self.session, signatures)
    }
}

/// Makes items of one table, and remembers their common parts.
pub(crate) struct ItemMaker<'a> {
    queue: &'a ItemQueue,
    kinds: KnownItemKinds,
    /// Error if the writer is closed.
    usable: Result<()>,
}

impl ItemMaker<'_> {
    /// Checks an item over these cells of each column, some of them squeezed.
    ///
    /// # Errors
    ///
    /// Errors of `PendingItem::new`; an error if the writer is closed; `TableNotFound`, and
    /// `SignatureMismatch` for an item that does not fit its table.
    pub(crate) fn make<'c, C>(
        &mut self,
        priority: impl Into<ItemPriority>,
        columns: impl Iterator<Item = (C, bool)> + Clone,
    ) -> Result<PendingItem>
    where
        C: ExactSizeIterator<Item = Cell<'c>> + Clone,
    {
        let Self { queue, kinds, usable } = self;
        let check = |kind: &ItemKind| {
            usable.clone()?;
            if let Some(columns) = kind.one_row_more() {
                queue.tell_of_rows(kind.table(), columns);
            }
            let Some(signatures) = queue.signatures.get() else { return Ok(()) };
            match signatures.get(&**kind.table()) {
                None => queue.unknown_table(kind.table(), signatures),
                Some(Some(signature)) => kind.check_signature(signature),
                Some(None) => Ok(()),
            }
        };
        let table = Arc::clone(kinds.table());
        let item = PendingItem::new(table, priority.into(), columns, check)?;
        item.teach(kinds);
        Ok(item)
    }

    /// Makes an item of a known kind; `None` if its kind is not known. See `KnownItemKinds::find`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a NaN priority.
    pub(crate) fn make_alike<'c, C>(
        &self,
        priority: impl Into<ItemPriority>,
        columns: &(impl Iterator<Item = (usize, C, bool)> + Clone),
    ) -> Result<Option<PendingItem>>
    where
        C: ExactSizeIterator<Item = Cell<'c>>,
    {
        PendingItem::of_known_kind(&self.kinds, priority.into(), columns)
    }
}

/// Reasons why these tables block items, as the server reports them.
fn describe_reasons(status: &StatusResponse, tables: &[String]) -> String {
    let waiting = status.tables.iter().filter(|table| tables.contains(&table.name));
    let texts = waiting.filter_map(|table| {
        let Diagnosis { state, sentence } = table.diagnosis.as_ref()?;
        let reason = &table.inserting.as_ref()?.reason;
        match &**state {
            // No call has been blocked for long.
            "flowing" | "idle" | "" if reason.is_empty() => None,
            "flowing" | "idle" | "" => Some(format!(" Table {}: {reason}", table.name)),
            _ => Some(format!(" Table {} is {state}: {sentence}", table.name)),
        }
    });
    texts.collect()
}

fn describe_limiters(infos: &[TableInfo], tables: &[String]) -> String {
    let describe = |name: &String| match infos.iter().find(|info| info.name == *name) {
        Some(info) => describe_limiter(info),
        None => format!("Table {name}: the server has none of that name"),
    };
    let texts: Vec<String> = tables.iter().map(describe).collect();
    texts.join("; ")
}

fn describe_limiter(info: &TableInfo) -> String {
    let limiter = info.rate_limiter_info.unwrap_or_default();
    let completed = |stats: Option<RateLimiterCallStats>| stats.unwrap_or_default().completed;
    format!(
        "Table {}: {} item(s), max_size {}, min_size_to_sample {}, {} insert(s), {} sample(s), samples_per_insert {}, \
         min_diff {}, max_diff {}",
        info.name,
        info.current_size,
        info.max_size,
        limiter.min_size_to_sample,
        completed(limiter.insert_stats),
        completed(limiter.sample_stats),
        limiter.samples_per_insert,
        Bound(limiter.min_diff),
        Bound(limiter.max_diff),
    )
}
