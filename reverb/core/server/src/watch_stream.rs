// SPDX-License-Identifier: Apache-2.0
//! The call `Watch`: sizes, masses and cursors of tables, as they change.

use std::sync::Arc;
use std::time::Duration;

use reverb_data::{Error, Result};
use reverb_engine::{TableChanges, TableWatch, Watched};
use reverb_rpc::Message;
use reverb_rpc::frames::MessageReader;
use reverb_rpc::server::{Responder, read_single_message};
use reverb_wire::generated::reverb::{WatchRequest, WatchResponse, WatchedTable};
use tokio::time::{Instant, sleep_until};

use crate::caller::Caller;
use crate::service::Service;

/// Changes are told at most this often, unless they are urgent.
const INTERVAL: Duration = Duration::from_millis(100);

/// Urgent ones are told at most this often.
const URGENT_INTERVAL: Duration = Duration::from_millis(1);

/// How long it does not look again after it was woken for tables of others.
const REST: Duration = Duration::from_millis(10);

/// A watch of tables.
pub(crate) struct Watch {
    tables: Vec<(Arc<str>, TableWatch)>,
    changes: Arc<TableChanges>,
    /// When it told something last, and the epoch that it told.
    last: Option<(Instant, i64)>,
}

impl Watch {
    /// Watches these tables; all that the caller may see if there are none.
    ///
    /// # Errors
    ///
    /// `TableNotFound`, also for a table on which the caller has no right. `Unavailable` while the
    /// server drains.
    pub(crate) fn begin(service: &Service, tables: &[String], caller: &Caller) -> Result<Self> {
        service.drain.check()?;
        let is_visible = |name: &str| caller.may_see(name);
        let mut watched = Vec::new();
        for table in service.tables.all().iter().filter(|table| is_visible(table.name())) {
            if tables.is_empty() || tables.iter().any(|name| name == table.name()) {
                watched.push((Arc::from(table.name()), table.watch()));
            }
        }
        for name in tables {
            if !watched.iter().any(|(known, _)| **known == **name) {
                let all = service.tables.all().iter().map(|table| table.name());
                let known: Vec<String> =
                    all.filter(|name| is_visible(name)).map(str::to_owned).collect();
                return Err(Error::table_not_found(name, &known));
            }
        }
        Ok(Self { tables: watched, changes: Arc::clone(&service.changes), last: None })
    }

    /// The next changes; at first all tables. Cancel safe.
    pub(crate) async fn next(&mut self, service: &Service) -> WatchResponse {
        let changes = Arc::clone(&self.changes);
        let mut rests_until = None;
        loop {
            // From here on no notification is missed, even before the first poll.
            let mut any = std::pin::pin!(changes.any().notified());
            let mut urgent = std::pin::pin!(changes.urgent().notified());
            any.as_mut().enable();
            urgent.as_mut().enable();
            let Some((told_at, epoch)) = self.last else { return self.tell(service) };
            let (has_changed, is_urgent) = self.look();
            let is_urgent = is_urgent || service.group.epoch() != epoch;
            let now = Instant::now();
            let may_tell_at = told_at + if is_urgent { URGENT_INTERVAL } else { INTERVAL };
            if is_urgent || has_changed {
                if now >= may_tell_at {
                    return self.tell(service);
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

    /// Whether a table has changed, and whether that is urgent.
    fn look(&self) -> (bool, bool) {
        self.tables.iter().fold((false, false), |(any, urgent), (_, table)| {
            let (has_changed, is_urgent) = table.has_changed();
            (any || has_changed, urgent || is_urgent)
        })
    }

    fn tell(&mut self, service: &Service) -> WatchResponse {
        let epoch = service.group.epoch();
        self.last = Some((Instant::now(), epoch));
        let changed = self.tables.iter_mut().filter(|(_, table)| table.has_changed().0);
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
    let request: WatchRequest = read_single_message(&service.stop, &mut reader).await?;
    let mut watch = Watch::begin(service, &request.tables, caller)?;
    loop {
        let changes = tokio::select! {
            biased;
            error = service.interrupted() => return Err(error),
            () = responder.closed() => {
                return Err(Error::cancelled("The caller cancelled the stream."));
            }
            changes = watch.next(service) => changes,
        };
        tokio::select! {
            biased;
            error = service.interrupted() => return Err(error),
            sent = responder.send(Message::encode(&changes)) => sent?,
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
