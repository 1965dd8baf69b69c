// SPDX-License-Identifier: Apache-2.0
//! Reads the items of some keys, without sampling.

use std::collections::HashMap;
use std::pin::pin;

use reverb_base::Result;
use reverb_data::Sampled;
use reverb_wire::Capability;
use reverb_wire::transport::ScanOptions;

use crate::client::{BatchRequest, Client};
use crate::sampler::ahead::SampledNumbers;
use crate::sampler::batch::BatchBuilder;
use crate::sampler::batch_column::BatchColumn;
use crate::sampler::batch_size::BatchBounds;
use crate::sampler::size_so_far::SizeSoFar;
use crate::session::Session;
use crate::waits::{WaitFor, reported};

/// Number of keys in one request: half of the size that servers accept for it.
const KEYS_AT_ONCE: usize = 4096;

/// What is known of the items of a batch, and its columns.
type Stacked = (Vec<SampledNumbers>, Vec<BatchColumn>);

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
    pub async fn fetch(&self, request: &BatchRequest<'_>, keys: &[u64]) -> Result<Stacked> {
        let session = self.session();
        let fetching = pin!(async {
            session.require(&[Capability::ChosenItems]).await?;
            if let Some(stacked) = stack(session, request, keys).await {
                return Ok(stacked);
            }
            let items = fetch(session, request, keys).await?;
            let &BatchRequest { max_bytes, ragged, .. } = request;
            let bounds = BatchBounds { batch_size: items.len(), max_bytes };
            match BatchBuilder::new(bounds, ragged, None).finish(&items) {
                Ok(columns) => Ok((items.iter().map(Into::into).collect(), columns)),
                Err(error) => Err(self.with_column_name(request, error).await),
            }
        });
        reported(session, || WaitFor::Answer("Scan"), fetching).await
    }
}

/// Stacks items while they arrive, so that none of them is in memory twice. `None` without keys,
/// for items of several lengths or shards, and after any error: `fetch` finds it again.
async fn stack(session: &Session, request: &BatchRequest<'_>, keys: &[u64]) -> Option<Stacked> {
    let bounds = BatchBounds { batch_size: keys.len(), max_bytes: request.max_bytes };
    let mut builder = BatchBuilder::new(bounds, request.ragged, None);
    let mut numbers = Vec::new();
    if keys.is_empty() || !request.ragged.is_stacked() || session.leads_to_group() {
        return None;
    }
    let transport = session.transport().ok()?;
    for part in keys.chunks(KEYS_AT_ONCE) {
        let options =
            ScanOptions { columns: request.columns, keys: Some(part), ..Default::default() };
        let mut stream = transport.open_scan(request.table, options).await.ok()?;
        let mut expected = part.iter();
        loop {
            let items = stream.receive().await.ok()?;
            if items.is_empty() {
                break;
            }
            let are_in_order = items.iter().all(|item| expected.any(|key| *key == item.key));
            if !are_in_order || !builder.append(&items) {
                return None;
            }
            numbers.extend(items.iter().map(SampledNumbers::from));
        }
    }
    Some((numbers, builder.into_columns()))
}

async fn fetch(
    session: &Session,
    request: &BatchRequest<'_>,
    keys: &[u64],
) -> Result<Vec<Sampled>> {
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
