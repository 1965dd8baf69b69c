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
        Ok(Self { open, service, table, scan, selection, failure: None })
    }

    fn next_items(&mut self) -> Result<Vec<Sampled>> {
        let service = self.service.get()?;
        let (name, table) = service.tables.get(&self.table)?;
        self.open.use_table(name);
        let mut items = table.scan(&mut self.scan).map_err(|error| service.stop.explain(error))?;
        self.open.count_items(items.len());
        self.selection.apply_to_all(&mut items)?;
        Ok(items)
    }
}

impl ScanStream for LocalScanStream {
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(async {
            if let Some(error) = &self.failure {
                return Err(error.clone());
            }
            self.next_items().inspect_err(|error| self.failure = Some(error.clone()))
        })
    }
}
