// SPDX-License-Identifier: Apache-2.0
//! Columns of a sequence writer's steps, fixed by the first step.

use std::borrow::Cow;
use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::column_names::ColumnNames;
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Shape, Signature};

use crate::writer::capture::cell::{CellSpec, CellValue};

/// A column of the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Path in the step, joined with `/`; empty if the step is no nest.
    pub label: String,
    /// Type and shape of one value of one row.
    pub spec: CellSpec,
}

impl Column {
    /// Name of a column with this label in error texts.
    pub(super) fn shown(label: &str) -> &str {
        if label.is_empty() { "step" } else { label }
    }
}

/// The columns of the first step.
pub(super) fn of_first_step(
    labels: &[String],
    values: &[CellValue<'_>],
    batch_size: Option<usize>,
) -> Result<Vec<Column>> {
    if values.is_empty() {
        return Err(Error::invalid_argument("A step must have at least one value, got none"));
    }
    if labels.len() != values.len() {
        return Err(Error::internal("labels and values must be of the same length"));
    }
    let column = |(label, value): (&String, &CellValue<'_>)| {
        let shape = row_shape(label, value, batch_size)?;
        let spec = CellSpec { dtype: value.dtype(), shape: Shape::from_slice(shape) };
        Ok(Column { label: label.clone(), spec })
    };
    labels.iter().zip(values).map(column).collect()
}

/// Checks that a later step has the same columns as the first.
///
/// # Errors
///
/// `InvalidArgument` with a missing or additional column, or a column whose first dimension is not
/// the number of rows; `SignatureMismatch` for another dtype or shape.
pub(super) fn check(
    columns: &[Column],
    labels: Option<&[String]>,
    values: &[CellValue<'_>],
    batch_size: Option<usize>,
) -> Result<()> {
    if let Some(labels) = labels {
        check_labels(columns, labels)?;
    }
    if columns.len() != values.len() {
        return Err(Error::internal("columns and values must be of the same length"));
    }
    for (Column { label, spec }, value) in columns.iter().zip(values) {
        let shape = row_shape(label, value, batch_size)?;
        if value.dtype() != spec.dtype || *shape != *spec.shape {
            return Err(Error::signature_mismatch(format!(
                "Every step must be like the first: column {} must have dtype {} and shape {}, got dtype {} and \
                 shape {}. Nothing was appended; convert the value and append the step again.",
                Column::shown(label),
                spec.dtype.name(),
                value_shape_text(&spec.shape, batch_size),
                value.dtype().name(),
                shape_text(value.shape()),
            )));
        }
    }
    Ok(())
}

/// Names of the columns.
pub(super) fn names(columns: &[Column]) -> Arc<ColumnNames> {
    let labels: Vec<&str> = columns.iter().map(|column| &*column.label).collect();
    Arc::new(ColumnNames::from_labels(&labels))
}

/// The columns in this order, if given.
pub(super) fn in_order<'c>(columns: &'c [Column], order: Option<&[usize]>) -> Cow<'c, [Column]> {
    match order {
        None => Cow::Borrowed(columns),
        Some(order) => order.iter().map(|&at| columns[at].clone()).collect(),
    }
}

/// Checks the columns against the signature of a table, for items of `length` steps; `None` means
/// any length.
pub(super) fn check_signature(
    columns: &[Column],
    table: &str,
    signature: &Signature,
    length: Option<usize>,
) -> Result<()> {
    let item_shape = |(i, column): (usize, &Column)| -> (DType, Shape) {
        let declared = || signature.0.get(i)?.shape.as_ref()?.first().copied().flatten();
        let length = length.or_else(declared).unwrap_or(1);
        (
            column.spec.dtype,
            std::iter::once(length).chain(column.spec.shape.iter().copied()).collect(),
        )
    };
    let shapes: Vec<(DType, Shape)> = columns.iter().enumerate().map(item_shape).collect();
    let shapes: Vec<(DType, &[usize])> =
        shapes.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
    signature.check(table, &shapes)
}

fn check_labels(columns: &[Column], labels: &[String]) -> Result<()> {
    if columns.iter().map(|column| &column.label).eq(labels) {
        return Ok(());
    }
    let missing = columns.iter().find(|column| !labels.contains(&column.label));
    let surplus = labels.iter().find(|label| columns.iter().all(|column| column.label != **label));
    let problem = match (missing, surplus) {
        (Some(missing), _) => format!("column {} is missing", Column::shown(&missing.label)),
        (None, Some(surplus)) => {
            format!("the first step had no column {}", Column::shown(surplus))
        }
        (None, None) => "it has the same columns in another order".to_owned(),
    };
    Err(Error::invalid_argument(format!(
        "Every step must have the columns of the first, but {problem}. Nothing was appended; give every step all of \
         its columns."
    )))
}

/// The shape of the value of one row.
fn row_shape<'v>(
    label: &str,
    value: &'v CellValue<'_>,
    batch_size: Option<usize>,
) -> Result<&'v [usize]> {
    let Some(batch_size) = batch_size else { return Ok(value.shape()) };
    match value.shape().split_first() {
        Some((&rows, shape)) if rows == batch_size => Ok(shape),
        _ => Err(Error::invalid_argument(format!(
            "Column {} must have shape [batch_size, ...] with batch_size = {batch_size}, got shape {}. Nothing \
             was appended.",
            Column::shown(label),
            shape_text(value.shape()),
        ))),
    }
}

fn value_shape_text(row: &[usize], batch_size: Option<usize>) -> String {
    let dims: Vec<usize> = batch_size.into_iter().chain(row.iter().copied()).collect();
    shape_text(&dims)
}
