// SPDX-License-Identifier: Apache-2.0
//! Maps NumPy's element types to ours and back.

use numpy::npyffi::NPY_TYPES;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAny, PyDict, PyString};
use reverb_data::DType;

/// The types that NumPy lacks. The package `ml_dtypes` adds them, under our names.
pub(crate) fn extensions() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| is_extension(dtype))
}

fn is_extension(dtype: DType) -> bool {
    to_type_num(dtype).is_none()
}

/// All types: number and name of TensorFlow, name of NumPy, width in bytes, and whether `ml_dtypes`
/// adds it.
pub(crate) fn all() -> Vec<(i32, &'static str, &'static str, usize, bool)> {
    let row = |&it: &DType| (it.number(), it.name(), it.numpy_name(), it.size(), is_extension(it));
    DType::ALL.iter().map(row).collect()
}

/// Classes of `ml_dtypes`, once the program has imported it.
static EXTENSION_TYPES: PyOnceLock<Vec<(Py<PyAny>, DType)>> = PyOnceLock::new();

/// Our type for the elements of an array; `None` if we have none, or if strings need a conversion.
#[inline]
pub(crate) fn from_numpy(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<DType>> {
    match from_type_num(descr.num()) {
        Some(dtype) => Ok(Some(dtype)),
        None => extension(descr),
    }
}

/// The type of an array of `ml_dtypes`, or of the raw bytes that represent one (see
/// `reverb.dtypes.from_number`).
#[cold]
#[inline(never)]
fn extension(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<DType>> {
    let py = descr.py();
    let found = if descr.num() >= NPY_TYPES::NPY_USERDEF as i32 {
        let ty = descr.typeobj();
        let known = extension_types(py)?.iter().find(|(known, _)| ty.is(known));
        known.map(|(_, dtype)| *dtype)
    } else if descr.num() == NPY_TYPES::NPY_VOID as i32 {
        let name = declared_name(descr)?;
        extensions().find(|dtype| name.as_deref() == Some(dtype.name()))
    } else {
        None
    };
    // Readers of the elements rely on this size.
    Ok(found.filter(|dtype| dtype.size() == descr.itemsize()))
}

/// Name of the type in the metadata of a dtype of raw bytes.
pub(crate) fn declared_name(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<String>> {
    let py = descr.py();
    let metadata = descr.getattr(intern!(py, "metadata"))?;
    if metadata.is_none() {
        return Ok(None);
    }
    let name = metadata.call_method1(intern!(py, "get"), (intern!(py, "reverb_dtype"),))?;
    Ok(name.cast::<PyString>().ok().map(ToString::to_string))
}

fn extension_types(py: Python<'_>) -> PyResult<&[(Py<PyAny>, DType)]> {
    if let Some(types) = EXTENSION_TYPES.get(py) {
        return Ok(types);
    }
    // A program with such an array has imported the package. Other programs should not pay for the
    // import.
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(module) = modules.get_item("ml_dtypes")? else { return Ok(&[]) };
    let mut types = Vec::new();
    for dtype in extensions() {
        // An older release lacks some of them.
        if let Some(ty) = module.getattr_opt(dtype.name())? {
            types.push((ty.unbind(), dtype));
        }
    }
    if types.is_empty() {
        return Ok(&[]); // It is still being imported, by another thread.
    }
    Ok(EXTENSION_TYPES.get_or_init(py, || types))
}

/// Our type for a NumPy type number; `None` if NumPy has no such type.
fn from_type_num(num: i32) -> Option<DType> {
    use NPY_TYPES as N;
    const LONG_IS_64: bool = std::mem::size_of::<std::ffi::c_long>() == 8;
    let is = |ty: NPY_TYPES| num == ty as i32;
    Some(match () {
        () if is(N::NPY_FLOAT) => DType::Float32,
        () if is(N::NPY_DOUBLE) => DType::Float64,
        () if is(N::NPY_INT) => DType::Int32,
        () if is(N::NPY_UBYTE) => DType::UInt8,
        () if is(N::NPY_LONG) => {
            if LONG_IS_64 {
                DType::Int64
            } else {
                DType::Int32
            }
        }
        () if is(N::NPY_BOOL) => DType::Bool,
        () if is(N::NPY_HALF) => DType::Float16,
        () if is(N::NPY_BYTE) => DType::Int8,
        () if is(N::NPY_SHORT) => DType::Int16,
        () if is(N::NPY_USHORT) => DType::UInt16,
        () if is(N::NPY_UINT) => DType::UInt32,
        () if is(N::NPY_ULONG) => {
            if LONG_IS_64 {
                DType::UInt64
            } else {
                DType::UInt32
            }
        }
        () if is(N::NPY_LONGLONG) => DType::Int64,
        () if is(N::NPY_ULONGLONG) => DType::UInt64,
        () if is(N::NPY_CFLOAT) => DType::Complex64,
        () if is(N::NPY_CDOUBLE) => DType::Complex128,
        () => return None,
    })
}

/// NumPy's type number; `None` if NumPy has no such type.
pub(crate) fn to_type_num(dtype: DType) -> Option<NPY_TYPES> {
    use NPY_TYPES as N;
    Some(match dtype {
        DType::Float32 => N::NPY_FLOAT,
        DType::Float64 => N::NPY_DOUBLE,
        DType::Int32 | DType::QInt32 => N::NPY_INT,
        DType::UInt8 | DType::QUInt8 => N::NPY_UBYTE,
        DType::Int16 | DType::QInt16 => N::NPY_SHORT,
        DType::Int8 | DType::QInt8 => N::NPY_BYTE,
        DType::String => N::NPY_OBJECT,
        DType::Complex64 => N::NPY_CFLOAT,
        DType::Int64 => {
            if std::mem::size_of::<std::ffi::c_long>() == 8 {
                N::NPY_LONG
            } else {
                N::NPY_LONGLONG
            }
        }
        DType::Bool => N::NPY_BOOL,
        DType::UInt16 | DType::QUInt16 => N::NPY_USHORT,
        DType::Complex128 => N::NPY_CDOUBLE,
        DType::Float16 => N::NPY_HALF,
        DType::UInt32 => N::NPY_UINT,
        DType::UInt64 => {
            if std::mem::size_of::<std::ffi::c_ulong>() == 8 {
                N::NPY_ULONG
            } else {
                N::NPY_ULONGLONG
            }
        }
        DType::BFloat16 | DType::Float8E5M2 | DType::Float8E4M3FN | DType::Int4 | DType::UInt4 => {
            return None;
        }
    })
}

/// NumPy dtype object. Types that NumPy lacks come from `ml_dtypes`, or are raw bytes where that is
/// not installed.
pub(crate) fn to_numpy(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    if to_type_num(dtype).is_some() {
        return py.import("numpy")?.call_method1("dtype", (dtype.numpy_name(),));
    }
    py.import("reverb._nests.dtypes")?.call_method1("from_number", (dtype.number(),))
}
