// SPDX-License-Identifier: Apache-2.0
//! Flattens the data of calls: leaves, and the names of their columns.

use std::sync::Arc;

use pyo3::prelude::*;
use reverb_data::column_names::ColumnNames as Core;

use crate::nest::{Known, Leaves, Structure};

/// The names of the columns of a nest.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct ColumnNames(pub(crate) Arc<Core>);

#[pymethods]
impl ColumnNames {
    /// Labels are paths, joined with `/`.
    #[new]
    #[allow(clippy::needless_pass_by_value, reason = "an argument of Python")]
    fn new(labels: Vec<String>) -> Self {
        Self(Arc::new(Core::from_labels(&labels)))
    }
}

/// Flattens nests; known structures take no Python code.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct NestFlattener {
    known: Known<Py<ColumnNames>>,
    /// Returns labels and leaves of any nest.
    flatten_any: Py<PyAny>,
}

#[pymethods]
impl NestFlattener {
    #[new]
    fn new(flatten_any: Py<PyAny>) -> Self {
        Self { known: Known::new(), flatten_any }
    }

    fn flatten<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Py<ColumnNames>)> {
        if let Some((leaves, known)) = self.known.flatten(data)? {
            return Ok((leaves.into_vec(), known.1.clone_ref(py)));
        }
        let flat = self.flatten_any.bind(py).call1((data,))?;
        let (labels, leaves): (Vec<String>, Vec<Bound<'py, PyAny>>) = flat.extract()?;
        let names = Py::new(py, ColumnNames::new(labels))?;
        if let Some(structure) = structure_of(data, &leaves)? {
            self.known.remember(structure, names.clone_ref(py));
        }
        Ok((leaves, names))
    }
}

/// Structure of a nest with these leaves; `None` if it has containers that only Python code
/// flattens.
pub(crate) fn structure_of(
    data: &Bound<'_, PyAny>,
    leaves: &[Bound<'_, PyAny>],
) -> PyResult<Option<Structure>> {
    let Some(structure) = Structure::from_nest(data, &|_| true)? else { return Ok(None) };
    let mut found = Leaves::new();
    let is_flat = structure.flatten(data, &mut found)?
        && found.len() == leaves.len()
        && found.iter().zip(leaves).all(|(a, b)| a.is(b));
    Ok(is_flat.then_some(structure))
}
