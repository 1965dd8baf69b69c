// SPDX-License-Identifier: Apache-2.0
//! Converts between NumPy arrays and our tensors, without a copy where that is possible. Its
//! `unsafe` is listed in ARCHITECTURE.md.

#![allow(unsafe_code)]

use numpy::npyffi::{self, NPY_TYPES, NpyTypes, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use reverb_base::Error;
use reverb_base::memory::Memory;
use reverb_client::CellValue;
use reverb_data::column_names::ColumnNames;
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Shape, Tensor, TensorData, Trajectory};

use crate::batch::BatchMemory;
use crate::dlpack;
use crate::dtype;
use crate::error::{OrRaise, in_column, to_python};

/// Arrays of at least this size are filled and handed to NumPy without the GIL or a copy.
const LARGE_BYTES: usize = 32 * 1024;

/// One value of a step, as Python passed it, with direct access to its elements.
pub(crate) enum Leaf<'py> {
    /// `None`: the column has no value in this step.
    Absent,
    Scalar(DType, [u8; 8]),
    /// A C-contiguous array in native byte order.
    Array(DType, Bound<'py, PyUntypedArray>),
    /// Strings, flat.
    Strings(Shape, Vec<Vec<u8>>),
}

static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn numpy_function<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let function = cell.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
        Ok(py.import("numpy")?.getattr(name)?.unbind())
    })?;
    Ok(function.bind(py))
}

impl<'py> Leaf<'py> {
    /// Converts a value by NumPy's rules.
    ///
    /// # Errors
    ///
    /// `TypeError` for values that cannot be stored: dates, records, objects other than strings.
    /// `InvalidArgumentError` for values that are not in the processor's memory.
    pub(crate) fn new(value: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            return Self::from_array(array);
        }
        if let Ok(float) = value.cast_exact::<PyFloat>() {
            return Ok(Self::Scalar(DType::Float64, float.value().to_le_bytes()));
        }
        if value.is_none() {
            return Ok(Self::Absent);
        }
        if let Ok(boolean) = value.cast_exact::<PyBool>() {
            return Ok(Self::Scalar(DType::Bool, u64::from(boolean.is_true()).to_le_bytes()));
        }
        if value.is_exact_instance_of::<PyInt>()
            && let Ok(int) = value.extract::<i64>()
        {
            return Ok(Self::Scalar(DType::Int64, int.to_le_bytes()));
        }
        // NumPy would strip trailing zeros of byte strings.
        if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            return Ok(Self::Strings(Shape::new(), vec![bytes.as_bytes().to_vec()]));
        }
        if let Ok(text) = value.cast_exact::<PyString>() {
            return Ok(Self::Strings(Shape::new(), vec![text.to_cow()?.into_owned().into_bytes()]));
        }
        if let Some(array) = dlpack::array_of(value)? {
            return Self::from_array(&array);
        }
        let array = numpy_function(value.py(), &ASARRAY, "asarray")?.call1((value,))?;
        let array = array.cast::<PyUntypedArray>()?;
        Self::from_array(array).map_err(|error| {
            // NumPy has no dtype for the object itself.
            if array.ndim() == 0 && array.dtype().kind() == b'O' {
                unsupported_object(value)
            } else {
                error
            }
        })
    }

    fn from_array(array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        let descr = array.dtype();
        let Some(dtype) = dtype::from_numpy(&descr)? else {
            return Self::from_strings(array);
        };
        if array.is_c_contiguous() && descr.is_native_byteorder() != Some(false) {
            return Ok(Self::Array(dtype, array.clone()));
        }
        // `ascontiguousarray` would make a 0-d array 1-d.
        let py = array.py();
        let kwargs = pyo3::types::PyDict::new(py);
        kwargs.set_item("order", "C")?;
        kwargs.set_item("dtype", descr.call_method1("newbyteorder", ("=",))?)?;
        let array = numpy_function(py, &ARRAY, "array")?.call((array,), Some(&kwargs))?;
        Ok(Self::Array(dtype, array.cast_into::<PyUntypedArray>()?))
    }

    fn from_strings(array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        if !matches!(array.dtype().kind(), b'S' | b'U' | b'O') {
            return Err(unsupported_dtype(array));
        }
        let list = array.call_method0("ravel")?.call_method0("tolist")?;
        let mut strings = Vec::with_capacity(array.len());
        for element in list.cast::<PyList>()? {
            if let Ok(bytes) = element.cast::<PyBytes>() {
                strings.push(bytes.as_bytes().to_vec());
            } else if let Ok(text) = element.cast::<PyString>() {
                strings.push(text.to_cow()?.into_owned().into_bytes());
            } else {
                return Err(unsupported_dtype(array));
            }
        }
        Ok(Self::Strings(Shape::from_slice(array.shape()), strings))
    }

    /// The value for the writers; `None` if there is none.
    pub(crate) fn value(&mut self) -> Option<CellValue<'_>> {
        Some(match self {
            Leaf::Absent => return None,
            Leaf::Scalar(dtype, bytes) => {
                CellValue::Bytes { dtype: *dtype, shape: &[], bytes: &bytes[..dtype.size()] }
            }
            Leaf::Array(dtype, array) => CellValue::Bytes {
                dtype: *dtype,
                shape: array.shape(),
                bytes: bytes_of(array, *dtype),
            },
            Leaf::Strings(shape, strings) => {
                CellValue::Strings { shape, strings: std::mem::take(strings) }
            }
        })
    }
}

/// Error for an object of Python that is no array and no number.
#[cold]
fn unsupported_object(value: &Bound<'_, PyAny>) -> PyErr {
    let name = value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let size = if value.is_instance_of::<PyInt>() { " of more than 64 bits" } else { "" };
    PyTypeError::new_err(format!(
        "Values of type {name}{size} cannot be stored. Use numbers, booleans, str or bytes."
    ))
}

/// Error for an array that cannot be stored. It names the dtype and possible replacements.
#[cold]
fn unsupported_dtype(array: &Bound<'_, PyUntypedArray>) -> PyErr {
    let descr = array.dtype();
    let declared = dtype::declared_name(&descr).ok().flatten();
    let known: Vec<&str> = dtype::extensions().map(DType::name).collect();
    let is_extension = descr.num() >= NPY_TYPES::NPY_USERDEF as i32;
    let name = match declared {
        // The type is supported, but not in this size.
        Some(name) if known.contains(&&*name) => format!("{name} of {} byte(s)", descr.itemsize()),
        Some(name) => name,
        None => {
            let name =
                if is_extension { descr.getattr("name") } else { Ok(descr.clone().into_any()) };
            name.map_or_else(|_| "?".to_owned(), |name| name.to_string())
        }
    };
    let hint = if is_extension {
        format!(" Of the package ml_dtypes these can be stored: {}.", known.join(", "))
    } else if name.starts_with('q') {
        " Quantized types are written by TensorFlow's ops only.".to_owned()
    } else {
        String::new()
    };
    PyTypeError::new_err(format!(
        "Values of NumPy dtype {name} cannot be stored. Use numbers, booleans, str or bytes.{hint}"
    ))
}

/// Converts the leaves of a step; errors name the leaf by its path, or by its number without
/// `names`.
pub(crate) fn parse_leaves<'a, 'py>(
    leaves: &'a [Bound<'py, PyAny>],
    names: Option<&'a ColumnNames>,
) -> impl Iterator<Item = PyResult<Leaf<'py>>> + 'a {
    leaves.iter().enumerate().map(move |(i, leaf)| {
        Leaf::new(leaf).map_err(|error| in_column(leaf.py(), label(names, i), error))
    })
}

/// Values of leaves, all of which must be present; the error names the one that is not.
pub(crate) fn all_values<'a>(
    leaves: &'a mut [Leaf<'_>],
    names: &ColumnNames,
) -> PyResult<Vec<CellValue<'a>>> {
    let value = |(i, leaf): (usize, &'a mut Leaf<'_>)| {
        leaf.value().ok_or_else(|| {
            PyTypeError::new_err(format!(
                "Column {}: None cannot be stored; every step needs a value for every leaf",
                label(Some(names), i)
            ))
        })
    };
    leaves.iter_mut().enumerate().map(value).collect()
}

/// The path of a leaf; its number if that is empty or unknown.
fn label(names: Option<&ColumnNames>, i: usize) -> String {
    let path = names.and_then(|names| names.0.get(i)).map(ToString::to_string);
    path.filter(|path| !path.is_empty()).unwrap_or_else(|| i.to_string())
}

/// Elements of a C-contiguous array. The caller holds the GIL as long as it uses the slice, so no
/// other thread writes to it.
fn bytes_of<'a>(array: &'a Bound<'_, PyUntypedArray>, dtype: DType) -> &'a [u8] {
    let len = array.len() * dtype.size();
    if len == 0 {
        return &[];
    }
    // SAFETY: the array is C-contiguous with `len` bytes from `data` on, and lives as long as the
    // borrow of `array`.
    unsafe { std::slice::from_raw_parts((*array.as_array_ptr()).fields.data.cast::<u8>(), len) }
}

/// Error for an array that NumPy cannot create: it has too many dimensions, or is too large. Shapes
/// come from other programs.
#[cold]
pub(crate) fn no_array(py: Python<'_>, error: PyErr, shape: &[usize]) -> PyErr {
    let shape = shape_text(shape);
    let what = format!("NumPy cannot make an array of shape {shape}: {}", error.value(py));
    if error.is_instance_of::<PyMemoryError>(py) {
        to_python(&Error::resource_exhausted(what))
    } else if error.is_instance_of::<PyValueError>(py) {
        to_python(&Error::invalid_argument(what))
    } else {
        error
    }
}

/// Creates an uninitialised array, which `fill` writes completely.
///
/// A large one is filled without the GIL: no other thread has a reference to it yet.
fn new_array<'py>(
    py: Python<'py>,
    num: NPY_TYPES,
    shape: &[usize],
    num_bytes: usize,
    fill: impl FnOnce(&mut [u8]) -> reverb_base::Result<()> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: without data NumPy allocates the array itself. The type's elements are plain numbers,
    // so any bytes are valid values.
    let array = unsafe { array_at(py, num, shape, std::ptr::null_mut(), 0)? };
    if num_bytes > 0 {
        let untyped = array.cast::<PyUntypedArray>()?;
        // SAFETY: NumPy allocated `num_bytes` bytes. They are zeroed first, so that `fill` sees
        // initialised memory even if it reads. There is no other reference to the array.
        let bytes = unsafe {
            let data = (*untyped.as_array_ptr()).fields.data.cast::<u8>();
            if num_bytes < LARGE_BYTES {
                std::ptr::write_bytes(data, 0, num_bytes);
            }
            std::slice::from_raw_parts_mut(data, num_bytes)
        };
        if num_bytes < LARGE_BYTES {
            fill(bytes).or_raise()?;
        } else {
            py.detach(|| fill(bytes)).or_raise()?;
        }
    }
    Ok(array)
}

/// Hands a decoded tensor to NumPy; large ones keep their memory.
pub(crate) fn tensor_to_array<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    let Tensor { dtype, shape, data } = tensor;
    match data {
        TensorData::Strings(strings) => strings_to_array(py, &shape, &strings),
        TensorData::Bytes(bytes) => bytes_to_array(py, dtype, &shape, bytes),
    }
}

fn bytes_to_array<'py>(
    py: Python<'py>,
    dtype: DType,
    shape: &[usize],
    bytes: Vec<u8>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(num) = dtype::to_type_num(dtype) else {
        let raw = bytes_to_array(py, DType::UInt8, &[bytes.len()], bytes)?;
        return viewed(py, &raw, dtype, shape);
    };
    if bytes.len() < LARGE_BYTES {
        let len = bytes.len();
        return new_array(py, num, shape, len, |out| {
            out.copy_from_slice(&bytes);
            Ok(())
        });
    }
    let base = Bound::new(py, OwnedBytes(bytes))?;
    let start = base.get().0.as_ptr().cast_mut();
    // SAFETY: `start` points to as many bytes as the shape takes (a tensor's invariant), in memory
    // that `base` owns and nothing else touches.
    unsafe { array_over(py, num, shape, start, base.into_any()) }
}

/// Bytes as an array of a dtype that NumPy lacks.
fn viewed<'py>(
    py: Python<'py>,
    raw: &Bound<'py, PyAny>,
    dtype: DType,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let viewed = raw.call_method1("view", (dtype::to_numpy(py, dtype)?,))?;
    reshaped(py, &viewed, shape)
}

fn reshaped<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let reshaped = array.call_method1("reshape", (PyTuple::new(py, shape)?,));
    reshaped.map_err(|error| no_array(py, error, shape))
}

/// Memory of ours under a NumPy array.
#[pyclass(frozen)]
struct OwnedBytes(Vec<u8>);

/// An object array of `bytes`, as dm-reverb returns strings.
fn strings_to_array<'py>(
    py: Python<'py>,
    shape: &[usize],
    strings: &[Vec<u8>],
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("empty", (strings.len(), "O"));
    let array = array.map_err(|error| no_array(py, error, shape))?;
    for (i, string) in strings.iter().enumerate() {
        let copy = PyBytes::new_with(py, string.len(), |out| {
            out.copy_from_slice(string);
            Ok(())
        });
        array.set_item(i, copy.map_err(|error| no_array(py, error, shape))?)?;
    }
    reshaped(py, &array, shape)
}

/// Decodes a column of an item straight into a new array, `[T, ...]` or, if squeezed, `[...]`. It
/// may take `room` bytes, from which its bytes are subtracted.
pub(crate) fn column_to_array<'py>(
    py: Python<'py>,
    trajectory: &Trajectory,
    column: &reverb_data::trajectory::Column<'_>,
    room: &mut usize,
) -> PyResult<Bound<'py, PyAny>> {
    column_part(py, trajectory, column, usize::from(column.squeeze), room)
}

/// Decodes a column of one step without its leading dimension.
pub(crate) fn single_step_to_array<'py>(
    py: Python<'py>,
    trajectory: &Trajectory,
    column: &reverb_data::trajectory::Column<'_>,
    room: &mut usize,
) -> PyResult<Bound<'py, PyAny>> {
    column_part(py, trajectory, column, usize::from(column.squeeze) + 1, room)
}

/// A column without its first dimensions, which are 1.
fn column_part<'py>(
    py: Python<'py>,
    trajectory: &Trajectory,
    column: &reverb_data::trajectory::Column<'_>,
    left_out: usize,
    room: &mut usize,
) -> PyResult<Bound<'py, PyAny>> {
    // Claims of the chunks are checked before memory is allocated.
    let checked = trajectory.checked_column(column).or_raise()?;
    let dtype = checked.dtype;
    let num_bytes = checked.num_bytes;
    let shape = &checked.shape[left_out..];
    match dtype::to_type_num(dtype) {
        Some(num) if dtype != DType::String => {
            *room = room.checked_sub(num_bytes).ok_or_else(too_large).or_raise()?;
            new_array(py, num, shape, num_bytes, |out| {
                trajectory.copy_checked(column, &checked, out)
            })
        }
        _ => {
            let mut tensor = trajectory.decode_column_within(column, room).or_raise()?;
            tensor.shape = Shape::from_slice(shape);
            tensor_to_array(py, tensor)
        }
    }
}

fn too_large() -> Error {
    Error::resource_exhausted(
        "An item takes more than half of the memory that this process may use, or more than 8 GiB.",
    )
}

/// Arrays of batches of at least this size use aligned memory, which is reused.
const MIN_ALIGNED_BYTES: usize = 4 * 1024;

/// A one-dimensional array of numbers, which `fill` writes completely.
pub(crate) fn number_array<'py>(
    py: Python<'py>,
    dtype: DType,
    count: usize,
    fill: impl FnOnce(&mut [u8]) + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let num_bytes = count * dtype.size();
    let Some(num) = dtype::to_type_num(dtype).filter(|_| num_bytes < MIN_ALIGNED_BYTES) else {
        let memory = Memory::take(num_bytes).ok_or_else(|| {
            Error::resource_exhausted(format!("There is no memory for {count} numbers."))
        });
        let mut memory = memory.or_raise()?;
        fill(memory.bytes_mut(num_bytes));
        return batch_memory_to_array(py, dtype, &[count], memory);
    };
    new_array(py, num, &[count], num_bytes, |out| {
        fill(out);
        Ok(())
    })
}

/// Hands the memory of a batch to NumPy. It is reused when the array is freed.
pub(crate) fn batch_memory_to_array<'py>(
    py: Python<'py>,
    dtype: DType,
    shape: &[usize],
    mut memory: Memory,
) -> PyResult<Bound<'py, PyAny>> {
    let num_bytes = Tensor::num_bytes(dtype, shape).unwrap_or_default();
    let Some(num) = dtype::to_type_num(dtype) else {
        let raw = batch_memory_to_array(py, DType::UInt8, &[num_bytes], memory)?;
        return viewed(py, &raw, dtype, shape);
    };
    if num_bytes < MIN_ALIGNED_BYTES {
        return new_array(py, num, shape, num_bytes, |out| {
            out.copy_from_slice(memory.bytes_mut(num_bytes));
            Ok(())
        });
    }
    let start = memory.bytes_mut(num_bytes).as_mut_ptr();
    let base = Bound::new(py, BatchMemory::new(memory))?.into_any();
    // SAFETY: `start` points to `num_bytes` bytes, as many as the shape takes, which `base` owns
    // and nothing else touches.
    unsafe { array_over(py, num, shape, start, base) }
}

/// An array over memory of another object, writable.
///
/// # Safety
///
/// `start` must point to as many bytes as the shape takes, in memory that `base` owns and that
/// nothing else ever touches again.
unsafe fn array_over<'py>(
    py: Python<'py>,
    num: NPY_TYPES,
    shape: &[usize],
    start: *mut u8,
    base: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as for this function. `base` becomes the array's base, so it outlives the array.
    // `SetBaseObject` takes over the reference to it.
    unsafe {
        let array = array_at(py, num, shape, start, npyffi::NPY_ARRAY_WRITEABLE)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base.into_ptr()) != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// An array at `start`, or in memory of its own if that is null.
///
/// # Safety
///
/// `start` is null, or points to as many bytes as the shape takes, which live as long as the array.
unsafe fn array_at<'py>(
    py: Python<'py>,
    num: NPY_TYPES,
    shape: &[usize],
    start: *mut u8,
    flags: i32,
) -> PyResult<Bound<'py, PyAny>> {
    let mut dims: smallvec::SmallVec<[npy_intp; 8]> =
        shape.iter().map(|&dim| dim as npy_intp).collect();
    // SAFETY: `dims` holds `shape.len()` sizes; the rest is as for this function. The result is a
    // new reference or null with an exception set.
    unsafe {
        let descr = PY_ARRAY_API.PyArray_DescrFromType(py, num as i32);
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            descr,
            dims.len() as i32,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            start.cast(),
            flags,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, array).map_err(|error| no_array(py, error, shape))
    }
}
