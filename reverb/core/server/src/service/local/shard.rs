// SPDX-License-Identifier: Apache-2.0
//! A shard of a group in the same process.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::StoredItem;
use reverb_wire::generated::reverb::{TransferResponse, UpdatePrioritiesResponse, WatchResponse};
use reverb_wire::shard::{Shard, TransferSink, WatchStream};
use reverb_wire::transport::BoxFuture;

use super::{LocalService, LocalTransport};
use crate::service::caller::Caller;
use crate::service::store::{LocalAdopter, Tier};
use crate::service::watch_stream::Watch;

impl Shard for LocalTransport {
    fn watch<'a>(&'a self, tables: &'a [String]) -> BoxFuture<'a, Result<Box<dyn WatchStream>>> {
        Box::pin(async move {
            let service = self.service.get_for_stream()?;
            let watch = Watch::begin(&service, tables, &Caller::default())?;
            let service = self.service.clone();
            let stream = LocalWatchStream { service, watch: Some(watch), failure: None };
            Ok(Box::new(stream) as Box<dyn WatchStream>)
        })
    }

    fn update_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<UpdatePrioritiesResponse>> {
        Box::pin(async move {
            let service = self.service.get()?;
            let missing_keys = service.mutate(table, updates, deletes)?;
            Ok(UpdatePrioritiesResponse { missing_keys, epoch: service.group.epoch() })
        })
    }

    fn open_transfer(&self) -> BoxFuture<'_, Result<Box<dyn TransferSink>>> {
        Box::pin(async {
            let memory = Arc::clone(&self.service.get_for_stream()?.memory);
            let sink = LocalTransferSink {
                service: self.service.clone(),
                adopter: memory.adopter_of_writer(),
                tier: memory.tier.clone(),
                done: TransferResponse::default(),
                failure: None,
            };
            Ok(Box::new(sink) as Box<dyn TransferSink>)
        })
    }
}

struct LocalWatchStream {
    service: LocalService,
    /// Absent after the watch has ended.
    watch: Option<Watch>,
    /// Error that ended the watch. Later calls return it again, like a watch over the network.
    failure: Option<Error>,
}

impl LocalWatchStream {
    async fn next(&mut self) -> Result<Option<WatchResponse>> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let service = self.service.get_for_stream()?;
        let Some(watch) = &mut self.watch else { return Ok(None) };
        tokio::select! {
            biased;
            error = service.interrupted() => Err(error),
            changes = watch.next(&service) => Ok(Some(changes)),
        }
    }
}

impl WatchStream for LocalWatchStream {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<WatchResponse>>> {
        Box::pin(async {
            let next = self.next().await;
            if let Err(error) = &next {
                self.failure = Some(error.clone());
                self.watch = None;
            }
            next
        })
    }
}

/// Transfer sink that passes items by reference.
struct LocalTransferSink {
    service: LocalService,
    adopter: LocalAdopter,
    tier: Option<Arc<Tier>>,
    done: TransferResponse,
    /// Error that ended the transfer. Later calls return it again, as over the network.
    failure: Option<Error>,
}

impl LocalTransferSink {
    async fn transfer(&mut self, table: &str, mut items: Vec<StoredItem>) -> Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let service = self.service.get_for_stream()?;
        tokio::select! {
            biased;
            error = service.interrupted() => return Err(error),
            () = service.memory.wait_for_room() => {}
        }
        let table = service.tables.get(table)?.1;
        self.adopter.adopt(items.iter_mut().map(|item| &mut item.trajectory));
        let done = table.transfer(items).map_err(|error| service.stop.explain(error))?;
        self.done.num_added += done.added;
        self.done.num_present += done.present;
        service.after_insert(Some(table));
        Ok(())
    }
}

impl TransferSink for LocalTransferSink {
    fn send<'a>(
        &'a mut self,
        table: &'a Arc<str>,
        items: Vec<StoredItem>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let done = self.transfer(table, items).await;
            done.inspect_err(|error| self.failure = Some(error.clone()))
        })
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<TransferResponse>> {
        Box::pin(async {
            if let Some(error) = &self.failure {
                return Err(error.clone());
            }
            if let Some(tier) = &self.tier {
                tier.until_on_disk().await?;
            }
            Ok(self.done)
        })
    }
}
