// SPDX-License-Identifier: Apache-2.0
//! Parts of a writer's history for Python: histories of columns, trajectory columns, single cells.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PySlice, PyTuple};
use reverb_base::Error;
use reverb_client::{CellRef as Cell, History, TrajectoryWriter};
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Shape, Tensor, TensorData};
use smallvec::SmallVec;

use crate::array::tensor_to_array;
use crate::dtype;
use crate::error::{OrRaise, to_python};
use crate::locks::Visit;
use crate::process::Local;

/// One value of one column; valid as long as the writer keeps it.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct CellRef(Cell);

#[pymethods]
impl CellRef {
    #[getter]
    fn expired(&self) -> bool {
        self.0.is_expired()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        check_alive(std::slice::from_ref(&self.0)).or_raise()?;
        PyList::new(py, self.0.spec().shape.iter())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        check_alive(std::slice::from_ref(&self.0)).or_raise()?;
        dtype::to_numpy(py, self.0.spec().dtype)
    }

    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        check_alive(std::slice::from_ref(&self.0)).or_raise()?;
        tensor_to_array(py, self.0.read().or_raise()?)
    }

    fn __repr__(&self) -> String {
        if self.0.is_expired() {
            return "CellRef(expired)".to_owned();
        }
        let spec = self.0.spec();
        format!("CellRef(shape={}, dtype={})", shape_text(&spec.shape), spec.dtype.numpy_name())
    }
}

fn check_alive(cells: &[Cell]) -> reverb_base::Result<()> {
    if cells.iter().any(Cell::is_expired) {
        return Err(Error::failed_precondition(
            "The reference has expired: only the last num_keep_alive_refs steps of the episode can be used.",
        ));
    }
    Ok(())
}

/// References to values of one column, in the order of the item.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct TrajectoryColumn {
    pub(crate) cells: SmallVec<[Cell; 2]>,
    pub(crate) squeeze: bool,
}

#[pymethods]
impl TrajectoryColumn {
    #[new]
    #[pyo3(signature = (data_references, *, squeeze = false, path = None))]
    fn new(
        data_references: Vec<Option<Bound<'_, CellRef>>>,
        squeeze: bool,
        path: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let label = path.map_or_else(String::new, |path| path.to_string());
        let cells: Option<SmallVec<_>> = data_references
            .iter()
            .map(|cell| cell.as_ref().map(|cell| cell.get().0.clone()))
            .collect();
        let cells = cells.ok_or_else(|| holds_none(&label))?;
        if squeeze && cells.len() != 1 {
            return Err(Error::invalid_argument(format!(
                "Columns must contain exactly one data reference when squeeze is set, got {}",
                cells.len()
            )))
            .or_raise();
        }
        Ok(Self { cells, squeeze })
    }

    #[getter]
    fn is_squeezed(&self) -> bool {
        self.squeeze
    }

    /// The references in dm-reverb's form, for programs that use its private attribute.
    #[getter(_data_references)]
    fn data_references<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.refs(py)?)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let first = self.first()?;
        check_alive(&self.cells).or_raise()?;
        let mut shape = first.spec().shape.clone();
        if !self.squeeze {
            shape.insert(0, self.cells.len());
        }
        PyTuple::new(py, shape.iter())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let first = self.first()?;
        check_alive(&self.cells).or_raise()?;
        dtype::to_numpy(py, first.spec().dtype)
    }

    /// The values, stacked unless squeezed.
    pub(crate) fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.cells.is_empty() {
            return Err(empty_column()).or_raise();
        }
        check_alive(&self.cells).or_raise()?;
        let mut tensor = stack(&self.cells).or_raise()?;
        if self.squeeze {
            tensor.shape.remove(0);
        }
        tensor_to_array(py, tensor)
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = copy; // Values are always copied out of the history.
        let array = self.numpy(py)?;
        match dtype {
            Some(dtype) => array.call_method1("astype", (dtype,)),
            None => Ok(array),
        }
    }

    fn __len__(&self) -> usize {
        self.cells.len()
    }

    fn __repr__(&self) -> String {
        let steps = self.cells.len();
        match self.cells.first() {
            Some(first) if check_alive(&self.cells).is_ok() => {
                let mut shape = first.spec().shape.clone();
                if !self.squeeze {
                    shape.insert(0, steps);
                }
                let dtype = first.spec().dtype.numpy_name();
                format!("TrajectoryColumn(shape={}, dtype={dtype})", shape_text(&shape))
            }
            Some(_) => format!("TrajectoryColumn(steps={steps}, expired)"),
            None => "TrajectoryColumn(steps=0)".to_owned(),
        }
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let len = self.cells.len();
        if let Ok(slice) = index.cast::<PySlice>() {
            let indices = slice.indices(len as isize)?;
            let cells = (0..indices.slicelength)
                .map(|i| self.cells[(indices.start + i as isize * indices.step) as usize].clone())
                .collect();
            return Ok(Self { cells, squeeze: false });
        }
        if let Some(at) = plain_int(index)? {
            return Ok(Self { cells: SmallVec::from_iter([self.at(at)?]), squeeze: true });
        }
        if let Ok(list) = index.cast::<PyList>() {
            let cells: PyResult<_> = list
                .iter()
                .map(|at| self.at(plain_int(&at)?.ok_or_else(|| bad_index(&at))?))
                .collect();
            return Ok(Self { cells: cells?, squeeze: false });
        }
        Err(bad_index(index))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyList::new(py, self.refs(py)?)?.call_method0("__iter__")
    }
}

impl TrajectoryColumn {
    fn refs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, CellRef>>> {
        self.cells.iter().map(|cell| Bound::new(py, CellRef(cell.clone()))).collect()
    }

    fn first(&self) -> PyResult<&Cell> {
        self.cells.first().ok_or_else(|| PyIndexError::new_err("The column is empty"))
    }

    fn at(&self, index: i64) -> PyResult<Cell> {
        let len = self.cells.len() as i64;
        let at = if index < 0 { index + len } else { index };
        usize::try_from(at).ok().and_then(|at| self.cells.get(at)).cloned().ok_or_else(|| {
            PyIndexError::new_err(format!(
                "Index {index} is out of range for a column of {len} steps"
            ))
        })
    }
}

/// Error for the values of an empty column.
pub(crate) fn empty_column() -> Error {
    Error::invalid_argument("The column is empty; there is nothing to stack.")
}

/// Concatenates cells of one dtype and shape, `[T, ...]`.
pub(crate) fn stack(cells: &[Cell]) -> reverb_base::Result<Tensor> {
    let mut shape = Shape::new();
    shape.push(cells.len());
    shape.extend_from_slice(&cells[0].spec().shape);
    let dtype = cells[0].spec().dtype;
    let mut bytes = Vec::new();
    let mut strings = Vec::new();
    for cell in cells {
        if cell.spec() != cells[0].spec() {
            return Err(Error::invalid_argument(
                "The column mixes steps of different dtypes or shapes.",
            ));
        }
        match cell.read()?.data {
            TensorData::Bytes(more) => bytes.extend_from_slice(&more),
            TensorData::Strings(more) => strings.extend(more),
        }
    }
    let data = if dtype == DType::String {
        TensorData::Strings(strings)
    } else {
        TensorData::Bytes(bytes)
    };
    Ok(Tensor { dtype, shape, data })
}

/// An exact Python int; NumPy's integers are rejected as in dm-reverb.
fn plain_int(index: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match index.cast::<PyInt>() {
        Ok(int) => int.extract().map(Some),
        Err(_) => Ok(None),
    }
}

fn bad_index(index: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "Columns are indexed with an int, a slice or a list of ints, got {}",
        index.get_type()
    ))
}

fn holds_none(label: &str) -> PyErr {
    to_python(&Error::invalid_argument(format!(
        "Column {label} has no value at a requested step, or its value has left the history \
         (num_keep_alive_refs). TrajectoryColumns cannot contain any None data references."
    )))
}

/// The part of one column's history that a writer keeps.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct ColumnHistory {
    pub(crate) writer: Arc<Local<TrajectoryWriter>>,
    pub(crate) column: usize,
    pub(crate) label: String,
}

#[pymethods]
impl ColumnHistory {
    fn __len__(&self) -> usize {
        self.history_len() as usize
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let (_, mut shape) = self.spec()?;
        shape.insert(0, self.history_len() as usize);
        PyTuple::new(py, shape.iter())
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype::to_numpy(py, self.spec()?.0)
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<TrajectoryColumn> {
        // An `__index__` of the program is called before the history is locked.
        let len = self.history_len() as i64;
        if let Ok(slice) = index.cast::<PySlice>() {
            let cells = self.cells(self.slice(slice, len)?.map(Ok))?;
            return Ok(TrajectoryColumn { cells, squeeze: false });
        }
        if let Some(at) = plain_int(index)? {
            let cells = self.cells(std::iter::once(self.at(at, len)))?;
            return Ok(TrajectoryColumn { cells, squeeze: true });
        }
        let list = index.cast::<PyList>().map_err(|_| bad_index(index))?;
        let index = |at: Bound<'_, PyAny>| plain_int(&at)?.ok_or_else(|| bad_index(&at));
        let indices: Vec<i64> = list.iter().map(index).collect::<PyResult<_>>()?;
        let cells = self.cells(indices.into_iter().map(|at| self.at(at, len)))?;
        Ok(TrajectoryColumn { cells, squeeze: false })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.refs_from(py, |_| 0)?.call_method0("__iter__")
    }

    /// The kept references, for programs that use this private attribute of dm-reverb.
    #[getter(_data_references)]
    fn data_references<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.refs_from(py, |history| self.oldest(history))
    }

    fn __str__(&self) -> String {
        self.writer.history().visit(|history| {
            let steps = history.num_steps();
            let kept = history.cells(self.column).len();
            let path = &self.label;
            format!("ColumnHistory(path={path}, steps={steps}, of which {kept} can be referred to)")
        })
    }

    fn __repr__(&self) -> String {
        self.__str__()
    }
}

impl ColumnHistory {
    fn history_len(&self) -> u64 {
        self.writer.history().visit(|history| history.num_steps())
    }

    fn spec(&self) -> PyResult<(DType, Shape)> {
        let spec = self.writer.history().visit(|history| {
            let spec = history.spec(self.column);
            spec.map(|spec| (spec.dtype, spec.shape.clone()))
        });
        spec.ok_or_else(|| self.no_value()).or_raise()
    }

    fn no_value(&self) -> Error {
        Error::failed_precondition(format!("Column {} has no value yet", self.label))
    }

    /// Oldest step whose value is kept; 0 if there is none.
    fn oldest(&self, history: &History) -> u64 {
        history.cells(self.column).next().map_or(0, |(step, _)| step)
    }

    /// References to the values of all steps from `first` on; `None` where a step has no value or
    /// the value has left the history.
    fn refs_from<'py>(
        &self,
        py: Python<'py>,
        first: impl FnOnce(&History) -> u64 + Send,
    ) -> PyResult<Bound<'py, PyList>> {
        let cells: Vec<Option<Cell>> = self.writer.history().visit(|history| {
            let steps = first(history)..history.num_steps();
            steps
                .map(|step| history.cell(self.column, step).map(reverb_client::Cell::to_ref))
                .collect()
        });
        let refs: PyResult<Vec<Option<Bound<'py, CellRef>>>> = cells
            .into_iter()
            .map(|cell| cell.map(|cell| Bound::new(py, CellRef(cell))).transpose())
            .collect();
        PyList::new(py, refs?)
    }

    fn cells(
        &self,
        steps: impl Iterator<Item = PyResult<i64>> + Send,
    ) -> PyResult<SmallVec<[Cell; 2]>> {
        self.writer.history().visit(|history| {
            let mut cells = SmallVec::new();
            for step in steps {
                let cell = history.cell(self.column, step? as u64);
                let cell = cell.ok_or_else(|| holds_none(&self.label))?;
                cells.push(cell.to_ref());
            }
            Ok(cells)
        })
    }

    fn at(&self, index: i64, len: i64) -> PyResult<i64> {
        let at = if index < 0 { index + len } else { index };
        if (0..len).contains(&at) {
            return Ok(at);
        }
        Err(if index < 0 {
            holds_none(&self.label)
        } else {
            PyIndexError::new_err(format!(
                "Index {index} is out of range for column {} of {len} steps",
                self.label
            ))
        })
    }

    /// The steps of a slice.
    fn slice(
        &self,
        slice: &Bound<'_, PySlice>,
        len: i64,
    ) -> PyResult<impl Iterator<Item = i64> + Send + use<>> {
        let py = slice.py();
        let indices = slice.indices(len as isize)?;
        let start = slice.getattr(pyo3::intern!(py, "start"))?;
        let mut first = indices.start as i64;
        if start.is_none() {
            // `history[:k]` starts at the oldest step that can still be referred to. `history[:]`
            // selects every step.
            if indices.step > 0 && !slice.getattr(pyo3::intern!(py, "stop"))?.is_none() {
                first =
                    first.max(self.writer.history().visit(|history| self.oldest(history)) as i64);
            }
        } else if start.extract::<i64>()? < -len {
            // The slice asks for more steps than exist. Without an error, an item would be too
            // short unnoticed.
            return Err(holds_none(&self.label));
        }
        let stop = indices.stop as i64;
        let step = indices.step as i64;
        let steps = std::iter::successors(Some(first), move |at| Some(at.saturating_add(step)));
        Ok(steps.take_while(move |at| if step > 0 { *at < stop } else { *at > stop }))
    }
}
