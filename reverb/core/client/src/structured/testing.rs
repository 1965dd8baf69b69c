// SPDX-License-Identifier: Apache-2.0
//! Short constructors of configs and steps for tests.

use reverb_data::{DType, TensorData};
use reverb_wire::generated::condition::{Cmp, Left, ModuloEq};
use reverb_wire::generated::pattern_node::{StartOrNone, StepOrNone, StopOrNone};
use reverb_wire::generated::priority::{PriorityFn, TdError};
use reverb_wire::generated::{Condition, PatternNode, Priority, StructuredWriterConfig};

use crate::writer::capture::cell::{CellRef, CellValue};

/// `x[stop]`
pub(super) fn at(leaf: i32, stop: i32) -> PatternNode {
    PatternNode {
        flat_source_index: leaf,
        stop_or_none: Some(StopOrNone::Stop(stop)),
        ..PatternNode::default()
    }
}

/// `x[start:stop:step]`
pub(super) fn slice(leaf: i32, start: i32, stop: Option<i32>, step: Option<i32>) -> PatternNode {
    PatternNode {
        flat_source_index: leaf,
        start_or_none: Some(StartOrNone::Start(start)),
        stop_or_none: stop.map(StopOrNone::Stop),
        step_or_none: step.map(StepOrNone::Step),
    }
}

/// `x[start:]`
pub(super) fn last(leaf: i32, start: i32) -> PatternNode {
    slice(leaf, start, None, None)
}

pub(super) fn config(
    table: &str,
    flat: Vec<PatternNode>,
    conditions: Vec<Condition>,
) -> StructuredWriterConfig {
    StructuredWriterConfig {
        flat,
        pattern_structure: None,
        table: table.to_owned(),
        priority: None,
        conditions,
        removal_priority: None,
    }
}

fn condition(left: Left, cmp: Cmp) -> Condition {
    Condition { inverse: false, left: Some(left), cmp: Some(cmp) }
}

/// `buffer_length >= steps`
pub(super) fn buffer_length(steps: i32) -> Condition {
    condition(Left::BufferLength(true), Cmp::Ge(steps))
}

/// `steps_since_applied >= steps`
pub(super) fn steps_since_applied(steps: i32) -> Condition {
    condition(Left::StepsSinceApplied(true), Cmp::Ge(steps))
}

/// `step_index % mod == eq`
pub(super) fn step_index_modulo(r#mod: i32, eq: i32) -> Condition {
    condition(Left::StepIndex(true), Cmp::ModEq(ModuloEq { r#mod, eq }))
}

/// `step_index == eq`
pub(super) fn step_index(eq: i32) -> Condition {
    condition(Left::StepIndex(true), Cmp::Eq(eq))
}

pub(super) fn is_end_episode() -> Condition {
    condition(Left::IsEndEpisode(true), Cmp::Eq(1))
}

/// `data[leaf] == eq`
pub(super) fn data(leaf: i32, eq: i32) -> Condition {
    condition(Left::FlatSourceIndex(leaf), Cmp::Eq(eq))
}

pub(super) fn not(condition: Condition) -> Condition {
    Condition { inverse: !condition.inverse, ..condition }
}

pub(super) fn td_error_priority(weight: f64, leaf: i32) -> Priority {
    let function = TdError { max_priority_weight: weight, flat_source_index: leaf };
    Priority { priority_fn: Some(PriorityFn::TdError(function)) }
}

/// The value of a cell of one element as its little-endian bytes.
pub(super) fn int32(bytes: &[u8; 4]) -> CellValue<'_> {
    CellValue::Bytes { dtype: DType::Int32, shape: &[], bytes }
}

/// Reads a cell of dtype int32 and shape `[]`.
pub(super) fn read_int32(cell: &CellRef) -> i32 {
    match cell.read().unwrap().data {
        TensorData::Bytes(bytes) => i32::from_le_bytes(bytes.try_into().unwrap()),
        TensorData::Strings(_) => panic!("not an int32"),
    }
}
