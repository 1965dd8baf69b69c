// SPDX-License-Identifier: Apache-2.0
//! Moves items from one shard to another.

use std::collections::HashSet;
use std::sync::Arc;

use reverb_base::Result;
use reverb_data::{Sampled, StoredItem, slot_of};
use reverb_wire::Calls as _;
use reverb_wire::capability::Capability;
use reverb_wire::generated::reverb::TransferResponse;
use reverb_wire::shard::Shard;
use reverb_wire::transport::ScanOptions;

/// Copies items of a table from `source` to `target`, oldest first and unchanged: those with keys
/// in these slots, or all items if `slots` is empty. The items stay in `source`.
///
/// # Errors
///
/// `TableNotFound`, or the error of one of the two streams; `target` may then have some of the
/// items. `Unimplemented` if items have removal priorities and `target` cannot store them.
pub async fn transfer(
    source: &dyn Shard,
    target: &dyn Shard,
    table: &str,
    slots: &[u16],
) -> Result<TransferResponse> {
    let slots: HashSet<u16> = slots.iter().copied().collect();
    let mut scan = source.open_scan(table, ScanOptions::default()).await?;
    let mut sink = target.open_transfer().await?;
    let table: Arc<str> = Arc::from(table);
    let mut keeps_removal_priorities = false;
    loop {
        let items = scan.receive().await?;
        if items.is_empty() {
            return sink.finish().await;
        }
        let is_wanted = |item: &Sampled| slots.is_empty() || slots.contains(&slot_of(item.key));
        let items: Vec<StoredItem> = items
            .into_iter()
            .filter(is_wanted)
            .map(|item| StoredItem {
                key: item.key,
                priority: item.priority,
                removal_priority: item.removal_priority,
                times_sampled: item.times_sampled,
                inserted_at_ns: item.inserted_at_ns,
                trajectory: item.trajectory,
            })
            .collect();
        let has_removal_priority = items.iter().any(|item| item.removal_priority.is_some());
        if has_removal_priority && !keeps_removal_priorities {
            let known = target.server_info().await?.capabilities;
            known.require(Capability::RemovalPriority, target.address())?;
            keeps_removal_priorities = true;
        }
        if !items.is_empty() {
            sink.send(&table, items).await?;
        }
    }
}
