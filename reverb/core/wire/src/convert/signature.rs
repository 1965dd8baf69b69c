// SPDX-License-Identifier: Apache-2.0
//! Signatures: converts a nest of specs to a flat list of columns.

use reverb_base::{Error, Result};
use reverb_data::column_names::{ColumnNames, ColumnPath};
use reverb_data::{DType, Signature, TensorSpec};

use crate::generated::tensorflow::structured_value::Kind;
use crate::generated::tensorflow::{StructuredValue, TensorShapeProto};

/// Deeper nests are refused. The wire format itself allows a hundred nested messages.
const MAX_DEPTH: usize = 64;

/// A placeholder for a missing value. It is refused like any other value that is not a spec.
static NOTHING: StructuredValue = StructuredValue { kind: None };

/// Flattens a nest: dictionaries by sorted key, lists and tuples by index, named tuples in their
/// own order.
///
/// # Errors
///
/// `InvalidArgument` if the nest has a value that is not a spec, or an unknown element type.
pub fn flatten_signature(value: &StructuredValue) -> Result<Signature> {
    let mut columns = Vec::new();
    visit(value, &mut Vec::new(), &mut |path, leaf| {
        columns.push(match &leaf.kind {
            Some(Kind::TensorSpecValue(spec)) => {
                column(path, &spec.name, spec.dtype, spec.shape.as_ref())?
            }
            Some(Kind::BoundedTensorSpecValue(spec)) => {
                column(path, &spec.name, spec.dtype, spec.shape.as_ref())?
            }
            _ => {
                return Err(Error::invalid_argument(format!(
                    "The signature may hold tensor specs, lists, tuples and dictionaries; there \
                     is something else at '{}'.",
                    path.join("/")
                )));
            }
        });
        Ok(())
    })?;
    Ok(Signature(columns))
}

/// Names of the columns of a nest with any leaves, in the order of [`flatten_signature`].
///
/// # Errors
///
/// `InvalidArgument` for a nest that is too deep.
pub fn flatten_names(value: &StructuredValue) -> Result<ColumnNames> {
    let mut names = Vec::new();
    visit(value, &mut Vec::new(), &mut |path, _| {
        names.push(ColumnPath::from_label(&path.join("/")));
        Ok(())
    })?;
    Ok(ColumnNames(names))
}

type Keys<'a> = Vec<std::borrow::Cow<'a, str>>;

/// Calls `leaf` for every value that is not a container.
fn visit<'a>(
    value: &'a StructuredValue,
    path: &mut Keys<'a>,
    leaf: &mut impl FnMut(&[std::borrow::Cow<'a, str>], &StructuredValue) -> Result<()>,
) -> Result<()> {
    if path.len() > MAX_DEPTH {
        return Err(Error::invalid_argument(format!(
            "The signature is nested deeper than {MAX_DEPTH} levels."
        )));
    }
    let (indexed, named): (&[StructuredValue], Vec<(&str, &StructuredValue)>) = match &value.kind {
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
        _ => return leaf(path, value),
    };
    for (index, value) in indexed.iter().enumerate() {
        path.push(index.to_string().into());
        visit(value, path, leaf)?;
        path.pop();
    }
    for (key, value) in named {
        path.push(key.into());
        visit(value, path, leaf)?;
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
    // A missing shape is the empty shape, a scalar.
    let dims = match shape {
        Some(shape) if shape.unknown_rank => None,
        Some(shape) => Some(shape.dim.iter().map(|dim| usize::try_from(dim.size).ok()).collect()),
        None => Some(Vec::new()),
    };
    let path = ColumnPath::from_label(&path.join("/"));
    Ok(TensorSpec::new(path, name, DType::from_number(dtype)?, dims))
}
