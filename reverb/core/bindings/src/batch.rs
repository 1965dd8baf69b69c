// SPDX-License-Identifier: Apache-2.0
//! Batches for Python, and the program's own arrays that they are written to.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::npyffi;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use reverb_base::Error;
use reverb_base::memory::Memory;
use reverb_client::{BatchColumn, ColumnData, GivenColumn, SampledNumbers};
use reverb_data::{DType, Sampled, SampledWindow, Shape, Tensor, TensorData};

use crate::array::{batch_memory_to_array, number_array, tensor_to_array};
use crate::dtype;
use crate::error::OrRaise;

/// The fields of `BatchInfo`: `[B]` each, and no lengths.
type Infos<'py> = [Bound<'py, PyAny>; NUM_INFOS + 4];

const NUM_INFOS: usize = 7;

/// The fields of `SampleInfo`, which come first.
const NUM_SAMPLE_INFOS: usize = 5;

const INFO_DTYPES: [(&str, DType); NUM_INFOS] = [
    ("key", DType::UInt64),
    ("probability", DType::Float64),
    ("table_size", DType::Int64),
    ("priority", DType::Float64),
    ("times_sampled", DType::Int32),
    ("min_probability", DType::Float64),
    ("epoch", DType::Int64),
];

/// Numbers of a sampled item, with or without its columns.
pub(crate) trait Numbers: Sync {
    fn numbers(&self) -> SampledNumbers;
}

impl Numbers for Sampled {
    #[inline]
    fn numbers(&self) -> SampledNumbers {
        self.into()
    }
}

impl Numbers for SampledNumbers {
    #[inline]
    fn numbers(&self) -> SampledNumbers {
        *self
    }
}

fn put_info(field: usize, samples: &[impl Numbers], out: &mut [u8]) {
    match field {
        0 => put_numbers(samples, out, |item| item.key.to_le_bytes()),
        1 => put_numbers(samples, out, |item| item.probability.to_le_bytes()),
        2 => put_numbers(samples, out, |item| item.table_size.to_le_bytes()),
        3 => put_numbers(samples, out, |item| item.priority.to_le_bytes()),
        4 => put_numbers(samples, out, |item| item.times_sampled.to_le_bytes()),
        5 => put_numbers(samples, out, |item| item.min_probability.to_le_bytes()),
        _ => put_numbers(samples, out, |item| item.epoch.to_le_bytes()),
    }
}

fn put_numbers<const SIZE: usize>(
    samples: &[impl Numbers],
    out: &mut [u8],
    number: impl Fn(SampledNumbers) -> [u8; SIZE],
) {
    let (places, _) = out.as_chunks_mut::<SIZE>();
    for (sampled, place) in samples.iter().zip(places) {
        *place = number(sampled.numbers());
    }
}

/// Info of a batch, in the program's arrays where it gave some, and else in new ones.
fn batch_infos<'py>(
    py: Python<'py>,
    out: Option<&Outputs>,
    samples: &[impl Numbers],
) -> PyResult<Infos<'py>> {
    let given = out.map_or(&[][..], |out| &out.infos[..]);
    let array = |field: usize| {
        if let Some(output) = given.get(field) {
            // SAFETY: the array lives, and the GIL keeps Python away from it.
            put_info(field, samples, unsafe { output.bytes() });
            return Ok(output.array.bind(py).as_any().clone());
        }
        let dtype = INFO_DTYPES[field].1;
        number_array(py, dtype, samples.len(), |out| put_info(field, samples, out))
    };
    let none = PyTuple::empty(py).into_any();
    let mut start = none.clone();
    let mut count = none.clone();
    if samples.first().is_some_and(|item| item.numbers().window.count > 0) {
        let of_windows = |number: fn(SampledWindow) -> i32| {
            number_array(py, DType::Int32, samples.len(), |out| {
                put_numbers(samples, out, |item| number(item.window).to_le_bytes());
            })
        };
        start = of_windows(|window| window.start)?;
        count = of_windows(|window| i32::try_from(window.count).unwrap_or(i32::MAX))?;
    }
    let numbers = [array(0)?, array(1)?, array(2)?, array(3)?, array(4)?, array(5)?, array(6)?];
    let [key, probability, table_size, priority, times_sampled, min_probability, epoch] = numbers;
    Ok([
        key,
        probability,
        table_size,
        priority,
        times_sampled,
        min_probability,
        epoch,
        none.clone(),
        start,
        count,
        none,
    ])
}

/// Columns as arrays, and the lengths or offsets of their items: `None` for columns without any.
type Columns<'py> = (Vec<Bound<'py, PyAny>>, Vec<Option<Bound<'py, PyAny>>>);

fn numbers<'py>(py: Python<'py>, values: &[i32]) -> PyResult<Bound<'py, PyAny>> {
    number_array(py, DType::Int32, values.len(), |out| {
        let (places, _) = out.as_chunks_mut::<4>();
        for (value, place) in values.iter().zip(places) {
            *place = value.to_le_bytes();
        }
    })
}

/// Start of each item, and the end of the last one.
fn offsets<'py>(py: Python<'py>, lengths: &[i32]) -> PyResult<Bound<'py, PyAny>> {
    let total = lengths.iter().try_fold(0_i32, |end, &length| end.checked_add(length));
    if total.is_none() {
        let text = "a packed batch may have 2^31 - 1 steps; sample fewer items";
        return Err(Error::resource_exhausted(text)).or_raise();
    }
    number_array(py, DType::Int32, lengths.len() + 1, |out| {
        let (places, _) = out.as_chunks_mut::<4>();
        let mut end = 0_i32;
        let mut lengths = lengths.iter();
        for place in places {
            *place = end.to_le_bytes();
            end += lengths.next().unwrap_or(&0);
        }
    })
}

/// Hands columns to NumPy, each with the lengths of its items, or with their offsets if they are
/// packed. Columns with the same lengths get the same array.
fn columns_to_arrays(
    py: Python<'_>,
    columns: Vec<BatchColumn>,
    are_packed: bool,
) -> PyResult<Columns<'_>> {
    let mut arrays = Vec::new();
    let mut all_lengths = Vec::new();
    let mut known: Vec<(*const i32, Bound<'_, PyAny>)> = Vec::new();
    for BatchColumn { dtype, shape, data, lengths } in columns {
        match data {
            ColumnData::Memory(memory) => {
                arrays.push(batch_memory_to_array(py, dtype, &shape, memory)?);
            }
            ColumnData::Strings(strings) => {
                let data = TensorData::Strings(strings);
                arrays.push(tensor_to_array(py, Tensor { dtype, shape, data })?);
            }
            ColumnData::Given => {}
        }
        let Some(lengths) = lengths else {
            all_lengths.push(None);
            continue;
        };
        let same = known.iter().find(|(start, _)| *start == lengths.as_ptr());
        let array = if let Some((_, array)) = same {
            array.clone()
        } else {
            let array = if are_packed { offsets(py, &lengths)? } else { numbers(py, &lengths)? };
            known.push((lengths.as_ptr(), array.clone()));
            array
        };
        all_lengths.push(Some(array));
    }
    Ok((arrays, all_lengths))
}

/// A sampled batch.
#[pyclass(frozen, get_all, module = "reverb.core._native")]
pub(crate) struct BatchAnswer {
    /// Fields of `BatchInfo`; `lengths` and `window_mask` are empty.
    infos: Py<PyTuple>,
    /// Columns, except for those that the program provided.
    columns: Py<PyList>,
    /// Lengths of the items of each column, or offsets; `None` for a column without any.
    lengths: Py<PyList>,
    num_items: usize,
}

impl BatchAnswer {
    /// Creates the arrays of a batch, except for those that the program provided.
    pub(crate) fn new(
        py: Python<'_>,
        outputs: Option<&Outputs>,
        samples: &[impl Numbers],
        columns: Vec<BatchColumn>,
        are_packed: bool,
    ) -> PyResult<Self> {
        let infos = batch_infos(py, outputs, samples)?;
        let (columns, lengths) = columns_to_arrays(py, columns, are_packed)?;
        Ok(Self {
            infos: PyTuple::new(py, infos)?.unbind(),
            columns: PyList::new(py, columns)?.unbind(),
            lengths: PyList::new(py, lengths)?.unbind(),
            num_items: samples.len(),
        })
    }
}

/// Arrays of a program that batches are written to: one for each column, and optionally for the
/// first fields of the info.
///
/// The program must not use them while a batch is being sampled into them.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Outputs {
    columns: Vec<Output>,
    infos: Vec<Output>,
    is_lent: AtomicBool,
}

/// The arrays while a batch is written to them. Only one batch at a time can be.
pub(crate) struct Lent<'a>(&'a Outputs);

impl<'a> Lent<'a> {
    /// Memory of the columns. To be called once.
    pub(crate) fn columns(&self) -> Vec<GivenColumn<'a>> {
        let columns = self.0.columns.iter().map(|output| GivenColumn {
            name: &output.name,
            dtype: &output.dtype,
            shape: output.shape.clone(),
            // SAFETY: the arrays live as long as `Outputs` and do not overlap. No other batch is
            // written to them, and the program leaves them alone meanwhile.
            bytes: unsafe { output.bytes() },
        });
        columns.collect()
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.is_lent.store(false, Ordering::Release);
    }
}

/// One array: C-contiguous and writable.
struct Output {
    name: String,
    dtype: Cow<'static, str>,
    array: Py<PyUntypedArray>,
    shape: Shape,
    start: usize,
    num_bytes: usize,
}

impl Output {
    fn new(name: String, value: &Bound<'_, PyAny>, batch_size: usize) -> PyResult<Self> {
        let array = as_array(&name, value)?;
        let descr = array.dtype();
        let dtype = match dtype::from_numpy(&descr)? {
            Some(dtype) if descr.is_native_byteorder() != Some(false) => {
                Cow::Borrowed(dtype.numpy_name())
            }
            _ => Cow::Owned(descr.str()?.to_string()),
        };
        let shape = Shape::from_slice(array.shape());
        // SAFETY: the pointer is that of a living array.
        let (flags, start) = unsafe {
            let fields = &(*array.as_array_ptr()).fields;
            (fields.flags, fields.data.addr())
        };
        if !array.is_c_contiguous() || flags & npyffi::NPY_ARRAY_WRITEABLE == 0 {
            let kind = if array.is_c_contiguous() { "a read-only" } else { "another" };
            return invalid(&format!(
                "{name} must be C-contiguous and writable; got {kind} array of {dtype} {:?}",
                &shape[..]
            ));
        }
        if shape.first() != Some(&batch_size) {
            return invalid(&format!(
                "{name} must have shape [{batch_size}, ...], a row for each item; got {dtype} {:?}",
                &shape[..]
            ));
        }
        let num_bytes = array.len() * descr.itemsize();
        Ok(Self { name, dtype, array: array.unbind(), shape, start, num_bytes })
    }

    /// Memory of the array.
    ///
    /// # Safety
    ///
    /// While the slice is used, the array must live, and nothing else may write to it.
    #[allow(clippy::mut_from_ref, reason = "the array is borrowed from Python, not from self")]
    unsafe fn bytes(&self) -> &mut [u8] {
        if self.num_bytes == 0 {
            return &mut [];
        }
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: a C-contiguous array has this many bytes there, which the constructor checked to
        // be writable; the caller ensures the rest.
        unsafe { std::slice::from_raw_parts_mut(start, self.num_bytes) }
    }
}

fn invalid<T>(text: &str) -> PyResult<T> {
    Err(Error::invalid_argument(text)).or_raise()
}

/// The array itself, or one over the memory of an object with the buffer protocol.
fn as_array<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let py = value.py();
    let view = py.import("builtins")?.call_method1("memoryview", (value,)).map_err(|_| {
        PyTypeError::new_err(format!(
            "{name} must be a NumPy array or an object with the buffer protocol, got {}",
            value.get_type()
        ))
    })?;
    let array = py.import("numpy")?.call_method1("asarray", (view,))?;
    Ok(array.cast_into::<PyUntypedArray>()?)
}

/// The leaves of a nest of dicts, lists and tuples, with their names: `out["obs"]`.
fn flatten(
    name: &str,
    nest: &Bound<'_, PyAny>,
    size: usize,
    out: &mut Vec<Output>,
) -> PyResult<()> {
    if let Ok(dict) = nest.cast::<PyDict>() {
        let mut entries: Vec<(String, Bound<'_, PyAny>)> = Vec::with_capacity(dict.len());
        for (key, value) in dict {
            let text = match key.extract::<String>() {
                Ok(text) => text,
                Err(_) => key.repr()?.to_string(),
            };
            entries.push((text, value));
        }
        entries.sort_by(|one, another| one.0.cmp(&another.0));
        for (key, value) in entries {
            flatten(&format!("{name}[{key:?}]"), &value, size, out)?;
        }
        return Ok(());
    }
    if nest.is_none() {
        // A column that was omitted.
        return Ok(());
    }
    let children: Vec<Bound<'_, PyAny>> = if let Ok(list) = nest.cast::<PyList>() {
        list.iter().collect()
    } else if let Ok(tuple) = nest.cast::<PyTuple>() {
        tuple.iter().collect()
    } else {
        out.push(Output::new(name.to_owned(), nest, size)?);
        return Ok(());
    };
    for (i, child) in children.iter().enumerate() {
        flatten(&format!("{name}[{i}]"), child, size, out)?;
    }
    Ok(())
}

#[pymethods]
impl Outputs {
    #[new]
    #[pyo3(signature = (name, nest, infos, batch_size))]
    fn new(
        name: &str,
        nest: &Bound<'_, PyAny>,
        infos: Option<Vec<Bound<'_, PyAny>>>,
        batch_size: usize,
    ) -> PyResult<Self> {
        let mut columns = Vec::new();
        flatten(name, nest, batch_size, &mut columns)?;
        let infos = match infos {
            None => Vec::new(),
            Some(infos) => infos_outputs(name, &infos, batch_size)?,
        };
        let outputs = Self { columns, infos, is_lent: AtomicBool::new(false) };
        outputs.check_apart()?;
        Ok(outputs)
    }

    fn arrays<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyUntypedArray>> {
        self.columns.iter().map(|output| output.array.bind(py).clone()).collect()
    }
}

fn infos_outputs(
    name: &str,
    infos: &[Bound<'_, PyAny>],
    batch_size: usize,
) -> PyResult<Vec<Output>> {
    if infos.len() != NUM_SAMPLE_INFOS && infos.len() != NUM_INFOS {
        return Err(PyTypeError::new_err(format!(
            "{name}.info must be a SampleInfo or a BatchInfo, got {} arrays",
            infos.len()
        )));
    }
    let mut outputs = Vec::with_capacity(NUM_INFOS);
    for ((field, dtype), array) in INFO_DTYPES.into_iter().zip(infos) {
        let output = Output::new(format!("{name}.info.{field}"), array, batch_size)?;
        let wanted = dtype.numpy_name();
        if output.dtype != wanted || output.shape[..] != [batch_size] {
            return invalid(&format!(
                "{} must be {wanted} {:?}, C-contiguous and writable; got {} {:?}",
                output.name,
                [batch_size],
                output.dtype,
                &output.shape[..]
            ));
        }
        outputs.push(output);
    }
    Ok(outputs)
}

impl Outputs {
    /// Checks that no two arrays share memory.
    fn check_apart(&self) -> PyResult<()> {
        let mut all: Vec<&Output> = self.columns.iter().collect();
        all.extend(&self.infos);
        all.retain(|output| output.num_bytes > 0);
        all.sort_by_key(|output| output.start);
        let overlap = all.windows(2).find(|pair| pair[0].start + pair[0].num_bytes > pair[1].start);
        match overlap {
            None => Ok(()),
            Some(pair) => invalid(&format!(
                "{} and {} share memory; each array must have its own",
                pair[0].name, pair[1].name
            )),
        }
    }

    /// Lends the arrays for a batch.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if another call samples into them.
    pub(crate) fn lend(&self) -> reverb_base::Result<Lent<'_>> {
        if self.is_lent.swap(true, Ordering::Acquire) {
            let text = "another call is sampling a batch into the same arrays";
            return Err(Error::failed_precondition(text));
        }
        Ok(Lent(self))
    }
}

/// Memory of a batch under a NumPy array.
#[pyclass(frozen)]
pub(crate) struct BatchMemory(Option<Memory>);

impl BatchMemory {
    pub(crate) fn new(memory: Memory) -> Self {
        Self(Some(memory))
    }
}

impl Drop for BatchMemory {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            memory.recycle();
        }
    }
}
