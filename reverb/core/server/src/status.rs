// SPDX-License-Identifier: Apache-2.0
//! The `Status` call: what the memory is used for.

use std::sync::Arc;

use reverb_data::TableInfo;
use reverb_engine::{Forecast, Table};
use reverb_wire::convert::table_config::{from_max_bytes, from_when_full};
use reverb_wire::generated::reverb::{MemoryStatus, StatusResponse, TableStatus};

use crate::memory::Memory;

/// The status of a server with these tables.
pub(crate) fn status(memory: &Memory, tables: &[Arc<Table>]) -> StatusResponse {
    let usage = memory.usage();
    StatusResponse {
        memory: Some(MemoryStatus {
            total: number(usage.total),
            limit: from_max_bytes(memory.max_bytes),
            tables: number(usage.tables),
            queued: number(usage.queued),
            streams: number(usage.streams),
            other: number(usage.other),
        }),
        tables: tables.iter().map(|table| table_status(&table.info())).collect(),
    }
}

fn table_status(info: &TableInfo) -> TableStatus {
    TableStatus {
        name: info.config.name.clone(),
        bytes: number(info.bytes),
        max_bytes: from_max_bytes(info.config.memory.max_bytes),
        when_full: from_when_full(info.config.memory.when_full).into(),
        num_items: info.current_size,
        num_chunks: number(info.num_chunks),
        forecast_bytes: number(forecast(info).map_or(0, |forecast| forecast.bytes)),
    }
}

/// By the items, or while there are too few by the signature.
fn forecast(info: &TableInfo) -> Option<Forecast> {
    let size = usize::try_from(info.current_size).unwrap_or(0);
    let mut forecast = Forecast::new(info.config.max_size, size, info.bytes)
        .or_else(|| Forecast::from_signature(&info.config))?;
    forecast.bytes = forecast.bytes.min(info.config.memory.max_bytes.unwrap_or(u64::MAX));
    Some(forecast)
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
