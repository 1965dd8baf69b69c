// SPDX-License-Identifier: Apache-2.0
//! Tensors of other libraries as NumPy arrays, without a copy: `DLPack`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use numpy::PyUntypedArray;
use numpy::npyffi::{self, NPY_TYPES, NpyTypes, PY_ARRAY_API, npy_intp};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use reverb_base::Error;
use reverb_data::DType;
use smallvec::SmallVec;

use crate::dtype;
use crate::error::{OrRaise, of_value};

/// Names of a capsule whose tensor was not taken yet, and of one whose tensor was.
const FRESH: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

/// Types of devices whose memory the processor reads: CPU, and pinned memory for CUDA and `ROCm`.
const CPU_DEVICES: [i32; 3] = [1, 3, 11];

#[repr(C)]
struct Device {
    kind: i32,
    index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    rank: i32,
    element: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// Keeps the memory of a tensor while an array refers to it.
#[pyclass(frozen)]
struct TensorOwner(*mut ManagedTensor);

// SAFETY: the pointer is used once more, by the deleter, which may be called by any thread.
unsafe impl Send for TensorOwner {}
// SAFETY: as above.
unsafe impl Sync for TensorOwner {}

impl Drop for TensorOwner {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken from its capsule and is deleted once, here.
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}

/// Array of an object that supports `DLPack`; `None` if it does not.
///
/// # Errors
///
/// `InvalidArgumentError` that names the device, if the memory is not the processor's; `TypeError`
/// for elements that cannot be stored.
pub(crate) fn array_of<'py>(
    value: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
    let py = value.py();
    let Some(device) = value.getattr_opt(intern!(py, "__dlpack_device__"))? else {
        return Ok(None);
    };
    if is_of_tensorflow(value)? {
        return Ok(None);
    }
    let device = device.call0().map_err(|error| {
        Error::invalid_argument(format!(
            "a tensor that does not tell its device ({error}); writers take CPU memory. Call .cpu() \
             before"
        ))
    });
    let (kind, index): (i32, i32) = device.or_raise()?.extract()?;
    if !CPU_DEVICES.contains(&kind) {
        return Err(Error::invalid_argument(format!(
            "a tensor on {}; writers take CPU memory. Call .cpu(), or .to(\"cpu\", \
             non_blocking=True) for the whole batch before",
            device_name(kind, index)
        )))
        .or_raise();
    }
    let value = without_gradient(value)?;
    let capsule = match value.call_method0(intern!(py, "__dlpack__")) {
        Ok(capsule) => capsule,
        // Some libraries have types that DLPack lacks.
        Err(error) => match as_bits(&value)? {
            Some((bits, dtype)) => {
                let array = array_of_capsule(&bits.call_method0(intern!(py, "__dlpack__"))?)?;
                return viewed(&array, dtype).map(Some);
            }
            None => return Err(error),
        },
    };
    array_of_capsule(&capsule).map(Some)
}

/// Returns true for a tensor of TensorFlow. TensorFlow aborts the process when a tensor of a dtype
/// that `DLPack` lacks, such as strings, is exported. Its tensors are arrays too.
fn is_of_tensorflow(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = value.get_type().module()?;
    Ok(module.to_str()?.split('.').next() == Some("tensorflow"))
}

fn device_name(kind: i32, index: i32) -> String {
    match kind {
        2 | 13 => format!("cuda:{index}"),
        8 => format!("mps:{index}"),
        10 => format!("rocm:{index}"),
        14 => format!("xpu:{index}"),
        _ => format!("device {index} of kind {kind}"),
    }
}

/// Removes the gradient: a tensor that records one does not export its memory.
fn without_gradient<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    match value.getattr_opt(intern!(py, "requires_grad"))? {
        Some(requires) if requires.is_truthy()? => value.call_method0(intern!(py, "detach")),
        _ => Ok(value.clone()),
    }
}

/// A tensor of `PyTorch` with elements of a byte that `DLPack` has no name for, as bytes.
fn as_bits<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>, DType)>> {
    let py = value.py();
    let Some(dtype) = value.getattr_opt(intern!(py, "dtype"))? else { return Ok(None) };
    let text = dtype.str()?.to_string();
    let name = text.strip_prefix("torch.").unwrap_or_default();
    let known = dtype::extensions().find(|dtype| dtype.name() == name && dtype.size() == 1);
    let Some(known) = known else { return Ok(None) };
    let bytes = py.import("torch")?.getattr("uint8")?;
    Ok(Some((value.call_method1("view", (bytes,))?, known)))
}

fn array_of_capsule<'py>(capsule: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = capsule.py();
    // SAFETY: both calls check that the object is a capsule of that name. After the renaming,
    // nothing else takes the tensor.
    let owner = unsafe {
        let tensor = ffi::PyCapsule_GetPointer(capsule.as_ptr(), FRESH.as_ptr());
        if tensor.is_null() || ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) != 0 {
            return Err(PyErr::fetch(py));
        }
        TensorOwner(tensor.cast())
    };
    // SAFETY: the tensor lives as long as its owner.
    let tensor = unsafe { &(*owner.0).tensor };
    let ElementType { code, bits, lanes } = tensor.element;
    let Some(dtype) = element_dtype(tensor.element) else {
        return Err(PyTypeError::new_err(format!(
            "Values of DLPack type {code} with {bits} bits and {lanes} lane(s) cannot be stored."
        )));
    };
    let num = dtype::to_type_num(dtype).unwrap_or(match dtype.size() {
        1 => NPY_TYPES::NPY_UBYTE,
        _ => NPY_TYPES::NPY_USHORT,
    });
    // SAFETY: a tensor has as many sizes as its rank, and as many strides unless it is
    // C-contiguous.
    let (shape, strides) = unsafe {
        let rank = usize::try_from(tensor.rank).unwrap_or_default();
        let numbers = |start: *mut i64| {
            if start.is_null() || rank == 0 { &[] } else { std::slice::from_raw_parts(start, rank) }
        };
        (numbers(tensor.shape), numbers(tensor.strides))
    };
    let mut dims: SmallVec<[npy_intp; 8]> = shape.iter().map(|&dim| dim as npy_intp).collect();
    let size = dtype.size() as npy_intp;
    let mut steps: SmallVec<[npy_intp; 8]> =
        strides.iter().map(|&stride| stride as npy_intp * size).collect();
    let steps = if steps.is_empty() { std::ptr::null_mut() } else { steps.as_mut_ptr() };
    let start = tensor.data.wrapping_byte_add(tensor.byte_offset as usize);
    let is_empty = dims.contains(&0);
    let base = Bound::new(py, owner)?.into_any();
    // SAFETY: the memory has the elements of that shape, which `base` keeps. Without elements NumPy
    // takes memory of its own. `SetBaseObject` takes over the reference to `base`.
    let array = unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            PY_ARRAY_API.PyArray_DescrFromType(py, num as i32),
            dims.len() as i32,
            dims.as_mut_ptr(),
            if is_empty { std::ptr::null_mut() } else { steps },
            if is_empty { std::ptr::null_mut() } else { start },
            0,
            std::ptr::null_mut(),
        );
        let array: Bound<'py, PyAny> = Bound::from_owned_ptr_or_err(py, array)?;
        if !is_empty
            && PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base.into_ptr()) != 0
        {
            return Err(PyErr::fetch(py));
        }
        array.cast_into::<PyUntypedArray>()?
    };
    if dtype::to_type_num(dtype).is_some() { Ok(array) } else { viewed(&array, dtype) }
}

/// The same memory, as elements of a type that NumPy lacks.
fn viewed<'py>(
    array: &Bound<'py, PyUntypedArray>,
    dtype: DType,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    let view = array.call_method1(intern!(py, "view"), (dtype::to_numpy(py, dtype)?,))?;
    Ok(view.cast_into::<PyUntypedArray>()?)
}

fn element_dtype(element: ElementType) -> Option<DType> {
    if element.lanes != 1 {
        return None;
    }
    Some(match (element.code, element.bits) {
        (0, 8) => DType::Int8,
        (0, 16) => DType::Int16,
        (0, 32) => DType::Int32,
        (0, 64) => DType::Int64,
        (1, 8) => DType::UInt8,
        (1, 16) => DType::UInt16,
        (1, 32) => DType::UInt32,
        (1, 64) => DType::UInt64,
        (2, 16) => DType::Float16,
        (2, 32) => DType::Float32,
        (2, 64) => DType::Float64,
        (4, 16) => DType::BFloat16,
        (5, 64) => DType::Complex64,
        (5, 128) => DType::Complex128,
        (6, 8) => DType::Bool,
        (10, 8) => DType::Float8E4M3FN,
        (12, 8) => DType::Float8E5M2,
        _ => return None,
    })
}

/// Converts a value to a NumPy array, by `DLPack` if it supports that. Errors contain `name`.
#[pyfunction]
#[pyo3(signature = (value, name))]
pub(crate) fn as_array<'py>(value: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    if value.cast::<PyUntypedArray>().is_ok() {
        return Ok(value.clone());
    }
    match array_of(value).map_err(|error| of_value(value.py(), name, error))? {
        Some(array) => Ok(array.into_any()),
        None => value.py().import("numpy")?.call_method1("asarray", (value,)),
    }
}
