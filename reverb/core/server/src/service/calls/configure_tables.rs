// SPDX-License-Identifier: Apache-2.0
//! Changes settings of running tables: all changes of a request, or none.

use std::sync::Arc;

use hashbrown::HashMap;
use reverb_base::{Error, Result};
use reverb_data::{SelectorConfig, TableChange};
use reverb_engine::{ChangedBy, Table, configure};
use reverb_wire::convert::rollouts;
use reverb_wire::convert::table_config::{to_rate_limiter, to_selector};
use reverb_wire::convert::table_info::from_table_info;
use reverb_wire::generated::KeyDistributionOptions;
use reverb_wire::generated::reverb::{
    ChangedSetting, ConfigureTablesRequest, ConfigureTablesResponse, TableChange as ChangeMessage,
};

use super::{Answer, CallContext, table_bytes};
use crate::service::Service;
use crate::service::blocking::blocking;

impl Answer for ConfigureTablesRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        table_bytes(service)
    }

    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<ConfigureTablesResponse> {
        service.configure(&self, &context.changed_by).await
    }
}

impl Service {
    /// Changes the settings of all tables of a request, or of none.
    ///
    /// # Errors
    ///
    /// Errors of [`configure`], `TableNotFound`, and `InvalidArgument` for a table that is named
    /// twice.
    pub(crate) async fn configure(
        &self,
        request: &ConfigureTablesRequest,
        by: &ChangedBy,
    ) -> Result<ConfigureTablesResponse> {
        let changes = self.changes(&request.changes)?;
        // Slow work: a change may evict millions of items.
        let configured = blocking({
            let changes = changes.clone();
            let dry_run = request.dry_run;
            move || configure(&changes, dry_run)
        });
        let configured = configured.await?;
        let changed = changes.iter().zip(&configured).flat_map(|((table, _), configured)| {
            let all = configured.changed().into_iter();
            all.map(|(setting, before, after)| ChangedSetting {
                table: table.name().to_owned(),
                setting: setting.to_owned(),
                before,
                after,
            })
        });
        let changed: Vec<_> = changed.collect();
        for ChangedSetting { table, setting, before, after } in
            changed.iter().filter(|_| !request.dry_run)
        {
            tracing::info!(%table, client = %by.client, "{setting} is {after} now, not {before}");
        }
        let by_table = changes.iter().zip(&configured);
        let by_table: HashMap<&str, _> =
            by_table.map(|((table, _), configured)| (table.name(), configured)).collect();
        // Order of the request.
        let found = request
            .changes
            .iter()
            .filter_map(|change| Some(from_table_info(&by_table.get(change.table.as_str())?.info)));
        let tables = found.collect();
        Ok(ConfigureTablesResponse { changed, tables })
    }

    /// The changes with their tables, in the order of the server.
    fn changes(&self, messages: &[ChangeMessage]) -> Result<Vec<(Arc<Table>, TableChange)>> {
        let mut by_table = HashMap::new();
        for message in messages {
            self.tables.get(&message.table)?;
            if by_table.insert(message.table.as_str(), message).is_some() {
                return Err(Error::invalid_argument(format!(
                    "Table {} is changed twice in one call; give all its settings at once.",
                    message.table
                )));
            }
        }
        let of = |table: &Arc<Table>| {
            let message = by_table.get(table.name())?;
            Some(to_change(message).map(|change| (Arc::clone(table), change)))
        };
        self.tables.all().iter().filter_map(of).collect()
    }
}

fn to_sampler(message: &KeyDistributionOptions) -> Result<SelectorConfig> {
    to_selector(Some(message)).ok_or_else(|| {
        Error::invalid_argument(
            "sampler names no selector; the client may be newer than the server.",
        )
    })
}

fn to_change(message: &ChangeMessage) -> Result<TableChange> {
    let max_bytes = |bytes: i64| match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(Error::invalid_argument(format!(
            "max_bytes must be at least 1, or 0 for no limit, got {bytes}."
        ))),
    };
    let rollouts = message.rollouts.as_ref().map(rollouts::to_new_settings);
    Ok(TableChange {
        max_size: message.max_size,
        max_bytes: message.max_bytes.map(max_bytes).transpose()?,
        max_times_sampled: message.max_times_sampled,
        rate_limiter: message.rate_limiter.as_ref().map(to_rate_limiter),
        priority_exponent: message.priority_exponent,
        sampler: message.sampler.map(|sampler| to_sampler(&sampler)).transpose()?,
        rollouts: rollouts.transpose()?.map(Box::new),
    })
}
