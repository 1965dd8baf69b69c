// SPDX-License-Identifier: Apache-2.0
//! Scan: sends each item of a table once, or the chosen ones, as fast as the reader takes them.

use std::pin::pin;
use std::sync::Arc;

use reverb_auth::Right;
use reverb_base::Result;
use reverb_data::Sampled;
use reverb_engine::{Scan, Table};
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Content, Responder, read_single_message};
use reverb_wire::codec::sample::SampleEncoder;
use reverb_wire::convert::item_condition::from_item_condition;
use reverb_wire::generated::reverb::ScanRequest;

use crate::observe::streams::Stream;
use crate::service::Service;
use crate::service::blocking::blocking;
use crate::service::caller::Caller;
use crate::service::reader_room::wait_for_room;
use crate::service::sample_stream::{SelectedItems, send_samples};
use crate::service::selection::Selection;

/// Largest number of bytes of chunks that a scan keeps for chunks shared by later items. Deleted
/// items' chunks are kept in memory only by the scan. Items that share chunks are close to each
/// other, so more would save little.
const MAX_KEPT_CHUNK_BYTES: usize = 4 << 20;

/// Numbers of items listed at a time: with room for the list, and without.
const LISTED_ITEMS: usize = 1 << 18;
const FEW_LISTED_ITEMS: usize = 1 << 10;

/// Serves the scan to its end.
pub(crate) async fn run(
    service: &Service,
    caller: &Caller,
    stream: &Stream,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: ScanRequest = read_single_message(&service.stop, &mut reader).await?;
    let (name, table) = service.table_for(caller, Right::Sample, &request.table)?;
    stream.use_table(name);
    let outbox = responder.outbox();
    let kept = usize::try_from(request.kept_chunk_bytes).unwrap_or(0).min(MAX_KEPT_CHUNK_BYTES);
    let kept_room = outbox.try_room(Content::List, kept).filter(|_| kept > 0);
    let kept = if kept_room.is_some() { kept } else { 0 };
    let mut encoder = SampleEncoder::new().with_kept_chunks(kept);
    let mut selection = Selection::new(table, &request.columns)?;
    let condition = from_item_condition(request.condition.as_ref());
    let mut scan = match &request.keys {
        None => table.begin_unlisted_scan(condition)?,
        Some(keys) => table.begin_fetch(&keys.keys, condition)?,
    };
    let mut _list = None;
    loop {
        if scan.needs_list() {
            // The previous list is no longer needed.
            _list = None;
            let most = LISTED_ITEMS.min(table.len());
            let room = pin!(outbox.room_or_pass(Content::List, most * Scan::LISTING_BYTES));
            let mut room = wait_for_room(service, stream, responder, room).await?;
            let most = if room.is_pass() { FEW_LISTED_ITEMS } else { LISTED_ITEMS };
            scan = service.stop.or(pin!(list(table, scan, most))).await??;
            if !room.is_pass() {
                room.use_for(scan.listed_bytes());
                _list = Some(room);
            }
        }
        let list_bytes = Scan::MAX_ITEMS * size_of::<Sampled>();
        let room = pin!(outbox.room_or_pass(Content::List, list_bytes));
        let room = wait_for_room(service, stream, responder, room).await?;
        let most = if room.is_pass() { 1 } else { Scan::MAX_ITEMS };
        let items = table.scan_some(&mut scan, most)?;
        if items.is_empty() && !scan.needs_list() {
            return Ok(());
        }
        let _items = (!room.is_pass()).then_some(room);
        stream.count_items(items.len());
        let items = SelectedItems { table: name, samples: items, selection: &mut selection };
        if let (_, Some(lost)) =
            send_samples(service, stream, responder, &mut encoder, items).await?
        {
            return Err(lost);
        }
        // The connection sends queued data before the next items are taken.
        tokio::task::yield_now().await;
    }
}

/// Lists the next items on a blocking thread, because visiting millions of items takes time.
async fn list(table: &Arc<Table>, mut scan: Scan, most: usize) -> Result<Scan> {
    let table = Arc::clone(table);
    blocking(move || table.list(&mut scan, most).map(|()| scan)).await
}
