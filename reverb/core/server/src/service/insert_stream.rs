// SPDX-License-Identifier: Apache-2.0
//! The insert stream: receives chunks and items, sends the keys of inserted items.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use reverb_auth::Right;
use reverb_base::error::grouped;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::proto_bytes::MAX_VARINT_BYTES;
use reverb_data::rollouts::{Growth, ItemChange, Piece, Refusal};
use reverb_data::{ItemValidator, NewItem};
use reverb_engine::{Confirm, Table};
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Content, PASS_BYTES, Responder};
use reverb_wire::codec::insert::{InsertRequest, encode_confirmation};
use reverb_wire::codec::item::RawItem;
use reverb_wire::codec::trajectory_template::TrajectoryTemplates;
use reverb_wire::convert::rollouts::to_change;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::observe::streams::{OpenStream, WaitsFor};
use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::held_chunks::{HeldChunks, HoldingStream};
use crate::service::memory::InsertGate;
use crate::service::reader_room::wait_for_answer_room;
use crate::service::store::Adopter;

/// Number of items that are inserted under one lock.
pub(crate) const ITEMS_AT_ONCE: usize = 1024;

/// One writer's stream.
///
/// It holds the chunks that the writer may still refer to. Items share them, so a chunk without
/// items is freed as soon as the writer releases it or the stream ends.
pub(crate) struct InsertStream<'a> {
    service: &'a Service,
    stream: OpenStream,
    /// Chunks that the stream holds.
    open: Arc<HoldingStream>,
    inbox: Arc<Inbox>,
    confirm: Arc<dyn Confirm>,
    /// Number of items without confirmation.
    unconfirmed: usize,
    /// The same number by message. Confirmations come about in the order of the items.
    unanswered: VecDeque<usize>,
    templates: TrajectoryTemplates,
    adopter: Adopter,
    validator: ItemValidator,
    /// True if it has carried items with rollouts.
    has_openings: bool,
    /// End of the wait of the unconfirmed items, if it is limited.
    deadline: Option<Instant>,
    /// Set for a caller that may not insert into all tables.
    limited: Option<&'a Caller>,
    /// Table of the last item, already checked for such a caller.
    allowed: Option<Arc<str>>,
}

/// State of reading the next message.
enum Reading {
    Open,
    /// The table of the last item is over its limit; reading resumes when the future completes.
    Paused(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// A message with new items of a table with rollouts; processed when the future completes.
    Held(Bytes, Pin<Box<dyn Future<Output = ()> + Send>>),
    /// The writer has closed its half of the stream.
    Ended,
}

enum Event {
    Message(Option<Bytes>),
    Room,
    Confirmed,
    /// The unconfirmed items have waited for as long as they may.
    Deadline,
    /// The server ends the stream.
    Ended,
    /// The writer has cancelled the stream, or its connection is lost.
    Closed {
        is_lost: bool,
    },
}

impl<'a> InsertStream<'a> {
    /// # Errors
    ///
    /// `Unavailable` while the memory of the server is used up.
    pub(crate) fn new(
        service: &'a Service,
        stream: OpenStream,
        caller: &'a Caller,
    ) -> Result<Self> {
        service.memory.check_new_stream()?;
        let inbox = Arc::new(Inbox::default());
        let confirm: Arc<dyn Confirm> = Arc::clone(&inbox) as Arc<dyn Confirm>;
        let open = service.memory.streams.open(&stream.peer);
        let stream = Self {
            service,
            stream,
            open,
            inbox,
            confirm,
            unconfirmed: 0,
            unanswered: VecDeque::new(),
            templates: TrajectoryTemplates::default(),
            adopter: Adopter::new(service.memory.tier.is_some()),
            validator: ItemValidator::default(),
            has_openings: false,
            deadline: None,
            limited: (!caller.may_everywhere(Right::Insert)).then_some(caller),
            allowed: None,
        };
        // A later drain ends this stream, because it is listed; this finds an earlier one.
        service.drain.check()?;
        Ok(stream)
    }

    /// Serves the stream until the writer closes its half and all items are confirmed.
    pub(crate) async fn run(
        mut self,
        mut reader: MessageReader,
        responder: &mut Responder,
    ) -> Result<()> {
        responder.count_answered(0);
        let memory = &self.service.memory;
        reader.pass_through(Arc::new(InsertGate {
            memory: Arc::clone(memory),
            stream: Arc::clone(&self.open),
            listed: Some(self.stream.shared()),
        }));
        let result = self.serve(reader, responder).await;
        let is_given_up = (self.has_openings || self.deadline.is_some())
            && result.as_ref().is_err_and(|it| it.kind() == ErrorKind::Cancelled);
        if self.unconfirmed > 0
            && (responder.is_peer_gone() || self.is_lost(&result) || is_given_up)
        {
            // The writer is gone, or will reconnect and send its queued items again. Cancel them
            // here to avoid duplicates. One that gives up an item with rollouts, or with a time
            // limit, does not want it.
            for table in self.service.tables.all() {
                table.cancel_inserts(&self.confirm);
            }
        }
        // Items that were inserted before the stream failed are confirmed too.
        let (keys, refused) = self.inbox.take_keys();
        let last = || encode_confirmation(&keys, &refused);
        if !keys.is_empty() && responder.send_now(last()).is_ok() {
            self.note_confirmed(keys.len(), responder);
        }
        responder.settle(self.unconfirmed == 0);
        result
    }

    /// True if the stream was ended by an error or by the server, not by its writer.
    fn is_lost(&self, result: &Result<()>) -> bool {
        let is_lost = |error: &Error| error.kind() == ErrorKind::Unavailable;
        result.as_ref().is_err_and(is_lost) && !self.service.stop.is_stopped()
    }

    async fn serve(&mut self, mut reader: MessageReader, responder: &mut Responder) -> Result<()> {
        let mut reading = Reading::Open;
        loop {
            // Keys that arrive while a message is written wait for the next one, so under load many
            // keys share a message.
            let (keys, refused) = self.inbox.take_keys();
            if !keys.is_empty() {
                let unconfirmed = self.unconfirmed.saturating_sub(keys.len());
                self.stream.count_items(keys.len());
                self.stream.set_wait((unconfirmed > 0).then_some(WaitsFor::Table));
                self.confirm_keys(&keys, &refused, responder).await?;
                self.note_confirmed(keys.len(), responder);
                continue;
            }
            self.inbox.check()?;
            if self.open.is_ended() {
                self.service.drain.check()?;
                return Err(self.service.memory.ended());
            }
            if matches!(reading, Reading::Ended) && self.unconfirmed == 0 {
                return Ok(());
            }
            match self.next_event(&mut reader, responder, &mut reading).await? {
                Event::Message(Some(message)) if self.must_wait(&message)? => {
                    let memory = Arc::clone(&self.service.memory);
                    let room = Box::pin(async move { memory.wait_for_growing_room().await });
                    self.stream.set_wait(Some(WaitsFor::Memory));
                    reading = Reading::Held(message, room);
                }
                Event::Message(Some(message)) => {
                    if let Some(table) = self.process(message)? {
                        reading = wait_for_room(table);
                    }
                }
                Event::Message(None) => reading = Reading::Ended,
                Event::Room => reading = Reading::Open,
                Event::Confirmed | Event::Ended => {}
                Event::Deadline => {
                    self.deadline = None;
                    for table in self.service.tables.all() {
                        table.refuse_inserts(&self.confirm);
                    }
                }
                Event::Closed { is_lost: true } => {
                    return Err(Error::unavailable("The connection to the writer is lost."));
                }
                Event::Closed { is_lost: false } => {
                    return Err(Error::cancelled("The writer cancelled the stream."));
                }
            }
        }
    }

    /// Counts confirmed items, and the messages of which they were the last.
    fn note_confirmed(&mut self, mut items: usize, responder: &mut Responder) {
        self.unconfirmed = self.unconfirmed.saturating_sub(items);
        self.deadline.take_if(|_| self.unconfirmed == 0);
        let mut answered = 0;
        while let Some(message) = self.unanswered.front_mut()
            && *message <= items
        {
            items -= *message;
            answered += 1;
            self.unanswered.pop_front();
        }
        if let Some(message) = self.unanswered.front_mut() {
            *message -= items;
        }
        responder.count_answered(answered);
    }

    /// Confirms inserted items to the writer.
    async fn confirm_keys(
        &self,
        keys: &[u64],
        mut refused: &[(u64, Refusal)],
        responder: &mut Responder,
    ) -> Result<()> {
        let outbox = responder.outbox();
        let mut rest = keys;
        while !rest.is_empty() {
            let room = outbox.room_or_pass(Content::Message, rest.len() * MAX_VARINT_BYTES);
            let room = wait_for_answer_room(self.service, responder, room).await?;
            let count = if room.is_pass() { PASS_BYTES / MAX_VARINT_BYTES } else { rest.len() };
            let (now, later) = rest.split_at(count.min(rest.len()));
            // Before their keys, or with them.
            let message = encode_confirmation(now, std::mem::take(&mut refused)).with_room(room);
            self.service.stop.or(responder.send(message)).await??;
            rest = later;
        }
        Ok(())
    }

    async fn next_event(
        &self,
        reader: &mut MessageReader,
        responder: &mut Responder,
        reading: &mut Reading,
    ) -> Result<Event> {
        if self.unconfirmed > 0 {
            responder.announce();
        }
        let next = async {
            match reading {
                // While memory is full, reading pauses, perhaps within a message.
                Reading::Open if self.service.memory.max_bytes.is_some() => tokio::select! {
                    biased;
                    message = reader.next() => message.map(Event::Message),
                    is_lost = responder.cancelled_or_lost() => Ok(Event::Closed { is_lost }),
                },
                Reading::Open => reader.next().await.map(Event::Message),
                Reading::Paused(room) => {
                    tokio::select! {
                        () = room => Ok(Event::Room),
                        is_lost = responder.cancelled_or_lost() => Ok(Event::Closed { is_lost }),
                    }
                }
                Reading::Held(message, room) => {
                    tokio::select! {
                        () = room => {
                            let message = std::mem::take(message);
                            *reading = Reading::Open;
                            Ok(Event::Message(Some(message)))
                        }
                        is_lost = responder.cancelled_or_lost() => Ok(Event::Closed { is_lost }),
                    }
                }
                Reading::Ended => {
                    let is_lost = responder.cancelled_or_lost().await;
                    Ok(Event::Closed { is_lost })
                }
            }
        };
        let deadline = async {
            match self.deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.service.stop.stopped() => Err(self.service.stop.error()),
            () = self.inbox.news.notified() => Ok(Event::Confirmed),
            () = deadline => Ok(Event::Deadline),
            () = self.open.ended() => Ok(Event::Ended),
            event = next => event,
        }
    }

    /// True if a message has new items of a table with rollouts, and these have to wait for those
    /// that are there to grow.
    fn must_wait(&self, message: &Bytes) -> Result<bool> {
        if !self.service.memory.is_full_for_growing() {
            return Ok(false);
        }
        let request = InsertRequest::parse(message.clone())?;
        for item in request.items() {
            let item = item?;
            let change = item.change.map(to_change).transpose()?;
            if !matches!(change, Some(ItemChange::Grows(_)))
                && opens_items(self.service, std::iter::once(item.table))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Processes a message; returns the table of its last item.
    fn process(&mut self, message: Bytes) -> Result<Option<Arc<Table>>> {
        let request = InsertRequest::parse(message)?;
        if request.num_chunks() == 0 && request.num_items() == 0 {
            return Err(Error::invalid_argument(format!(
                "ProcessIncomingRequest: Request lacks both chunks and item.  \
                 Request: {} keep_chunk_keys",
                request.num_kept_chunks()
            )));
        }
        let open = Arc::clone(&self.open);
        let mut held = open.held.lock();
        for chunk in request.chunks() {
            let chunk = chunk?;
            // Writers repeat chunks; the first data of a key is kept.
            held.hold(chunk.key, || {
                let chunk = self.adopter.make(&chunk, request.message());
                self.service.memory.account.charge(&chunk);
                chunk
            });
        }
        let mut table = None;
        if request.num_items() > 0 {
            let before = self.unconfirmed;
            if let Some(max_wait) = request.max_wait() {
                let end = Instant::now().checked_add(max_wait);
                self.deadline = self.deadline.or(end);
            }
            table = self.insert_items(&request, &held)?;
            self.unanswered.push_back(self.unconfirmed - before);
            keep(&mut held, &request)?;
        }
        self.check_held_bytes(held.bytes())?;
        drop(held);
        self.service.after_insert(table.as_deref());
        Ok(table)
    }

    fn check_held_bytes(&self, held_bytes: usize) -> Result<()> {
        let limit = self.service.memory.peer_bytes(self.service.limits.stream_bytes);
        if held_bytes <= limit {
            return Ok(());
        }
        Err(Error::resource_exhausted(format!(
            "This insert stream holds {} bytes of chunks for later items; the limit is {} bytes \
             (Limits.stream_bytes). Create items, or let go of chunks (num_keep_alive_refs).",
            grouped(held_bytes),
            grouped(limit),
        ))
        .over_limit("stream_bytes"))
    }

    /// Inserts items in order, in runs of the same table. If an item is refused, earlier ones stay.
    fn insert_items(
        &mut self,
        request: &InsertRequest,
        held: &HeldChunks,
    ) -> Result<Option<Arc<Table>>> {
        let mut run: Vec<NewItem> = Vec::with_capacity(request.num_items().min(ITEMS_AT_ONCE));
        let mut table: Option<&Arc<Table>> = None;
        let mut refused = None;
        for item in request.items() {
            match item.and_then(|item| self.new_item(&item, held)) {
                Ok((item, its_table)) if is_growth(&item) => {
                    if let Some(table) = table.replace(its_table) {
                        self.insert_run(table, std::mem::take(&mut run))?;
                    }
                    self.unconfirmed += 1;
                    if let Err(error) = grow(its_table, item, &self.confirm) {
                        self.unconfirmed -= 1;
                        refused = Some(error);
                        break;
                    }
                }
                Ok((item, its_table)) => {
                    self.has_openings |= item.change.is_some();
                    self.open.note_inserts();
                    if let Some(table) = table.replace(its_table)
                        && (!Arc::ptr_eq(table, its_table) || run.len() == ITEMS_AT_ONCE)
                    {
                        self.insert_run(table, std::mem::take(&mut run))?;
                    }
                    run.push(item);
                }
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        if let Some(table) = table {
            self.insert_run(table, run)?;
        }
        refused.map_or(Ok(table.cloned()), Err)
    }

    /// Inserts items into one table.
    fn insert_run(&mut self, table: &Table, run: Vec<NewItem>) -> Result<()> {
        self.stream.use_table(self.service.tables.get(table.name())?.0);
        let is_first = self.unconfirmed == 0;
        let count = run.len();
        table.insert(run, &self.confirm)?;
        self.unconfirmed += count;
        if is_first && self.unconfirmed > 0 {
            self.stream.set_wait(Some(WaitsFor::Table));
        }
        Ok(())
    }

    /// Checks that the writer may insert into a table.
    fn check_table(&mut self, table: &str) -> Result<()> {
        let Some(caller) = self.limited else { return Ok(()) };
        if self.allowed.as_deref() != Some(table) {
            let (name, _) = self.service.table_for(caller, Right::Insert, table)?;
            self.allowed = Some(Arc::clone(name));
        }
        Ok(())
    }

    fn new_item(
        &mut self,
        item: &RawItem<'_>,
        held: &HeldChunks,
    ) -> Result<(NewItem, &'a Arc<Table>)> {
        self.check_table(item.table)?;
        let mut is_chunk_missing = false;
        let trajectory = self.templates.read(item, |key| {
            held.get(key).ok_or_else(|| {
                is_chunk_missing = true;
                Error::internal(format!("Could not find sequence chunk {key}."))
            })
        });
        if let (true, Err(error)) = (is_chunk_missing, &trajectory) {
            return Err(error.clone());
        }
        let (name, table) = self.service.tables.get(item.table)?;
        let trajectory = trajectory?;
        self.validator.validate(&trajectory).map_err(|error| {
            Error::invalid_argument(format!("Item {} of table {name}: {error}", item.key))
        })?;
        let item = NewItem {
            key: item.key,
            table: Arc::clone(name),
            priority: item.priority,
            removal_priority: item.removal_priority,
            times_sampled: item.times_sampled,
            trajectory,
            replaces: item.replaces,
            change: item.change.map(to_change).transpose()?.map(Box::new),
        };
        Ok((item, table))
    }
}

/// True if one of these tables has rollouts.
pub(crate) fn opens_items<'a>(
    service: &Service,
    mut tables: impl Iterator<Item = &'a str>,
) -> bool {
    let has_rollouts = |table: &str| {
        service.tables.get(table).is_ok_and(|(_, table)| table.config().rollouts.is_some())
    };
    tables.any(has_rollouts)
}

/// True for rollouts or late columns of an item that is there: they never wait.
pub(crate) fn is_growth(item: &NewItem) -> bool {
    matches!(item.change.as_deref(), Some(ItemChange::Grows(_)))
}

/// Adds the rollouts or late columns to their item, and confirms or refuses them.
pub(crate) fn grow(table: &Table, item: NewItem, confirm: &Arc<dyn Confirm>) -> Result<()> {
    let NewItem { key, trajectory, change, .. } = item;
    let Some(ItemChange::Grows(growth)) = change.map(|it| *it) else { return Ok(()) };
    let Growth { parts, rollouts, lease, late } = growth;
    let config = table.config();
    let about = |error: Error| error.context(&format!("Item {key} of table {}", table.name()));
    let piece = config.rollouts.as_ref().map(|settings| Piece::new(trajectory, parts, settings));
    let piece = piece.transpose().map_err(about)?;
    if !table.grow(key, lease, rollouts, piece, late)? {
        confirm.refused(vec![(key, Refusal::Gone)]);
    }
    confirm.confirmed(&[key]);
    Ok(())
}

impl Drop for InsertStream<'_> {
    fn drop(&mut self) {
        self.service.memory.streams.close(&self.open);
    }
}

/// Releases all held chunks except those in the request, which must be held and distinct.
pub(crate) fn keep(held: &mut HeldChunks, request: &InsertRequest) -> Result<()> {
    let count = held.keep(|keep| request.for_each_kept_chunk(keep))?;
    let wanted = request.num_kept_chunks();
    if count == wanted {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "ReleaseOutOfRangeChunks: Kept less chunks than expected.  \
         chunks_.size() == {count} != keep_keys.size() == {wanted}"
    )))
}

fn wait_for_room(table: Arc<Table>) -> Reading {
    if table.wait_for_insert_room().now_or_never().is_some() {
        return Reading::Open;
    }
    Reading::Paused(Box::pin(async move { table.wait_for_insert_room().await }))
}

/// Inbox for the outcomes that tables report for a stream's items.
#[derive(Debug, Default)]
struct Inbox {
    content: Mutex<InboxContent>,
    news: Notify,
}

#[derive(Debug, Default)]
struct InboxContent {
    keys: Vec<u64>,
    /// Those of them that were refused.
    refused: Vec<(u64, Refusal)>,
    failure: Option<Error>,
}

impl Inbox {
    fn take_keys(&self) -> (Vec<u64>, Vec<(u64, Refusal)>) {
        let mut content = self.content.lock();
        (std::mem::take(&mut content.keys), std::mem::take(&mut content.refused))
    }

    fn check(&self) -> Result<()> {
        self.content.lock().failure.clone().map_or(Ok(()), Err)
    }
}

impl Confirm for Inbox {
    fn confirmed(&self, keys: &[u64]) {
        self.content.lock().keys.extend_from_slice(keys);
        self.news.notify_one();
    }

    fn refused(&self, refused: Vec<(u64, Refusal)>) {
        self.content.lock().refused.extend(refused);
    }

    fn failed(&self, error: Error) {
        self.content.lock().failure = Some(error);
        self.news.notify_one();
    }
}
