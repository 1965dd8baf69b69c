// SPDX-License-Identifier: Apache-2.0
//! The rows that a dataset's caller expects, and comparison with signatures and items.

use std::sync::{Arc, OnceLock};

use reverb_base::{Error, Result};
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Signature, StepWindow, Trajectory};

use crate::attrs::PartialShape;
use crate::failure::{Failure, Outcome};

/// The rows that a dataset's caller expects.
pub(crate) struct RowSpecs {
    pub(crate) table: String,
    pub(crate) columns: Vec<(DType, PartialShape)>,
    /// True if a row is one step of an item instead of a whole item.
    pub(crate) timesteps: bool,
    /// Window of an item's steps that is a row; `None` for whole items.
    pub(crate) window: Option<StepWindow>,
    /// Signature of the table, once known; the inner value is `None` if there is none or it is
    /// unavailable.
    pub(crate) signature: OnceLock<Option<Arc<Signature>>>,
}

impl RowSpecs {
    /// Compares the specs with the signature of the table.
    pub(crate) fn check_signature(&self, signature: &Signature) -> Result<()> {
        let table = &self.table;
        let requested = self.columns.len();
        let known = signature.0.len();
        if requested != known {
            return Err(Error::invalid_argument(format!(
                "Inconsistent number of tensors requested from table '{table}'.  Requested {requested} tensors, but \
                 table signature shows {known} tensors.  Table signature: {}",
                signature.describe(),
            )));
        }
        for (i, ((dtype, shape), spec)) in self.columns.iter().zip(&signature.0).enumerate() {
            if *dtype != spec.dtype || !self.are_compatible(shape, &spec.shape) {
                return Err(Error::invalid_argument(format!(
                    "Requested incompatible tensor at flattened index {i} from table '{table}'.  Requested (dtype, \
                     shape): ({}, {}).  Signature (dtype, shape): ({}, {}).  The column is '{}'.  Table signature: {}",
                    dtype.name(),
                    partial_shape_text(shape),
                    spec.dtype.name(),
                    spec.shape_text(),
                    spec.name,
                    signature.describe(),
                )));
            }
        }
        Ok(())
    }

    /// True if some column of the signature's shape has rows of this shape. With a window it may be
    /// a single value of the item, which comes as it is.
    fn are_compatible(&self, row: &PartialShape, of_column: &PartialShape) -> bool {
        if are_compatible(row, of_column) {
            return true;
        }
        let (Some(window), Some(row), Some(of_column)) = (self.window, row, of_column) else {
            return false;
        };
        let ([steps, row @ ..], [_, of_column @ ..]) = (&row[..], &of_column[..]) else {
            return false;
        };
        steps.is_none_or(|steps| steps == window.num_steps() as usize)
            && have_common(row, of_column)
    }

    /// Compares an item with the specs.
    pub(crate) fn check_item(&self, trajectory: &Trajectory) -> Outcome<()> {
        self.check_num_columns(trajectory)?;
        for (i, column) in trajectory.columns().enumerate() {
            let (dtype, shape) = trajectory.column_spec(&column)?;
            self.check_column(i, dtype, &shape, column.squeeze)?;
        }
        Ok(())
    }

    /// Compares a column `[T, ...]` of an item with the specs.
    pub(crate) fn check_column(
        &self,
        index: usize,
        dtype: DType,
        shape: &[usize],
        squeeze: bool,
    ) -> Outcome<()> {
        if squeeze || self.window.is_none() {
            return self.check_row(index, dtype, &shape[usize::from(squeeze)..]);
        }
        self.check_shape(index, dtype, shape, 1)
    }

    /// Compares a row with the specs.
    pub(crate) fn check_row(&self, index: usize, dtype: DType, shape: &[usize]) -> Outcome<()> {
        self.check_shape(index, dtype, shape, 0)
    }

    /// Compares a row with the specs, and all but its first `cut` dimensions with the signature.
    fn check_shape(&self, index: usize, dtype: DType, shape: &[usize], cut: usize) -> Outcome<()> {
        let signature = self.signature.get().and_then(Option::as_ref);
        let name =
            signature.and_then(|signature| signature.0.get(index)).map(|spec| spec.name.as_str());
        let (expected, expected_shape) = &self.columns[index];
        if dtype != *expected || !matches(expected_shape, shape, 0) {
            let expected_shape = partial_shape_text(expected_shape);
            return Err(self.mismatch(index, name, *expected, &expected_shape, dtype, shape));
        }
        if let Some(spec) = signature.and_then(|signature| signature.0.get(index))
            && (dtype != spec.dtype || !matches(&spec.shape, shape, cut))
        {
            let expected_shape = spec.shape_text();
            return Err(self.mismatch(index, name, spec.dtype, &expected_shape, dtype, shape));
        }
        Ok(())
    }

    fn mismatch(
        &self,
        index: usize,
        name: Option<&str>,
        expected: DType,
        expected_shape: &str,
        dtype: DType,
        shape: &[usize],
    ) -> Failure {
        let name = name.filter(|name| !name.is_empty()).map(|name| format!(" (column '{name}')"));
        Failure::invalid_argument(format!(
            "Received incompatible tensor at flattened index {index}{} from table '{}'.  Specification has (dtype, \
             shape): ({}, {expected_shape}).  Tensor has (dtype, shape): ({}, {}).",
            name.unwrap_or_default(),
            self.table,
            expected.name(),
            dtype.name(),
            shape_text(shape),
        ))
    }

    pub(crate) fn check_num_columns(&self, trajectory: &Trajectory) -> Outcome<()> {
        let expected = self.columns.len();
        let found = trajectory.num_columns();
        if expected == found {
            return Ok(());
        }
        Err(Failure::invalid_argument(format!(
            "Inconsistent number of tensors received from table '{}'.  Specification has {expected} tensors, but data \
             coming from the table shows {found} tensors.",
            self.table,
        )))
    }
}

/// True if some shape matches both.
fn are_compatible(a: &PartialShape, b: &PartialShape) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return true };
    have_common(a, b)
}

fn have_common(a: &[Option<usize>], b: &[Option<usize>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_none() || b.is_none() || a == b)
}

/// True if a shape is as expected, whatever its first `cut` dimensions are.
fn matches(expected: &PartialShape, shape: &[usize], cut: usize) -> bool {
    let Some(expected) = expected else { return true };
    let mut dims = expected.iter().zip(shape).skip(cut);
    expected.len() == shape.len() && dims.all(|(dim, &size)| dim.is_none_or(|dim| dim == size))
}

fn partial_shape_text(shape: &PartialShape) -> String {
    match shape {
        None => "<unknown>".to_owned(),
        Some(dims) => {
            shape_text(dims.iter().map(|dim| dim.map_or("?".to_owned(), |dim| dim.to_string())))
        }
    }
}
