// SPDX-License-Identifier: Apache-2.0
//! Updates of priorities, and deletes, as arguments of Python.

use numpy::PyReadonlyArray1;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use reverb_base::Error;

use crate::error::OrRaise;

/// Updates and deletes of a call of `mutate_priorities`.
pub(crate) type Mutation = (Vec<(u64, f64)>, Vec<u64>);

pub(crate) fn parse_mutation(
    updates: Option<&Bound<'_, PyAny>>,
    deletes: Option<&Bound<'_, PyAny>>,
) -> PyResult<Mutation> {
    let updates = updates.map_or_else(|| Ok(Vec::new()), parse_updates)?;
    let deletes = match deletes {
        None => Vec::new(),
        Some(deletes) => {
            let keys = deletes.try_iter().map_err(|_| {
                PyTypeError::new_err(format!(
                    "deletes must be a list of keys, got {}",
                    type_name(deletes)
                ))
            })?;
            keys.map(|key| parse_key(&key?)).collect::<PyResult<_>>()?
        }
    };
    Ok((updates, deletes))
}

pub(crate) fn parse_row_updates(
    keys: &PyReadonlyArray1<'_, u64>,
    priorities: &PyReadonlyArray1<'_, f64>,
) -> PyResult<Vec<(u64, f64)>> {
    let keys = keys.as_array();
    let priorities = priorities.as_array();
    if keys.len() != priorities.len() {
        return Err(Error::invalid_argument(format!(
            "keys and priorities must be of the same length, got {} and {}",
            keys.len(),
            priorities.len()
        )))
        .or_raise();
    }
    Ok(keys.iter().copied().zip(priorities.iter().copied()).collect())
}

fn parse_key(key: &Bound<'_, PyAny>) -> PyResult<u64> {
    let error = match key.extract::<u64>() {
        Ok(key) => return Ok(key),
        Err(error) => error,
    };
    if !error.is_instance_of::<PyOverflowError>(key.py()) {
        let kind = type_name(key);
        return Err(PyTypeError::new_err(format!("keys must be integers, got {kind}")));
    }
    // Libraries without uint64 hold keys as int64: the same bits.
    key.extract::<i64>().map(i64::cast_unsigned).map_err(|_| {
        PyTypeError::new_err(format!("keys must be integers in [-2^63, 2^64), got {key}"))
    })
}

fn parse_updates(updates: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, f64)>> {
    let parse = |key: &Bound<'_, PyAny>, priority: &Bound<'_, PyAny>| -> PyResult<(u64, f64)> {
        let priority = priority.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "priorities must be numbers, got {priority} for key {key}"
            ))
        })?;
        Ok((parse_key(key)?, priority))
    };
    if let Ok(dict) = updates.cast::<PyDict>() {
        return dict.iter().map(|(key, priority)| parse(&key, &priority)).collect();
    }
    let items = updates.call_method0("items").map_err(|_| {
        PyTypeError::new_err(format!(
            "updates must be a mapping of keys to priorities, got {}",
            type_name(updates)
        ))
    })?;
    items
        .try_iter()?
        .map(|pair| {
            let pair = pair?;
            parse(&pair.get_item(0)?, &pair.get_item(1)?)
        })
        .collect()
}

/// Name of a value's type, for error texts.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| String::new(), |name| name.to_string())
}
