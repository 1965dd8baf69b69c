// SPDX-License-Identifier: Apache-2.0
//! Order of items' columns in the signatures of their tables.

use std::sync::Arc;

use parking_lot::Mutex;
use reverb_base::Result;
use reverb_data::Signature;
use reverb_data::column_names::ColumnNames;

/// Number of pairs of structure and table that are remembered; further pairs are compared anew.
const MAX_PAIRS: usize = 64;

/// Column `i` of the signature is column `order[i]` of the item.
pub type ColumnOrder = Arc<[usize]>;

/// Cache: the order of a writer's columns in the signature of each table.
#[derive(Debug)]
pub(crate) struct ColumnOrders {
    matching: Matching,
    known: Mutex<Known>,
}

/// Rule that assigns columns to those of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matching {
    /// Assigns by name if both sides have names; unknown names are an error.
    ByName,
    /// Assigns by position, as in dm-reverb. Different names are logged once for each table.
    ByPosition,
}

/// Result of comparing columns with a signature.
#[derive(Debug)]
struct Pair {
    names: Arc<ColumnNames>,
    signature: Arc<Signature>,
    order: Option<ColumnOrder>,
}

#[derive(Debug, Default)]
struct Known {
    pairs: Vec<Pair>,
    /// Tables with a logged difference of names.
    warned: Vec<Arc<str>>,
}

impl ColumnOrders {
    /// An empty cache for this rule.
    pub(crate) fn new(matching: Matching) -> Self {
        Self { matching, known: Mutex::default() }
    }

    /// Order of the columns with these names in `table`; `None`: unchanged.
    ///
    /// # Errors
    ///
    /// `SignatureMismatch` for another number of columns, or if the rule is `ByName` for names that
    /// the signature lacks, with these names.
    pub(crate) fn of(
        &self,
        table: &str,
        names: &Arc<ColumnNames>,
        signature: Option<&Arc<Signature>>,
    ) -> Result<Option<ColumnOrder>> {
        let Some(signature) = signature else { return Ok(None) };
        let mut known = self.known.lock();
        let is_same = |pair: &&Pair| {
            Arc::ptr_eq(&pair.names, names) && Arc::ptr_eq(&pair.signature, signature)
        };
        if let Some(pair) = known.pairs.iter().find(is_same) {
            return Ok(pair.order.clone());
        }
        let order = match self.matching {
            Matching::ByName => names.by_name(table, signature)?.map(ColumnOrder::from),
            Matching::ByPosition => {
                names.check_number(table, signature)?;
                let warning = names.warning(table, signature);
                if let Some(text) = warning
                    && !known.warned.iter().any(|warned| **warned == *table)
                {
                    known.warned.push(table.into());
                    tracing::warn!("{text}");
                }
                None
            }
        };
        if known.pairs.len() == MAX_PAIRS {
            known.pairs.clear();
        }
        let names = Arc::clone(names);
        let signature = Arc::clone(signature);
        known.pairs.push(Pair { names, signature, order: order.clone() });
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use reverb_base::ErrorKind;
    use reverb_data::column_names::ColumnPath;
    use reverb_data::{DType, TensorSpec};

    use super::*;

    fn names(labels: &[&str]) -> Arc<ColumnNames> {
        Arc::new(ColumnNames::from_labels(labels))
    }

    fn signature(labels: &[&str]) -> Arc<Signature> {
        let spec =
            |label: &&str| TensorSpec::new(ColumnPath::from_label(label), "", DType::Int32, None);
        Arc::new(Signature(labels.iter().map(spec).collect()))
    }

    #[test]
    fn names_decide_or_places_do() {
        let columns = names(&["b", "a"]);
        let wanted = signature(&["a", "b"]);
        let by_name = ColumnOrders::new(Matching::ByName);
        let by_position = ColumnOrders::new(Matching::ByPosition);
        for _ in 0..2 {
            let order = by_name.of("t", &columns, Some(&wanted)).unwrap();
            assert_eq!(order.as_deref(), Some(&[1, 0][..]));
            assert_eq!(by_position.of("t", &columns, Some(&wanted)), Ok(None));
            assert_eq!(by_name.of("t", &columns, None), Ok(None));
            let error = by_name.of("t", &names(&["a", "c"]), Some(&wanted)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SignatureMismatch);
        }
        assert_eq!(by_position.known.lock().warned.len(), 1);
    }

    #[test]
    fn the_same_names_have_another_order_in_another_signature() {
        let (columns, orders) = (names(&["b", "a"]), ColumnOrders::new(Matching::ByName));
        for (wanted, order) in [(["a", "b"], Some(&[1, 0][..])), (["b", "a"], None)] {
            let found = orders.of("t", &columns, Some(&signature(&wanted))).unwrap();
            assert_eq!(found.as_deref(), order);
        }
    }

    #[test]
    fn each_table_has_its_own_order_and_its_own_warning() {
        let orders = ColumnOrders::new(Matching::ByPosition);
        for table in ["t", "u", "t"] {
            for _ in 0..=MAX_PAIRS {
                let columns = names(&["x", "y"]);
                assert_eq!(orders.of(table, &columns, Some(&signature(&["a", "b"]))), Ok(None));
            }
        }
        let known = orders.known.lock();
        assert_eq!(known.warned.iter().map(|table| &**table).collect::<Vec<_>>(), ["t", "u"]);
        assert!(known.pairs.len() <= MAX_PAIRS);
    }
}
