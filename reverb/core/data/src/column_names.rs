// SPDX-License-Identifier: Apache-2.0
//! Names of an item's columns, and their order in the signature of its table.

use std::fmt;

use crate::signature::Signature;
use reverb_base::error::{Error, Result};

/// One key of a column's path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathKey {
    /// A key of a dictionary, or a field of a named tuple.
    Name(Box<str>),
    /// An index of a list or a tuple, which has no names.
    Index(usize),
}

impl PathKey {
    /// Returns true if both may be the same field: an index may stand for any name.
    fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(name), Self::Name(other)) => name == other,
            _ => true,
        }
    }
}

/// Path of a column in its nest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ColumnPath(pub Vec<PathKey>);

impl ColumnPath {
    /// Parses a label: keys, joined with `/`. A key of digits counts as an index, because labels do
    /// not distinguish them.
    pub fn from_label(label: &str) -> Self {
        let key = |key: &str| match key.parse() {
            Ok(index) => PathKey::Index(index),
            Err(_) => PathKey::Name(key.into()),
        };
        if label.is_empty() { Self::default() } else { Self(label.split('/').map(key).collect()) }
    }

    fn may_be(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| a.may_be(b))
    }

    fn has_name(&self) -> bool {
        self.0.iter().any(|key| matches!(key, PathKey::Name(_)))
    }
}

/// Keys, joined with `/`.
impl fmt::Display for ColumnPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, key) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "/" })?;
            match key {
                PathKey::Name(name) => f.write_str(name)?,
                PathKey::Index(index) => write!(f, "{index}")?,
            }
        }
        Ok(())
    }
}

/// Paths of all columns of a nest, in flat order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnNames(pub Vec<ColumnPath>);

/// Correspondence of columns to those of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnOrder {
    /// In the same order; also if one side has no names.
    Same,
    /// By name: column `i` of the signature is column `order[i]` of the nest.
    Other(Vec<usize>),
    /// Some column of the signature has no counterpart of its name.
    Foreign,
}

impl ColumnNames {
    /// Names of columns with these labels; see [`ColumnPath::from_label`].
    pub fn from_labels<L: AsRef<str>>(labels: &[L]) -> Self {
        Self(labels.iter().map(|label| ColumnPath::from_label(label.as_ref())).collect())
    }

    /// The names in another order: name `i` is that at `order[i]`.
    #[must_use]
    pub fn in_order(&self, order: Option<&[usize]>) -> Self {
        match order {
            None => self.clone(),
            Some(order) => Self(order.iter().filter_map(|&at| self.0.get(at).cloned()).collect()),
        }
    }

    /// Name of the column at a position; the position if it has none.
    pub fn label(&self, index: usize) -> String {
        let name = self.0.get(index).map(ToString::to_string);
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| index.to_string())
    }

    /// Compares the names with those of a signature.
    pub fn order_in(&self, signature: &Signature) -> ColumnOrder {
        let wanted = || signature.0.iter().map(|spec| &spec.path);
        // A different number of columns has an error of its own.
        let is_comparable = self.0.len() == signature.0.len() && self.have_names(signature);
        if !is_comparable || self.0.iter().zip(wanted()).all(|(path, want)| path.may_be(want)) {
            return ColumnOrder::Same;
        }
        let order: Option<Vec<usize>> =
            wanted().map(|want| self.0.iter().position(|path| path == want)).collect();
        order.map_or(ColumnOrder::Foreign, ColumnOrder::Other)
    }

    /// True if some columns of both sides have names.
    fn have_names(&self, signature: &Signature) -> bool {
        self.0.iter().any(ColumnPath::has_name)
            && signature.0.iter().any(|spec| spec.path.has_name())
    }

    /// Order of the columns in the signature of `table`, for tables that match by name.
    ///
    /// # Errors
    ///
    /// `SignatureMismatch` with the names that only one side has.
    pub fn by_name(&self, table: &str, signature: &Signature) -> Result<Option<Vec<usize>>> {
        self.check_number(table, signature)?;
        match self.order_in(signature) {
            ColumnOrder::Same => Ok(None),
            ColumnOrder::Other(order) => Ok(Some(order)),
            ColumnOrder::Foreign => Err(Error::signature_mismatch(format!(
                "Unable to create an item in table '{table}': {}. It has the columns {self}, and the table signature \
                 has {}. Give the columns the names of the signature.",
                self.difference(signature),
                signature.names(),
            ))),
        }
    }

    /// Checks that there are as many columns as in the signature of `table`, if both have names.
    ///
    /// # Errors
    ///
    /// `SignatureMismatch` with the names that only one side has.
    pub fn check_number(&self, table: &str, signature: &Signature) -> Result<()> {
        if self.0.len() == signature.0.len() || !self.have_names(signature) {
            return Ok(());
        }
        Err(Error::signature_mismatch(format!(
            "Unable to create an item in table '{table}': the trajectory has {} columns but the \
             table signature has {}: {}.",
            self.0.len(),
            signature.0.len(),
            self.difference(signature),
        )))
    }

    /// The names that only one side has.
    fn difference(&self, signature: &Signature) -> String {
        self.difference_from(&signature.names(), "the trajectory", "the signature")
    }

    /// The names that only these or only `others` have, and which side lacks them; empty if none.
    pub fn difference_from(&self, others: &Self, this_side: &str, other_side: &str) -> String {
        let without = |these: &Self, those: &Self| {
            Self(these.0.iter().filter(|name| !those.0.contains(name)).cloned().collect())
        };
        let foreign = without(self, others);
        let missing = without(others, self);
        let mut differences = Vec::new();
        if !foreign.0.is_empty() {
            differences.push(format!("{other_side} lacks {foreign}"));
        }
        if !missing.0.is_empty() {
            differences.push(format!("{this_side} lacks {missing}"));
        }
        differences.join(", and ")
    }

    /// Warning for columns that are stored by position under other names; `None` if there are none.
    pub fn warning(&self, table: &str, signature: &Signature) -> Option<String> {
        let advice = match self.order_in(signature) {
            ColumnOrder::Same => return None,
            ColumnOrder::Other(_) => "Give the columns in the order of the signature",
            ColumnOrder::Foreign => "Give the columns the names of the signature",
        };
        let mut pairs = self.0.iter().zip(&signature.0).filter(|(path, spec)| **path != spec.path);
        let (path, spec) = pairs.next()?;
        Some(format!(
            "Items of table '{table}' are written with the columns {self}, and the table signature \
             has {}. Columns are matched by position, as dm-reverb does, so {} is stored as {}. \
             {advice}.",
            signature.names(),
            path,
            spec.path,
        ))
    }
}

/// All paths, in brackets.
impl fmt::Display for ColumnNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DType, TensorSpec};

    fn names(labels: &[&str]) -> ColumnNames {
        ColumnNames::from_labels(labels)
    }

    fn signature(paths: &[&str]) -> Signature {
        let spec =
            |text: &&str| TensorSpec::new(ColumnPath::from_label(text), "", DType::Int32, None);
        Signature(paths.iter().map(spec).collect())
    }

    fn order(columns: &[&str], of_table: &[&str]) -> ColumnOrder {
        names(columns).order_in(&signature(of_table))
    }

    #[test]
    fn names_that_agree_keep_their_places() {
        assert_eq!(order(&["a", "b/c"], &["a", "b/c"]), ColumnOrder::Same);
    }

    #[test]
    fn an_index_is_any_name() {
        assert_eq!(order(&["0", "1"], &["b", "a"]), ColumnOrder::Same);
        assert_eq!(order(&["b", "a"], &["0", "1"]), ColumnOrder::Same);
        assert_eq!(order(&["obs/0", "obs/1"], &["obs/left", "obs/right"]), ColumnOrder::Same);
        assert_eq!(order(&["0", "1/x"], &["obs", "extra/x"]), ColumnOrder::Same);
        assert_eq!(order(&["0", "1/x"], &["obs", "extra/y"]), ColumnOrder::Foreign);
    }

    #[test]
    fn names_in_another_order_are_found() {
        assert_eq!(order(&["obs", "next"], &["next", "obs"]), ColumnOrder::Other(vec![1, 0]));
        assert_eq!(
            order(&["c", "a/x", "b"], &["a/x", "b", "c"]),
            ColumnOrder::Other(vec![1, 2, 0])
        );
    }

    #[test]
    fn other_names_are_foreign() {
        assert_eq!(order(&["state", "state_next"], &["next_obs", "obs"]), ColumnOrder::Foreign);
        assert_eq!(order(&["a", "b"], &["a", "c"]), ColumnOrder::Foreign);
        assert_eq!(order(&["a"], &["a/b"]), ColumnOrder::Foreign);
    }

    #[test]
    fn another_number_of_columns_is_not_compared() {
        assert_eq!(order(&["a"], &["b", "c"]), ColumnOrder::Same);
    }

    #[test]
    fn texts_have_both_lists() {
        let (columns, of_table) = (names(&["obs", "next/1"]), signature(&["next/1", "obs"]));
        let warning = columns.warning("t", &of_table).unwrap();
        for part in ["[obs, next/1]", "[next/1, obs]", "obs is stored as next/1", "order"] {
            assert!(warning.contains(part), "{warning}");
        }
        let error = names(&["x", "y"]).by_name("t", &of_table).unwrap_err();
        for part in ["'t'", "signature lacks [x, y]", "trajectory lacks [next/1, obs]"] {
            assert!(error.message().contains(part), "{error}");
        }
        assert_eq!(names(&["next/1", "obs"]).warning("t", &of_table), None);
    }

    #[test]
    fn another_number_names_the_columns_of_one_side() {
        let error = names(&["a", "c"]).check_number("t", &signature(&["a", "b", "d"])).unwrap_err();
        let told = "2 columns but the table signature has 3: the signature lacks [c], and the \
                    trajectory lacks [b, d].";
        assert!(error.message().ends_with(told), "{error}");
        for without_names in [names(&["0", "1"]), ColumnNames::default()] {
            assert_eq!(without_names.check_number("t", &signature(&["a"])), Ok(()));
        }
    }

    proptest! {
        /// The order takes each column of the signature from the column of its name.
        #[test]
        fn an_order_is_a_permutation_by_name(shuffled in Just(vec!["a", "b", "c/x", "c/y", "d"]).prop_shuffle()) {
            let of_table = ["a", "b", "c/x", "c/y", "d"];
            match order(&shuffled, &of_table) {
                ColumnOrder::Same => prop_assert_eq!(shuffled, of_table),
                ColumnOrder::Other(order) => {
                    let taken: Vec<&str> = order.iter().map(|&at| shuffled[at]).collect();
                    prop_assert_eq!(taken, of_table);
                }
                ColumnOrder::Foreign => prop_assert!(false, "{:?}", shuffled),
            }
        }
    }
}
