// SPDX-License-Identifier: Apache-2.0
//! Columns of the histories of environments that are stepped together, for Python.

use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PySlice, PyTuple};
use reverb_base::Error;
use reverb_client::{BatchedColumn, BatchedWriter as Core, StepIndex};

use crate::array::tensor_to_array;
use crate::column::{empty_column, stack};
use crate::dtype;
use crate::error::OrRaise;
use crate::process::Local;

/// One index, applied to the history of every environment.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct BatchedTrajectoryColumn {
    pub(crate) writer: Arc<Local<Core>>,
    pub(crate) core: BatchedColumn,
}

#[pymethods]
impl BatchedTrajectoryColumn {
    fn __repr__(&self) -> String {
        let is_squeezed = if self.is_squeezed() { "True" } else { "False" };
        format!("BatchedTrajectoryColumn(is_squeezed={is_squeezed})")
    }

    #[getter]
    fn is_squeezed(&self) -> bool {
        matches!(self.core.index, StepIndex::At(_))
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numpy(py)?.getattr("dtype")
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numpy(py)?.getattr("shape")
    }

    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows = self.writer.select(&self.core);
        let batch_size = rows.len();
        let mut cells = Vec::new();
        let mut num_steps = None;
        for (i, row) in rows.into_iter().enumerate() {
            let Some(row) = row else {
                return Err(Error::invalid_argument(format!(
                    "The history of environment {i} lacks a requested step."
                )))
                .or_raise();
            };
            let expected = *num_steps.get_or_insert(row.len());
            if row.len() != expected {
                return Err(Error::invalid_argument(format!(
                    "The environments have different numbers of the requested steps: environment 0 \
                     has {expected}, environment {i} has {}. Use an index that selects the same \
                     number of steps in each.",
                    row.len()
                )))
                .or_raise();
            }
            cells.extend(row);
        }
        if cells.is_empty() {
            return Err(empty_column()).or_raise();
        }
        let mut tensor = stack(&cells).or_raise()?;
        tensor.shape[0] = batch_size;
        if !self.is_squeezed() {
            tensor.shape.insert(1, num_steps.unwrap_or_default());
        }
        tensor_to_array(py, tensor)
    }

    fn __len__(&self) -> usize {
        self.writer
            .select(&self.core)
            .into_iter()
            .flatten()
            .map(|cells| cells.len())
            .max()
            .unwrap_or(0)
    }
}

/// The part of one column's history that a batched writer keeps.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct BatchedColumnHistory {
    pub(crate) writer: Arc<Local<Core>>,
    pub(crate) column: usize,
}

#[pymethods]
impl BatchedColumnHistory {
    fn __repr__(&self) -> String {
        format!("BatchedColumnHistory(steps={})", self.__len__())
    }

    fn __len__(&self) -> usize {
        self.writer.history_len().into_iter().max().unwrap_or(0) as usize
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let shape = self.writer.history_shape(self.column);
        PyTuple::new(py, shape.ok_or_else(|| self.no_value()).or_raise()?.iter())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.writer.dtype(self.column);
        dtype::to_numpy(py, dtype.ok_or_else(|| self.no_value()).or_raise()?)
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<BatchedTrajectoryColumn> {
        self.column(index, false)
    }

    #[pyo3(signature = (index, *, pad))]
    fn select(&self, index: &Bound<'_, PyAny>, pad: &str) -> PyResult<BatchedTrajectoryColumn> {
        if pad != "first" {
            let text = format!("pad must be \"first\", got {pad:?}");
            return Err(Error::invalid_argument(text)).or_raise();
        }
        self.column(index, true)
    }
}

impl BatchedColumnHistory {
    fn no_value(&self) -> Error {
        let label = self.writer.label(self.column);
        Error::failed_precondition(format!("Column {label} has no value yet"))
    }

    fn column(
        &self,
        index: &Bound<'_, PyAny>,
        pads_with_first: bool,
    ) -> PyResult<BatchedTrajectoryColumn> {
        let index = step_index(index)?;
        let core = BatchedColumn { column: self.column, index, pads_with_first };
        Ok(BatchedTrajectoryColumn { writer: Arc::clone(&self.writer), core })
    }
}

fn step_index(index: &Bound<'_, PyAny>) -> PyResult<StepIndex> {
    if let Ok(slice) = index.cast::<PySlice>() {
        let part = |name: &Bound<'_, pyo3::types::PyString>| -> PyResult<Option<i64>> {
            slice.getattr(name)?.extract()
        };
        let py = index.py();
        let step = part(pyo3::intern!(py, "step"))?.unwrap_or(1);
        if step < 1 {
            return Err(Error::invalid_argument(format!(
                "The stride of a batched slice must be at least 1, got {step}."
            )))
            .or_raise();
        }
        let start = part(pyo3::intern!(py, "start"))?;
        let stop = part(pyo3::intern!(py, "stop"))?;
        Ok(StepIndex::Range { start, stop, step })
    } else if let Some(steps) = step_list(index)? {
        Ok(StepIndex::Steps(steps.into()))
    } else if let Ok(at) = index.cast::<PyInt>() {
        Ok(StepIndex::At(at.extract()?))
    } else {
        Err(bad_index(index))
    }
}

/// Steps of a list of ints, or of an array of integers `[K]`; `None` for other indices.
fn step_list(index: &Bound<'_, PyAny>) -> PyResult<Option<Vec<i64>>> {
    let array = index.cast::<PyUntypedArray>().ok();
    let list = match array {
        Some(array) if array.ndim() == 1 && matches!(array.dtype().kind(), b'i' | b'u') => {
            array.call_method0(pyo3::intern!(index.py(), "tolist"))?.cast_into::<PyList>()?
        }
        _ => match index.cast::<PyList>() {
            Ok(list) => list.clone(),
            Err(_) => return Ok(None),
        },
    };
    let steps: PyResult<_> =
        list.iter().map(|at| at.cast::<PyInt>().map_err(|_| bad_index(&at))?.extract()).collect();
    steps.map(Some)
}

fn bad_index(index: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "Batched columns are indexed with an int, a slice, a list of ints or an array [K] of integers, got {}",
        index.get_type()
    ))
}
