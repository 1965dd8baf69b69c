// SPDX-License-Identifier: Apache-2.0
//! Computation of priorities of new items.

use reverb_base::{Error, Result};
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Tensor};
use reverb_wire::generated::Priority as Proto;
use reverb_wire::generated::priority::{ConstantPriorityFn, PriorityFn, TdError};

use crate::writer::capture::cell::CellSpec;

/// The priority of the items of a pattern.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Priority {
    /// Same priority for all items.
    Constant(f64),
    /// `weight * max|e| + (1 - weight) * mean|e|` over the item's errors `e`.
    TdError {
        /// Weight of the maximum.
        weight: f64,
        /// Index of the pattern node with the errors.
        node: usize,
    },
}

impl Priority {
    /// Translates the priority of a pattern; `leaves` are the leaves of its nodes. The default is
    /// 1.
    pub(super) fn new(proto: Option<&Proto>, leaves: &[i32]) -> Self {
        match proto.and_then(|proto| proto.priority_fn) {
            None => Self::Constant(1.0),
            Some(PriorityFn::ConstantFn(ConstantPriorityFn { value })) => Self::Constant(value),
            Some(PriorityFn::TdError(TdError { max_priority_weight, flat_source_index })) => {
                match leaves.iter().rposition(|&leaf| leaf == flat_source_index) {
                    Some(node) => Self::TdError { weight: max_priority_weight, node },
                    None => Self::Constant(0.0),
                }
            }
        }
    }
}

/// `weight * max|e| + (1 - weight) * mean|e|`, for at least one error. If one is NaN, the result is
/// NaN.
pub(super) fn td_error(weight: f64, errors: impl IntoIterator<Item = f64>) -> f64 {
    let mut max = 0.0f64;
    let mut sum = 0.0;
    let mut count = 0u32;
    for error in errors {
        let error = error.abs();
        max = max.max(error);
        sum += error;
        count += 1;
    }
    weight * max + (1.0 - weight) * sum / f64::from(count.max(1))
}

/// Checks that a column can hold temporal difference errors; `label` names it in the error.
pub(super) fn check_td_error_column(spec: &CellSpec, label: impl FnOnce() -> String) -> Result<()> {
    let known = matches!(spec.dtype, DType::Float32 | DType::Float64 | DType::Int32 | DType::Int64);
    if known && Tensor::num_elements(&spec.shape) == Some(1) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "A td_error priority needs one element of dtype float, double, int32 or int64 per step, got dtype {} and \
         shape {} in column {}.",
        spec.dtype.name(),
        shape_text(&spec.shape),
        label(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn td(leaf: i32) -> Proto {
        let function = TdError { max_priority_weight: 0.9, flat_source_index: leaf };
        Proto { priority_fn: Some(PriorityFn::TdError(function)) }
    }

    #[test]
    fn the_last_node_that_reads_the_errors_counts() {
        assert_eq!(Priority::new(None, &[0]), Priority::Constant(1.0));
        assert_eq!(Priority::new(Some(&Proto::default()), &[0]), Priority::Constant(1.0));
        let node = |leaves: &[i32]| Priority::new(Some(&td(2)), leaves);
        assert_eq!(node(&[2, 2, 0]), Priority::TdError { weight: 0.9, node: 1 });
        assert_eq!(node(&[0, 1]), Priority::Constant(0.0), "the pattern does not read them");
    }

    #[test]
    fn the_maximum_and_the_mean_are_weighed() {
        assert!((td_error(0.9, [1.0, -3.0]) - 2.9).abs() < 1e-12);
        assert!((td_error(0.0, [1.0, -3.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((td_error(1.0, [1.0, -3.0, 2.0]) - 3.0).abs() < 1e-12);
        assert!(td_error(1.0, [1.0, f64::NAN]).is_nan());
    }
}
