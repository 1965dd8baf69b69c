// SPDX-License-Identifier: Apache-2.0
//! The dtypes and shapes of the columns of a table's items, flattened.

use crate::column_names::{ColumnNames, ColumnPath};
use crate::dtype::DType;
use crate::tensor::shape_text;
use reverb_base::error::{Error, Result};

/// One column's declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Path in the nest.
    pub path: ColumnPath,
    /// Path joined with `/`, followed by the spec's own name if that differs.
    pub name: String,
    /// Type of the elements.
    pub dtype: DType,
    /// Dimensions, `None` where unknown; `None` altogether if even the rank is unknown.
    pub shape: Option<Vec<Option<usize>>>,
}

impl TensorSpec {
    /// Declares a column at `path`, whose spec has the name `own_name` or none.
    pub fn new(
        path: ColumnPath,
        own_name: &str,
        dtype: DType,
        shape: Option<Vec<Option<usize>>>,
    ) -> Self {
        let mut name = path.to_string();
        if !own_name.is_empty() && name.rsplit('/').next() != Some(own_name) && name != own_name {
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(own_name);
        }
        Self { path, name, dtype, shape }
    }

    /// Returns true if `shape` is compatible, by TensorFlow's rule for partial shapes.
    pub fn shape_matches(&self, shape: &[usize]) -> bool {
        self.shape.as_ref().is_none_or(|dims| {
            dims.len() == shape.len()
                && dims.iter().zip(shape).all(|(dim, &size)| dim.is_none_or(|dim| dim == size))
        })
    }

    /// The declared shape as TensorFlow prints it.
    pub fn shape_text(&self) -> String {
        match &self.shape {
            None => "<unknown>".to_owned(),
            Some(dims) => {
                shape_text(dims.iter().map(|dim| dim.map_or("?".to_owned(), |d| d.to_string())))
            }
        }
    }
}

/// The columns of a table, in flat order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature(pub Vec<TensorSpec>);

impl Signature {
    /// Name of the column at a position, or else the position.
    pub fn name_of(&self, column: u32) -> String {
        self.0.get(column as usize).map_or_else(|| column.to_string(), |spec| spec.name.clone())
    }

    /// Bytes of the values of an item; `None` if a dimension is unknown, or a column has strings.
    pub fn value_bytes(&self) -> Option<u64> {
        self.0.iter().try_fold(0u64, |sum, spec| {
            let is_fixed = spec.dtype != DType::String;
            let element = is_fixed.then_some(spec.dtype.size() as u64)?;
            let bytes =
                spec.shape.as_ref()?.iter().try_fold(element, |bytes, dim| {
                    bytes.checked_mul(u64::try_from((*dim)?).ok()?)
                })?;
            sum.checked_add(bytes)
        })
    }

    /// Checks the columns of an item for `table`.
    ///
    /// # Errors
    ///
    /// `SignatureMismatch` that lists both sides and names the first column that differs.
    pub fn check(&self, table: &str, columns: &[(DType, &[usize])]) -> Result<()> {
        self.check_by(table, columns, TensorSpec::shape_matches)
    }

    /// Like `check`, with another rule for shapes.
    ///
    /// # Errors
    ///
    /// Those of `check`.
    pub fn check_by(
        &self,
        table: &str,
        columns: &[(DType, &[usize])],
        shape_matches: impl Fn(&TensorSpec, &[usize]) -> bool,
    ) -> Result<()> {
        let offender = if columns.len() == self.0.len() {
            let differs = |(spec, (dtype, shape)): &(&TensorSpec, &(DType, &[usize]))| {
                spec.dtype != *dtype || !shape_matches(spec, shape)
            };
            match self.0.iter().zip(columns).find(differs) {
                None => return Ok(()),
                Some((spec, (dtype, shape))) => format!(
                    "column {} must have dtype {} and shape {}, got dtype {} and shape {}",
                    spec.name,
                    spec.dtype.name(),
                    spec.shape_text(),
                    dtype.name(),
                    shape_text(shape.iter()),
                ),
            }
        } else {
            format!(
                "the trajectory has {} columns but the table signature has {}",
                columns.len(),
                self.0.len()
            )
        };
        let got: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(i, (dtype, shape))| {
                // With another number of columns, names by position would be wrong.
                let spec = self.0.get(i).filter(|_| columns.len() == self.0.len());
                let name = spec.map_or("", |spec| spec.name.as_str());
                entry(i, name, *dtype, &shape_text(shape.iter()))
            })
            .collect();
        Err(Error::signature_mismatch(format!(
            "Unable to create an item in table '{table}': {offender}. Trajectory: {}. Table signature: {}",
            got.join(", "),
            self.describe(),
        )))
    }

    /// The first column that differs from that of another signature, as texts of both; `None` if
    /// all columns are the same.
    pub fn first_difference(&self, other: &Self) -> Option<(String, String)> {
        let text = |signature: &Self, index: usize| {
            signature.0.get(index).map_or_else(
                || "no other column".to_owned(),
                |spec: &TensorSpec| {
                    format!("column {} {} {}", spec.name, spec.dtype.name(), spec.shape_text())
                },
            )
        };
        let length = self.0.len().max(other.0.len());
        let index = (0..length).find(|&index| self.0.get(index) != other.0.get(index))?;
        Some((text(self, index), text(other, index)))
    }

    /// The names of the columns.
    pub fn names(&self) -> ColumnNames {
        ColumnNames(self.0.iter().map(|spec| spec.path.clone()).collect())
    }

    /// All columns in one line.
    pub fn describe(&self) -> String {
        let entries: Vec<String> = self
            .0
            .iter()
            .enumerate()
            .map(|(i, spec)| entry(i, &spec.name, spec.dtype, &spec.shape_text()))
            .collect();
        entries.join(", ")
    }
}

fn entry(index: usize, name: &str, dtype: DType, shape: &str) -> String {
    format!("{index}: Tensor<name: '{name}', dtype: {}, shape: {shape}>", dtype.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dtype: DType, shape: Option<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec::new(ColumnPath::default(), name, dtype, shape)
    }

    #[test]
    fn no_name_is_said_twice() {
        let name = |path: &str, own: &str| {
            TensorSpec::new(ColumnPath::from_label(path), own, DType::Int32, None).name
        };
        assert_eq!(name("", ""), "");
        assert_eq!(name("", "obs"), "obs");
        assert_eq!(name("obs", "obs"), "obs");
        assert_eq!(name("step/obs", "obs"), "step/obs");
        assert_eq!(name("step/obs", "step/obs"), "step/obs");
        assert_eq!(name("step/obs", "image"), "step/obs/image");
    }

    #[test]
    fn the_first_column_that_differs_is_named() {
        let of = |dtype| Signature(vec![spec("a", DType::Int32, None), spec("b", dtype, None)]);
        let (one, other) = (of(DType::Float32), of(DType::Float64));
        let texts = |here: &str, there: &str| Some((here.to_owned(), there.to_owned()));
        let expected = texts("column b float <unknown>", "column b double <unknown>");
        assert_eq!(one.first_difference(&other), expected);
        assert_eq!(one.first_difference(&one), None);
        let shorter = Signature(one.0[..1].to_vec());
        let expected = texts("column b float <unknown>", "no other column");
        assert_eq!(one.first_difference(&shorter), expected);
    }

    #[test]
    fn unknown_dimensions_match_anything() {
        assert!(spec("a", DType::Int32, None).shape_matches(&[1, 2, 3]));
        assert!(spec("a", DType::Int32, Some(vec![None, Some(2)])).shape_matches(&[9, 2]));
        assert!(!spec("a", DType::Int32, Some(vec![None, Some(2)])).shape_matches(&[9, 3]));
        assert!(!spec("a", DType::Int32, Some(vec![None])).shape_matches(&[9, 3]));
    }

    #[test]
    fn a_mismatch_names_the_column_and_both_sides() {
        let signature = Signature(vec![spec("obs/x", DType::Float32, Some(vec![None, Some(2)]))]);
        assert!(signature.check("t", &[(DType::Float32, &[5, 2])]).is_ok());
        let error = signature.check("t", &[(DType::Float64, &[5, 2])]).unwrap_err();
        assert!(error.message().contains("column obs/x must have dtype float and shape [?,2], got dtype double and shape [5,2]"), "{error}");
        let error = signature.check("t", &[]).unwrap_err();
        assert!(
            error.message().contains("the trajectory has 0 columns but the table signature has 1")
        );
    }
}
