// SPDX-License-Identifier: Apache-2.0
//! The call `Transfer`: adds items of another shard unchanged.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use reverb_auth::Right;
use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use reverb_data::{ItemValidator, StoredItem};
use reverb_engine::Table;
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::Responder;
use reverb_wire::codec::insert::InsertRequest;
use reverb_wire::codec::item::RawItem;
use reverb_wire::codec::trajectory_template::TrajectoryTemplates;
use reverb_wire::generated::reverb::TransferResponse;

use crate::observe::status::nanoseconds;
use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::held_chunks::{HeldChunks, HoldingStream};
use crate::service::insert_stream::{ITEMS_AT_ONCE, keep};
use crate::service::memory::{InsertGate, Memory};
use crate::service::store::Adopter;

/// A transfer. Holds the chunks that later items may refer to.
struct Transfer<'a> {
    service: &'a Service,
    caller: &'a Caller,
    open: Arc<HoldingStream>,
    templates: TrajectoryTemplates,
    adopter: Adopter,
    validator: ItemValidator,
    /// Table of the last item, already checked for the caller's right to administer it.
    allowed: Option<(&'a Arc<str>, &'a Arc<Table>)>,
    done: TransferResponse,
}

/// Serves the stream until the caller closes its half.
pub(crate) async fn run(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let memory = &service.memory;
    memory.check_new_stream()?;
    let open = memory.streams.open(responder.peer().name());
    let mut transfer = Transfer {
        service,
        caller,
        open: Arc::clone(&open),
        templates: TrajectoryTemplates::default(),
        adopter: Adopter::new(memory.tier.is_some()),
        validator: ItemValidator::default(),
        allowed: None,
        done: TransferResponse::default(),
    };
    // A later drain ends this stream, because it is listed; this finds an earlier one.
    service.drain.check()?;
    reader.pass_through(Arc::new(InsertGate {
        memory: Arc::clone(memory),
        stream: Arc::clone(&open),
        listed: None,
    }));
    responder.announce();
    loop {
        let message = tokio::select! {
            biased;
            error = service.interrupted() => return Err(error),
            () = open.ended() => return Err(memory.ended()),
            message = next(&mut reader, memory) => message?,
            () = responder.closed() => {
                return Err(Error::cancelled("The caller cancelled the stream."));
            }
        };
        match message {
            Some(message) => transfer.process(message)?,
            None => return responder.send_now(Message::encode(&transfer.done)),
        }
    }
}

/// The next message. After the last one all items are on disk, because the source may delete them
/// when it has the answer.
async fn next(reader: &mut MessageReader, memory: &Memory) -> Result<Option<Bytes>> {
    let message = reader.next().await?;
    if message.is_none()
        && let Some(tier) = &memory.tier
    {
        tier.until_on_disk().await?;
    }
    Ok(message)
}

impl Transfer<'_> {
    fn process(&mut self, message: Bytes) -> Result<()> {
        let request = InsertRequest::parse(message)?;
        let open = Arc::clone(&self.open);
        let mut held = open.held.lock();
        for chunk in request.chunks() {
            let chunk = chunk?;
            held.replace(chunk.key, || {
                let chunk = self.adopter.make(&chunk, request.message());
                self.service.memory.account.charge(&chunk);
                chunk
            });
        }
        let mut items: Vec<StoredItem> = Vec::with_capacity(request.num_items().min(ITEMS_AT_ONCE));
        let mut table: Option<&Arc<Table>> = None;
        for item in request.items() {
            let (item, its_table) = self.stored_item(&item?, &held)?;
            if let Some(table) = table.replace(its_table)
                && (!Arc::ptr_eq(table, its_table) || items.len() == ITEMS_AT_ONCE)
            {
                self.transfer(table, std::mem::take(&mut items))?;
            }
            items.push(item);
        }
        if let Some(table) = table {
            self.transfer(table, items)?;
            keep(&mut held, &request)?;
        }
        let (held_bytes, limit) =
            (held.bytes(), self.service.memory.peer_bytes(self.service.limits.stream_bytes));
        drop(held);
        if held_bytes > limit {
            return Err(Error::resource_exhausted(format!(
                "This transfer holds {} bytes of chunks for later items; the limit is {} bytes \
                 (Limits.stream_bytes).",
                grouped(held_bytes),
                grouped(limit),
            ))
            .over_limit("stream_bytes"));
        }
        self.service.after_insert(table.map(|table| &**table));
        Ok(())
    }

    fn transfer(&mut self, table: &Table, items: Vec<StoredItem>) -> Result<()> {
        let done = table.transfer(items).map_err(|error| self.service.stop.explain(error))?;
        self.done.num_added += done.added;
        self.done.num_present += done.present;
        Ok(())
    }
}

impl<'a> Transfer<'a> {
    fn table(&mut self, name: &str) -> Result<(&'a Arc<str>, &'a Arc<Table>)> {
        if let Some(allowed) = self.allowed.filter(|(known, _)| &***known == name) {
            return Ok(allowed);
        }
        let table = self.service.table_for(self.caller, Right::Admin, name)?;
        self.allowed = Some(table);
        Ok(table)
    }

    fn stored_item(
        &mut self,
        item: &RawItem<'_>,
        held: &HeldChunks,
    ) -> Result<(StoredItem, &'a Arc<Table>)> {
        let (name, table) = self.table(item.table)?;
        let key = item.key;
        let trajectory = self.templates.read(item, |chunk| {
            held.get(chunk).ok_or_else(|| {
                Error::invalid_argument(format!(
                    "Item {key} of table {name} refers to chunk {chunk}, which the transfer does \
                     not have."
                ))
            })
        })?;
        self.validator.validate(&trajectory).map_err(|error| {
            Error::invalid_argument(format!("Item {key} of table {name}: {error}"))
        })?;
        let inserted_at_ns = match item.inserted_at_ns {
            0 => nanoseconds(SystemTime::now()),
            time => time,
        };
        let priority = item.priority;
        let times_sampled = item.times_sampled.max(0);
        let removal_priority = item.removal_priority;
        let item = StoredItem {
            key,
            priority,
            removal_priority,
            times_sampled,
            inserted_at_ns,
            trajectory,
        };
        Ok((item, table))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.service.memory.streams.close(&self.open);
    }
}
