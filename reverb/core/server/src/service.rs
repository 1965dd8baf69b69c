// SPDX-License-Identifier: Apache-2.0
//! The calls that change or describe tables, over any transport.

use std::sync::Arc;

use reverb_data::Result;
use reverb_rpc::server::Stop;
use reverb_wire::convert::table_info::from_table_info;
use reverb_wire::generated::TableInfo;

use crate::checkpoints::Checkpoints;
use crate::limits::Limits;
use crate::tables::Tables;

/// What a server offers, over any transport.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) tables: Tables,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) stop: Stop,
    pub(crate) limits: Limits,
}

impl Service {
    pub(crate) fn mutate(
        &self,
        table: &str,
        updates: &[(u64, f64)],
        deletes: &[u64],
    ) -> Result<()> {
        let (_, table) = self.tables.get(table)?;
        table.mutate(updates, deletes).map_err(|error| self.stop.explain(error))
    }

    pub(crate) fn reset(&self, table: &str) -> Result<()> {
        self.tables.get(table)?.1.reset();
        Ok(())
    }

    /// Saves all tables; returns the path. The save continues if the caller disconnects.
    pub(crate) async fn checkpoint(&self) -> Result<String> {
        self.stop.or(self.checkpoints.save(self.tables.all())).await?
    }

    pub(crate) fn info(&self) -> Vec<TableInfo> {
        self.tables.all().iter().map(|table| from_table_info(&table.info())).collect()
    }
}
