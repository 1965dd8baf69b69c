// SPDX-License-Identifier: Apache-2.0
//! The call `Watch`: reports sizes, masses and cursors of tables as they change.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_engine::{Table, TableChanges, TableWatch, Watched};
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Content, Responder, read_single_message};
use reverb_wire::generated::reverb::{WatchRequest, WatchResponse, WatchedTable};
use tokio::time::{Instant, sleep_until};

use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::reader_room::wait_for_answer_room;

/// Shortest interval between reports that are not urgent.
const INTERVAL: Duration = Duration::from_millis(100);

/// Shortest interval between urgent reports.
const URGENT_INTERVAL: Duration = Duration::from_millis(1);

/// Pause after a wake-up for a table that is not watched.
const REST: Duration = Duration::from_millis(10);

/// Estimated bytes of a table in a message and its source.
const TABLE_BYTES: usize = 512;

/// A watch of tables.
pub(crate) struct Watch {
    tables: Vec<(Arc<str>, TableWatch)>,
    changes: Arc<TableChanges>,
    /// Time and epoch of the last report.
    last: Option<(Instant, i64)>,
}

impl Watch {
    /// Watches these tables, or all that the caller may see if there are none.
    ///
    /// # Errors
    ///
    /// `TableNotFound`, also for a table on which the caller has no right. `Unavailable` while the
    /// server drains.
    pub(crate) fn begin(service: &Service, tables: &[String], caller: &Caller) -> Result<Self> {
        service.drain.check()?;
        let all = service.tables.all().iter();
        let visible = all.filter(|table| caller.may_see(table.name()));
        // Requests may have many names, and servers many tables.
        let mut missing: HashSet<&str> = tables.iter().map(String::as_str).collect();
        let is_watched = |table: &&Arc<Table>| tables.is_empty() || missing.remove(table.name());
        let watched: Vec<_> = visible
            .clone()
            .filter(is_watched)
            .map(|table| (Arc::from(table.name()), table.watch()))
            .collect();
        if let Some(name) = tables.iter().find(|name| missing.contains(name.as_str())) {
            let known: Vec<String> = visible.map(|table| table.name().to_owned()).collect();
            return Err(Error::table_not_found(name, &known));
        }
        Ok(Self { tables: watched, changes: Arc::clone(&service.changes), last: None })
    }

    /// The next changes; at first all tables. Cancel safe.
    pub(crate) async fn next(&mut self, service: &Service) -> WatchResponse {
        self.changed(service).await;
        self.tell(service, usize::MAX)
    }

    /// Waits for a change that is due. Cancel safe.
    async fn changed(&self, service: &Service) {
        let changes = Arc::clone(&self.changes);
        let mut rests_until = None;
        loop {
            // From here on no notification is missed, even before the first poll.
            let mut any = std::pin::pin!(changes.any().notified());
            let mut urgent = std::pin::pin!(changes.urgent().notified());
            any.as_mut().enable();
            urgent.as_mut().enable();
            let Some((told_at, epoch)) = self.last else { return };
            let (has_changed, is_urgent) = self.look();
            let is_urgent = is_urgent || service.group.epoch() != epoch;
            let now = Instant::now();
            let may_tell_at = told_at + if is_urgent { URGENT_INTERVAL } else { INTERVAL };
            if is_urgent || has_changed {
                if now >= may_tell_at {
                    return;
                }
                if is_urgent {
                    sleep_until(may_tell_at).await;
                } else {
                    tokio::select! {
                        () = urgent => {}
                        () = sleep_until(may_tell_at) => {}
                    }
                }
                continue;
            }
            match rests_until {
                Some(end) if now < end => tokio::select! {
                    () = urgent => {}
                    () = sleep_until(end) => {}
                },
                _ => {
                    any.await;
                    rests_until = Some(Instant::now() + REST);
                }
            }
        }
    }

    /// Two flags: a table has changed, and the change is urgent.
    fn look(&self) -> (bool, bool) {
        self.tables.iter().fold((false, false), |(any, urgent), (_, table)| {
            let (has_changed, is_urgent) = table.has_changed();
            (any || has_changed, urgent || is_urgent)
        })
    }

    /// Reports at most `most` changed tables. Other tables follow in the next report.
    fn tell(&mut self, service: &Service, most: usize) -> WatchResponse {
        let epoch = service.group.epoch();
        self.last = Some((Instant::now(), epoch));
        let changed = self.tables.iter_mut().filter(|(_, table)| table.has_changed().0).take(most);
        let tables = changed.filter_map(|(name, table)| Some(to_message(name, table.look()?)));
        WatchResponse { tables: tables.collect(), epoch }
    }
}

/// Serves the stream until the caller cancels it, or the server stops or drains.
pub(crate) async fn run(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let WatchRequest { tables } = read_single_message(&service.stop, &mut reader).await?;
    let mut watch = Watch::begin(service, &tables, caller)?;
    drop(tables);
    // The call lasts until the server or the caller ends it.
    responder.settle(true);
    let outbox = responder.outbox();
    loop {
        tokio::select! {
            biased;
            error = service.interrupted() => return Err(error),
            () = responder.closed() => {
                return Err(Error::cancelled("The caller cancelled the stream."));
            }
            () = watch.changed(service) => {}
        }
        let room = outbox.room_or_pass(Content::Message, watch.tables.len() * TABLE_BYTES);
        let room = wait_for_answer_room(service, responder, room).await?;
        let changes = watch.tell(service, if room.is_pass() { 1 } else { usize::MAX });
        tokio::select! {
            biased;
            error = service.interrupted() => return Err(error),
            sent = responder.send(Message::encode(&changes).with_room(room)) => sent?,
        }
    }
}

pub(crate) fn to_message(name: &str, table: Watched) -> WatchedTable {
    WatchedTable {
        name: name.to_owned(),
        size: table.size,
        mass: table.mass,
        cursor: table.cursor,
        num_inserts: table.num_inserts,
        num_samples: table.num_samples,
        num_deletes: table.num_deletes,
        min_diff: table.min_diff,
        max_diff: table.max_diff,
        min_size_to_sample: table.min_size_to_sample,
        insert_waits: table.insert_waits,
        sample_waits: table.sample_waits,
        has_foreign_keys: table.has_foreign_keys,
        max_priority: table.max_priority,
    }
}
