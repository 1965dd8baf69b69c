// SPDX-License-Identifier: Apache-2.0
//! Signatures: converts a nest of specs to a flat list of columns.

use reverb_data::{DType, Error, Result, Signature, TensorSpec};

use crate::generated::tensorflow::structured_value::Kind;
use crate::generated::tensorflow::{StructuredValue, TensorShapeProto};

/// Deeper nests are refused. The wire format itself allows a hundred nested messages.
const MAX_DEPTH: usize = 64;

/// A placeholder for a missing value. It is refused like any other value that is not a spec.
static NOTHING: StructuredValue = StructuredValue { kind: None };

/// Flattens a nest: dictionaries by sorted key, lists and tuples by index, named tuples in their
/// own order.
///
/// The name of a column is its path, joined with `/`, followed by the name of the spec if it has
/// one.
///
/// # Errors
///
/// `InvalidArgument` if the nest has a value that is not a spec, or an unknown element type.
pub fn flatten_signature(value: &StructuredValue) -> Result<Signature> {
    let mut columns = Vec::new();
    flatten(value, &mut Vec::new(), &mut columns)?;
    Ok(Signature(columns))
}

fn flatten<'a>(
    value: &'a StructuredValue,
    path: &mut Vec<std::borrow::Cow<'a, str>>,
    columns: &mut Vec<TensorSpec>,
) -> Result<()> {
    if path.len() > MAX_DEPTH {
        return Err(Error::invalid_argument(format!(
            "The signature is nested deeper than {MAX_DEPTH} levels."
        )));
    }
    let (indexed, named): (&[StructuredValue], Vec<(&str, &StructuredValue)>) = match &value.kind {
        Some(Kind::TensorSpecValue(spec)) => {
            columns.push(column(path, &spec.name, spec.dtype, spec.shape.as_ref())?);
            return Ok(());
        }
        Some(Kind::BoundedTensorSpecValue(spec)) => {
            columns.push(column(path, &spec.name, spec.dtype, spec.shape.as_ref())?);
            return Ok(());
        }
        Some(Kind::ListValue(list)) => (&list.values, Vec::new()),
        Some(Kind::TupleValue(tuple)) => (&tuple.values, Vec::new()),
        // The generated map is sorted by key.
        Some(Kind::DictValue(dict)) => {
            (&[], dict.fields.iter().map(|(key, value)| (key.as_str(), value)).collect())
        }
        Some(Kind::NamedTupleValue(tuple)) => {
            let pairs = tuple.values.iter();
            (
                &[],
                pairs
                    .map(|pair| (pair.key.as_str(), pair.value.as_ref().unwrap_or(&NOTHING)))
                    .collect(),
            )
        }
        _ => {
            return Err(Error::invalid_argument(format!(
                "The signature may hold tensor specs, lists, tuples and dictionaries; there is \
                 something else at '{}'.",
                path.join("/")
            )));
        }
    };
    for (index, value) in indexed.iter().enumerate() {
        path.push(index.to_string().into());
        flatten(value, path, columns)?;
        path.pop();
    }
    for (key, value) in named {
        path.push(key.into());
        flatten(value, path, columns)?;
        path.pop();
    }
    Ok(())
}

fn column(
    path: &[std::borrow::Cow<'_, str>],
    name: &str,
    dtype: i32,
    shape: Option<&TensorShapeProto>,
) -> Result<TensorSpec> {
    let mut full_name = path.join("/");
    if !name.is_empty() {
        if !full_name.is_empty() {
            full_name.push('/');
        }
        full_name.push_str(name);
    }
    // A missing shape is the empty shape, a scalar.
    let dims = match shape {
        Some(shape) if shape.unknown_rank => None,
        Some(shape) => Some(shape.dim.iter().map(|dim| usize::try_from(dim.size).ok()).collect()),
        None => Some(Vec::new()),
    };
    Ok(TensorSpec { name: full_name, dtype: DType::from_number(dtype)?, shape: dims })
}
