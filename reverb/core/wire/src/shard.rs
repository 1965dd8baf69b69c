// SPDX-License-Identifier: Apache-2.0
//! Calls of a server that is a shard of a group. Servers of dm-reverb have none of them.

use std::sync::Arc;

use reverb_base::Result;
use reverb_data::StoredItem;

use crate::generated::reverb::{TransferResponse, UpdatePrioritiesResponse, WatchResponse};
use crate::transport::{BoxFuture, Transport};

/// An open watch. Dropping it ends it.
pub trait WatchStream: Send {
    /// The next changes; `None` when the server ended the watch.
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<WatchResponse>>>;
}

/// An open transfer. Dropping it cancels it; items that the server has read stay.
pub trait TransferSink: Send {
    /// Sends items of a table, with their chunks. Waits while the server accepts no more.
    fn send<'a>(
        &'a mut self,
        table: &'a Arc<str>,
        items: Vec<StoredItem>,
    ) -> BoxFuture<'a, Result<()>>;

    /// Ends the transfer, and waits until the server has all of it.
    fn finish(&mut self) -> BoxFuture<'_, Result<TransferResponse>>;
}

/// A server that may be a shard of a group. A server without these calls fails them with
/// `Unimplemented`.
pub trait Shard: Transport {
    /// Watches tables; an empty list stands for all of them.
    fn watch<'a>(&'a self, tables: &'a [String]) -> BoxFuture<'a, Result<Box<dyn WatchStream>>>;

    /// Deletes items, then updates priorities, and returns the missing keys.
    fn update_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<UpdatePrioritiesResponse>>;

    /// Opens a transfer of items to this shard.
    fn open_transfer(&self) -> BoxFuture<'_, Result<Box<dyn TransferSink>>>;
}
