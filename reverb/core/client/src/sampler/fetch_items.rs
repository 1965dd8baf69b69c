// SPDX-License-Identifier: Apache-2.0
//! Reads the items of some keys, without sampling.

use std::collections::HashMap;
use std::pin::pin;

use reverb_base::Result;
use reverb_data::Sampled;
use reverb_wire::Capability;
use reverb_wire::transport::ScanOptions;

use crate::client::{BatchRequest, Client};
use crate::sampler::batch::BatchBuilder;
use crate::sampler::batch_column::BatchColumn;
use crate::sampler::batch_size::BatchBounds;
use crate::sampler::size_so_far::SizeSoFar;
use crate::session::Session;
use crate::waits::{WaitFor, reported};

/// Number of keys in one request: half of the size that servers accept for it.
const KEYS_AT_ONCE: usize = 4096;

impl Client {
    /// Reads the items of these keys and stacks them, in the order of the keys. Keys without an
    /// item are left out; a key that is there twice has two rows. Of the request, the table, the
    /// form and the columns count.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for items that cannot be stacked, `Unimplemented` if the server cannot
    /// fetch, `TableNotFound`, `Unavailable`, `DataLoss` for damaged chunks, and
    /// `ResourceExhausted` for a batch of more than `max_bytes`, or without memory.
    pub async fn fetch(
        &self,
        request: &BatchRequest<'_>,
        keys: &[u64],
    ) -> Result<(Vec<Sampled>, Vec<BatchColumn>)> {
        let session = self.session();
        let fetching = pin!(fetch(session, request, keys));
        let items = reported(session, || WaitFor::Answer("Scan"), fetching).await?;
        let &BatchRequest { max_bytes, ragged, .. } = request;
        let bounds = BatchBounds { batch_size: items.len(), max_bytes };
        match BatchBuilder::new(bounds, ragged, None).finish(&items) {
            Ok(columns) => Ok((items, columns)),
            Err(error) => Err(self.with_column_name(request, error).await),
        }
    }
}

async fn fetch(
    session: &Session,
    request: &BatchRequest<'_>,
    keys: &[u64],
) -> Result<Vec<Sampled>> {
    session.require(&[Capability::ChosenItems]).await?;
    let bounds = BatchBounds { batch_size: keys.len(), max_bytes: request.max_bytes };
    let mut size = SizeSoFar::new(bounds, request.ragged);
    let mut items = Vec::new();
    // Without keys, the request finds out whether there is such a table.
    let parts = keys.chunks(KEYS_AT_ONCE).chain(keys.is_empty().then_some(keys));
    for part in parts {
        let found = find(session, request, part).await?;
        items.extend(part.iter().filter_map(|key| found.get(key).cloned()));
        size.check(&items, items.len())?;
    }
    Ok(items)
}

/// The items of these keys, by key.
async fn find(
    session: &Session,
    request: &BatchRequest<'_>,
    keys: &[u64],
) -> Result<HashMap<u64, Sampled>> {
    let mut once = keys.to_vec();
    once.sort_unstable();
    once.dedup();
    let options = ScanOptions { columns: request.columns, keys: Some(&once), ..Default::default() };
    let found = session.retrying(|transport| async move {
        let mut stream = transport.open_scan(request.table, options).await?;
        let mut found = HashMap::new();
        loop {
            let items = stream.receive().await?;
            if items.is_empty() {
                return Ok(found);
            }
            found.extend(items.into_iter().map(|item| (item.key, item)));
        }
    });
    found.await
}
