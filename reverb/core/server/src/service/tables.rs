// SPDX-License-Identifier: Apache-2.0
//! The tables of a server, by name.

use std::sync::Arc;

use hashbrown::HashMap;
use reverb_base::{Error, Result};
use reverb_engine::Table;

/// Tables of a server. The set never changes while the server runs.
#[derive(Debug)]
pub(crate) struct Tables {
    by_name: HashMap<Arc<str>, Arc<Table>>,
    in_order: Vec<Arc<Table>>,
    /// Id of this server among all servers at the same address. By it clients know when to drop
    /// caches.
    state_id: (u64, u64),
}

impl Tables {
    /// # Errors
    ///
    /// `InvalidArgument` if there are no tables, or if two have the same name.
    pub(crate) fn new(tables: Vec<Arc<Table>>) -> Result<Self> {
        if tables.is_empty() {
            return Err(Error::invalid_argument("A server needs at least one table."));
        }
        let mut by_name = HashMap::new();
        let mut duplicates = Vec::new();
        for table in &tables {
            if by_name.insert(Arc::from(table.name()), Arc::clone(table)).is_some() {
                duplicates.push(table.name());
            }
        }
        if !duplicates.is_empty() {
            duplicates.sort_unstable();
            duplicates.dedup();
            return Err(Error::invalid_argument(format!(
                "Names of tables must be unique; there are several called {}.",
                duplicates.join(", ")
            )));
        }
        Ok(Self { by_name, in_order: tables, state_id: (rand::random(), rand::random()) })
    }

    /// Logs tables that will come to a stop by their settings.
    pub(crate) fn warn_of_prospects(&self) {
        for table in &self.in_order {
            if let Some(why) = table.info().config.why_never() {
                tracing::warn!(table = table.name(), "{why}");
            }
        }
    }

    /// The table and its name, as items refer to it.
    ///
    /// # Errors
    ///
    /// `TableNotFound` with the existing tables.
    pub(crate) fn get(&self, name: &str) -> Result<(&Arc<str>, &Arc<Table>)> {
        self.get_among(name, |_| true)
    }

    /// Like [`Tables::get`]; the error lists only the tables that are visible.
    pub(crate) fn get_among(
        &self,
        name: &str,
        is_visible: impl Fn(&str) -> bool,
    ) -> Result<(&Arc<str>, &Arc<Table>)> {
        self.by_name.get_key_value(name).ok_or_else(|| self.not_found(name, is_visible))
    }

    /// The error for a table that the server does not have; it lists those that are visible.
    pub(crate) fn not_found(&self, name: &str, is_visible: impl Fn(&str) -> bool) -> Error {
        let known = self.by_name.keys().filter(|known| is_visible(known));
        let known: Vec<String> = known.map(ToString::to_string).collect();
        Error::table_not_found(name, &known)
    }

    pub(crate) fn all(&self) -> &[Arc<Table>] {
        &self.in_order
    }

    pub(crate) fn state_id(&self) -> (u64, u64) {
        self.state_id
    }

    pub(crate) fn close(&self) {
        self.in_order.iter().for_each(|table| table.close());
    }
}
