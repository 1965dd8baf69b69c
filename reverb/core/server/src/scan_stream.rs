// SPDX-License-Identifier: Apache-2.0
//! A scan: sends each item of a table once, as fast as the reader takes them.

use std::sync::Arc;

use reverb_auth::Right;
use reverb_data::{Error, Result};
use reverb_engine::{Scan, Table};
use reverb_rpc::frames::MessageReader;
use reverb_rpc::server::{Responder, read_single_message};
use reverb_wire::codec::sample::SampleEncoder;
use reverb_wire::generated::reverb::ScanRequest;

use crate::caller::Caller;
use crate::sample_stream;
use crate::service::Service;
use crate::streams::Stream;

/// Maximum bytes of chunks that a scan holds because its reader keeps them. When their items are
/// deleted meanwhile, only the scan keeps them in memory.
const MAX_KEPT_CHUNK_BYTES: usize = 64 << 20;

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
    let mut scan = service.stop.or(begin(table)).await??;
    let kept = usize::try_from(request.kept_chunk_bytes).unwrap_or(0);
    let mut encoder = SampleEncoder::new().with_kept_chunks(kept.min(MAX_KEPT_CHUNK_BYTES));
    let mut messages = Vec::new();
    loop {
        let items = table.scan(&mut scan)?;
        if items.is_empty() {
            return Ok(());
        }
        for item in &items {
            encoder.push(name, item, |message| messages.push(message));
        }
        stream.count_items(items.len());
        drop(items);
        messages.extend(encoder.finish());
        sample_stream::send(service, stream, messages.drain(..), responder).await?;
        // Lets the connection send queued data before the next items are taken.
        tokio::task::yield_now().await;
    }
}

/// Starts a scan on a thread for blocking work: sorting millions of items takes time.
async fn begin(table: &Arc<Table>) -> Result<Scan> {
    let table = Arc::clone(table);
    let begun = tokio::task::spawn_blocking(move || table.begin_scan()).await;
    begun.unwrap_or_else(|_| Err(Error::internal("A scan could not begin.")))
}
