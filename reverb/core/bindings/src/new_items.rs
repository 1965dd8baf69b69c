// SPDX-License-Identifier: Apache-2.0
//! New items as arguments of Python: their tables, priorities and columns.

use std::sync::Arc;
use std::time::Duration;

use numpy::PyReadonlyArray1;
use prost::Message as _;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use reverb_base::Result;
use reverb_client::{Insertion, OwnKeys, RowPriorities};
use reverb_data::ItemPriority;
use reverb_wire::convert::rollouts::{from_refusal, to_change};

use crate::array::{all_values, parse_leaves};
use crate::error::OrRaise;
use crate::flat_nest::ColumnNames;
use crate::priority_updates::type_name;

/// How items are inserted, as Python describes it.
#[derive(FromPyObject)]
pub(crate) struct InsertOptions<'py> {
    /// A key for each row, or for the only item; `None` for random ones.
    keys: Option<PyReadonlyArray1<'py, u64>>,
    replace: bool,
    max_wait_ms: Option<u64>,
}

impl InsertOptions<'_> {
    /// Sets them, before items are added.
    pub(crate) fn set(&self, insertion: &mut Insertion) -> PyResult<()> {
        if let Some(ms) = self.max_wait_ms {
            insertion.limit_wait(Duration::from_millis(ms)).or_raise()?;
        }
        let Some(keys) = &self.keys else { return Ok(()) };
        let keys = keys.as_array().to_vec();
        insertion.use_keys(OwnKeys { keys, replace: self.replace }).or_raise()
    }
}

/// Tables of an insert, and an item's priorities in each.
pub(crate) fn item_priorities(
    priorities: &Bound<'_, PyDict>,
    removal_priorities: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<(String, ItemPriority)>> {
    let number = |argument: &str, table: &str, priority: &Bound<'_, PyAny>| {
        priority.extract::<f64>().map_err(|_| {
            PyTypeError::new_err(format!(
                "{argument} must be numbers, got {} for table {table}",
                type_name(priority)
            ))
        })
    };
    let parse = |(table, priority): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name = table_name(&table)?;
        let removal = match removal_priorities {
            Some(priorities) => priorities.get_item(&table)?,
            None => None,
        };
        let removal =
            removal.map(|priority| number("removal_priorities", &name, &priority)).transpose()?;
        let value = number("priorities", &name, &priority)?;
        Ok((name, ItemPriority { value, removal }))
    };
    priorities.iter().map(parse).collect()
}

/// Tables of an insert, and the priorities of all rows in each.
pub(crate) fn row_priorities(
    priorities: &Bound<'_, PyDict>,
    removal_priorities: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<(String, RowPriorities)>> {
    let numbers = |array: &Bound<'_, PyAny>| -> PyResult<Vec<f64>> {
        let array: PyReadonlyArray1<'_, f64> = array.extract()?;
        Ok(array.as_array().to_vec())
    };
    let parse = |(table, priorities): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let removal = removal_priorities.map(|all| all.get_item(&table)).transpose()?.flatten();
        let removal = removal.map(|array| numbers(&array)).transpose()?;
        Ok((table_name(&table)?, RowPriorities { values: numbers(&priorities)?, removal }))
    };
    priorities.iter().map(parse).collect()
}

/// Adds one item for each table. The columns of a sequence are `[T, ...]`, which may differ in `T`.
pub(crate) fn add_item(
    insertion: &mut Insertion,
    leaves: &[Bound<'_, PyAny>],
    names: &Bound<'_, ColumnNames>,
    priorities: &[(String, ItemPriority)],
    is_sequence: bool,
) -> PyResult<()> {
    let names = &names.get().0;
    let mut parsed = parse_leaves(leaves, Some(names)).collect::<PyResult<Vec<_>>>()?;
    let values = all_values(&mut parsed, names)?;
    let added = if is_sequence {
        insertion.add_sequence(&values, names, priorities)
    } else {
        insertion.add(&values, names, priorities)
    };
    added.or_raise()
}

/// Adds an item for each row of the columns, `[B, ...]`, and returns their keys.
pub(crate) fn add_rows(
    insertion: &mut Insertion,
    leaves: &[Bound<'_, PyAny>],
    names: &Bound<'_, ColumnNames>,
    tables: &[(String, RowPriorities)],
) -> PyResult<Vec<u64>> {
    let names = &names.get().0;
    let mut parsed = parse_leaves(leaves, Some(names)).collect::<PyResult<Vec<_>>>()?;
    insertion.add_batch(&all_values(&mut parsed, names)?, names, tables).or_raise()?;
    Ok(insertion.keys())
}

/// Changes of items with rollouts, as Python describes them.
#[derive(FromPyObject)]
pub(crate) struct ItemChanges<'py> {
    table: String,
    changes: Vec<ItemChange<'py>>,
    timeout_s: Option<f64>,
}

#[derive(FromPyObject)]
struct ItemChange<'py> {
    /// Key of the item; `None` for a new one.
    key: Option<u64>,
    priority: f64,
    /// A serialized `ItemChange` message.
    message: Vec<u8>,
    /// Columns, one for each part, all of them `[T, ...]`.
    leaves: Vec<Bound<'py, PyAny>>,
    /// For each column, whether it is a single step.
    single: Vec<bool>,
}

impl ItemChanges<'_> {
    /// Adds them to an insert.
    pub(crate) fn add_to(&self, insertion: &mut Insertion) -> PyResult<()> {
        for ItemChange { key, priority, message, leaves, single } in &self.changes {
            let mut parsed = parse_leaves(leaves, None).collect::<PyResult<Vec<_>>>()?;
            let values = all_values(&mut parsed, &Arc::default())?;
            let change = to_change(message).or_raise()?;
            insertion
                .add_change(&self.table, *key, *priority, &values, single, change)
                .or_raise()?;
        }
        Ok(())
    }

    /// Time limit of the insert.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// Sends changes; returns why the server refused some, as serialized messages.
pub(crate) async fn send_changes(
    insertion: Insertion,
    limit: Option<Duration>,
) -> Result<Vec<Vec<u8>>> {
    let refused = insertion.finish_changes(limit).await?;
    Ok(refused.iter().map(|(key, why)| from_refusal(*key, why).encode_to_vec()).collect())
}

fn table_name(table: &Bound<'_, PyAny>) -> PyResult<String> {
    table.extract().map_err(|_| {
        PyTypeError::new_err(format!("tables must be named by a str, got {}", type_name(table)))
    })
}
