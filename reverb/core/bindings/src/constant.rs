// SPDX-License-Identifier: Apache-2.0
//! Constants of items: values in place of columns of a history.

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};
use reverb_data::{DType, Shape, Tensor, TensorData};

use crate::array::Leaf;
use crate::dtype;
use crate::error::in_column;

/// Reads a constant. A number of Python takes the dtype of the signature if that can hold it, as
/// numbers beside arrays of NumPy do: an int must be in its range, a float is rounded.
///
/// # Errors
///
/// Those of `Leaf::new`; the text names the column by its label.
pub(crate) fn read_constant<'py>(
    value: &Bound<'py, PyAny>,
    wanted: Option<DType>,
    label: impl FnOnce() -> String,
) -> PyResult<Leaf<'py>> {
    let py = value.py();
    if let Some(scalar) = wanted.and_then(|dtype| number_as(value, dtype)) {
        return Ok(scalar);
    }
    let wanted = wanted.filter(|_| value.is_exact_instance_of::<PyFloat>());
    if let Some(dtype) = wanted.filter(|dtype| SHORT_FLOATS.contains(dtype)) {
        // NumPy rounds to the types that Rust lacks.
        let array =
            py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (value,))?;
        let array = array.call_method1(intern!(py, "astype"), (dtype::to_numpy(py, dtype)?,))?;
        return Leaf::new(array.cast::<PyUntypedArray>()?);
    }
    Leaf::new(value).map_err(|error| in_column(py, label(), error))
}

const SHORT_FLOATS: [DType; 2] = [DType::Float16, DType::BFloat16];

/// A number of Python in another dtype; `None` if the value is no number or does not fit.
fn number_as<'py>(value: &Bound<'py, PyAny>, dtype: DType) -> Option<Leaf<'py>> {
    if let Ok(float) = value.cast_exact::<PyFloat>() {
        let float = float.value();
        let short = float as f32;
        let fits = short.is_finite() || !float.is_finite();
        return (dtype == DType::Float32 && fits).then(|| scalar(dtype, &short.to_le_bytes()));
    }
    if !value.is_exact_instance_of::<PyInt>() {
        return None;
    }
    if dtype == DType::UInt64 {
        return value.extract::<u64>().ok().map(|int| scalar(dtype, &int.to_le_bytes()));
    }
    let int: i64 = value.extract().ok()?;
    match dtype {
        DType::Int8 => i8::try_from(int).ok().map(|int| scalar(dtype, &int.to_le_bytes())),
        DType::Int16 => i16::try_from(int).ok().map(|int| scalar(dtype, &int.to_le_bytes())),
        DType::Int32 => i32::try_from(int).ok().map(|int| scalar(dtype, &int.to_le_bytes())),
        DType::UInt8 => u8::try_from(int).ok().map(|int| scalar(dtype, &int.to_le_bytes())),
        DType::UInt16 => u16::try_from(int).ok().map(|int| scalar(dtype, &int.to_le_bytes())),
        DType::UInt32 => u32::try_from(int).ok().map(|int| scalar(dtype, &int.to_le_bytes())),
        // Larger integers are not all numbers of these types.
        DType::Float32 if int.unsigned_abs() <= 1 << f32::MANTISSA_DIGITS => {
            Some(scalar(dtype, &(int as f32).to_le_bytes()))
        }
        DType::Float64 if int.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS => {
            Some(scalar(dtype, &(int as f64).to_le_bytes()))
        }
        _ => None,
    }
}

fn scalar<'py>(dtype: DType, bytes: &[u8]) -> Leaf<'py> {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    Leaf::Scalar(dtype, all)
}

/// The value with memory of its own; `None` for `None`.
pub(crate) fn owned(leaf: &mut Leaf<'_>) -> Option<Tensor> {
    use reverb_client::CellValue;
    Some(match leaf.value()? {
        CellValue::Bytes { dtype, shape, bytes } => Tensor {
            dtype,
            shape: Shape::from_slice(shape),
            data: TensorData::Bytes(bytes.to_vec()),
        },
        CellValue::Strings { shape, strings } => Tensor {
            dtype: DType::String,
            shape: Shape::from_slice(shape),
            data: TensorData::Strings(strings),
        },
    })
}
