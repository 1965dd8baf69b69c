// SPDX-License-Identifier: Apache-2.0
//! Element types of NumPy and ours.

use numpy::npyffi::NPY_TYPES;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use reverb_data::DType;

/// Our type for a NumPy type number, `None` where we have none (or where strings need a conversion).
pub(crate) fn from_type_num(num: i32) -> Option<DType> {
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

/// NumPy's type number, `None` where NumPy itself has no such type.
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

/// The NumPy dtype object. Types that NumPy lacks come from `ml_dtypes`, if it is installed.
pub(crate) fn to_numpy(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let numpy = py.import("numpy")?;
    if dtype == DType::String {
        return numpy.call_method1("dtype", ("O",));
    }
    let name = match dtype {
        DType::Float32 => "float32",
        DType::Float64 => "float64",
        DType::Float16 => "float16",
        DType::QInt8 => "int8",
        DType::QUInt8 => "uint8",
        DType::QInt16 => "int16",
        DType::QUInt16 => "uint16",
        DType::QInt32 => "int32",
        other => other.name(),
    };
    if to_type_num(dtype).is_some() {
        return numpy.call_method1("dtype", (name,));
    }
    let ml_dtypes = py.import("ml_dtypes").map_err(|_| {
        PyTypeError::new_err(format!(
            "NumPy has no dtype {name}; install the package ml_dtypes to read such columns"
        ))
    })?;
    numpy.call_method1("dtype", (ml_dtypes.getattr(name)?,))
}
