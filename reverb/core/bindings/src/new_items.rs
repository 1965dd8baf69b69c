// SPDX-License-Identifier: Apache-2.0
//! New items as arguments of Python: their tables, priorities and columns.

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use reverb_client::{Insertion, RowPriorities};
use reverb_data::ItemPriority;

use crate::array::{all_values, parse_leaves};
use crate::error::OrRaise;
use crate::flat_nest::ColumnNames;
use crate::priority_updates::type_name;

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

fn table_name(table: &Bound<'_, PyAny>) -> PyResult<String> {
    table.extract().map_err(|_| {
        PyTypeError::new_err(format!("tables must be named by a str, got {}", type_name(table)))
    })
}
