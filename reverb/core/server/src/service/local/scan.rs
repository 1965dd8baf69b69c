// SPDX-License-Identifier: Apache-2.0
//! A scan of a table in the same process: it hands over references and encodes nothing.

use reverb_base::{Error, Result};
use reverb_data::Sampled;
use reverb_engine::Scan;
use reverb_wire::transport::{BoxFuture, ScanOptions, ScanStream};

use super::LocalService;
use crate::observe::streams::{OpenStream, StreamKind};
use crate::service::selection::Selection;

pub(super) struct LocalScanStream {
    open: OpenStream,
    service: LocalService,
    table: String,
    scan: Scan,
    selection: Selection,
    /// Items that were read and not handed over: a caller may give up while the disk is read.
    taken: Vec<Sampled>,
    /// Error that ended the scan. Later calls return it again, like a scan over the network.
    failure: Option<Error>,
}

impl LocalScanStream {
    pub(super) fn begin(
        service: &LocalService,
        table: &str,
        options: &ScanOptions<'_>,
    ) -> Result<Self> {
        let running = service.get_for_stream()?;
        let found = running.tables.get(table)?.1;
        let selection = Selection::new(found, options.columns)?;
        let begun = match options.keys {
            None => found.begin_scan_where(options.condition),
            Some(keys) => found.begin_fetch(keys, options.condition),
        };
        let scan = begun.map_err(|error| running.stop.explain(error))?;
        let open = running.open_local(StreamKind::Scan);
        let service = service.clone();
        let table = table.to_owned();
        let taken = Vec::new();
        Ok(Self { open, service, table, scan, selection, taken, failure: None })
    }

    async fn next_items(&mut self) -> Result<Vec<Sampled>> {
        let service = self.service.get()?;
        let (name, table) = service.tables.get(&self.table)?;
        self.open.use_table(name);
        if self.taken.is_empty() {
            let items = table.scan(&mut self.scan);
            self.taken = items.map_err(|error| service.stop.explain(error))?;
            self.open.count_items(self.taken.len());
            self.selection.apply_to_all(&mut self.taken)?;
        }
        if let Some(tier) = &service.memory.tier {
            let mut items = self.taken.clone();
            if let Some(lost) = tier.read(table, &mut items).await {
                return Err(lost);
            }
            self.taken = items;
        }
        Ok(std::mem::take(&mut self.taken))
    }
}

impl ScanStream for LocalScanStream {
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(async {
            if let Some(error) = &self.failure {
                return Err(error.clone());
            }
            let items = self.next_items().await;
            items.inspect_err(|error| self.failure = Some(error.clone()))
        })
    }
}
