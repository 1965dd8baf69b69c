// SPDX-License-Identifier: Apache-2.0
//! Values that conditions and priorities read, kept as they are appended.
//!
//! Reading them back from the cells would be slow: by then the block may be compressed, and a
//! priority reads many cells per step.

use std::collections::VecDeque;

use reverb_data::{DType, Tensor};

use crate::writer::capture::cell::CellValue;

/// The value of a cell of one element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// Any integer type, or bool. Unsigned 64-bit values wrap.
    Integer(i64),
    /// 32 or 64-bit floating type.
    Float(f64),
}

impl Number {
    /// The value; `None` if there is not exactly one element, or its type is not numeric.
    pub(super) fn from_value(value: &CellValue<'_>) -> Option<Self> {
        let CellValue::Bytes { dtype, shape, bytes } = value else { return None };
        if Tensor::num_elements(shape) != Some(1) {
            return None;
        }
        Some(match dtype {
            DType::Bool | DType::UInt8 => Self::Integer(u8::from_le_bytes(fixed(bytes)?).into()),
            DType::Int8 => Self::Integer(i8::from_le_bytes(fixed(bytes)?).into()),
            DType::Int16 => Self::Integer(i16::from_le_bytes(fixed(bytes)?).into()),
            DType::UInt16 => Self::Integer(u16::from_le_bytes(fixed(bytes)?).into()),
            DType::Int32 => Self::Integer(i32::from_le_bytes(fixed(bytes)?).into()),
            DType::UInt32 => Self::Integer(u32::from_le_bytes(fixed(bytes)?).into()),
            DType::Int64 | DType::UInt64 => Self::Integer(i64::from_le_bytes(fixed(bytes)?)),
            DType::Float32 => Self::Float(f32::from_le_bytes(fixed(bytes)?).into()),
            DType::Float64 => Self::Float(f64::from_le_bytes(fixed(bytes)?)),
            _ => return None,
        })
    }

    /// The value for conditions: an integer, truncated to 32 bits.
    pub(super) fn as_condition_value(self) -> Option<i32> {
        match self {
            Self::Integer(value) => Some(value as i32),
            Self::Float(_) => None,
        }
    }

    /// The value for priorities.
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

/// The last values of a column, by step of the history.
#[derive(Debug)]
pub(super) struct NumberHistory {
    values: VecDeque<(u64, Number)>,
    keep: usize,
}

impl NumberHistory {
    /// An empty history of the last `keep` values.
    pub(super) fn new(keep: usize) -> Self {
        Self { values: VecDeque::new(), keep }
    }

    /// Adds the value of a step, which must be later than all others.
    pub(super) fn push(&mut self, step: u64, number: Number) {
        if self.values.len() == self.keep {
            self.values.pop_front();
        }
        self.values.push_back((step, number));
    }

    /// The value of a step.
    pub(super) fn get(&self, step: u64) -> Option<Number> {
        let at = self.values.binary_search_by_key(&step, |(step, _)| *step).ok()?;
        self.values.get(at).map(|(_, number)| *number)
    }

    /// Removes all values.
    pub(super) fn clear(&mut self) {
        self.values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Number> {
        Number::from_value(&CellValue::Bytes { dtype, shape, bytes })
    }

    #[test]
    fn numbers_of_every_type() {
        for (dtype, bytes, expected) in [
            (DType::Bool, vec![1], Number::Integer(1)),
            (DType::UInt8, vec![255], Number::Integer(255)),
            (DType::Int8, vec![255], Number::Integer(-1)),
            (DType::Int16, (-2i16).to_le_bytes().to_vec(), Number::Integer(-2)),
            (DType::UInt16, 65_535u16.to_le_bytes().to_vec(), Number::Integer(65_535)),
            (DType::Int32, (-3i32).to_le_bytes().to_vec(), Number::Integer(-3)),
            (DType::UInt32, u32::MAX.to_le_bytes().to_vec(), Number::Integer(u32::MAX.into())),
            (DType::Int64, (-4i64).to_le_bytes().to_vec(), Number::Integer(-4)),
            (DType::UInt64, 5u64.to_le_bytes().to_vec(), Number::Integer(5)),
            (DType::Float32, 1.5f32.to_le_bytes().to_vec(), Number::Float(1.5)),
            (DType::Float64, (-2.5f64).to_le_bytes().to_vec(), Number::Float(-2.5)),
        ] {
            assert_eq!(number(dtype, &[], &bytes), Some(expected), "{dtype:?}");
            assert_eq!(number(dtype, &[1, 1], &bytes), Some(expected), "one element of any rank");
        }
        assert_eq!(number(DType::Int8, &[2], &[1, 2]), None, "two elements");
        assert_eq!(number(DType::Int8, &[0], &[]), None, "no element");
        assert_eq!(number(DType::Float16, &[], &[0, 0]), None);
        let text = CellValue::Strings { shape: &[], strings: vec![b"1".to_vec()] };
        assert_eq!(Number::from_value(&text), None);
    }

    #[test]
    fn conditions_see_integers_truncated_to_32_bits() {
        assert_eq!(Number::Integer((1 << 32) + 5).as_condition_value(), Some(5));
        assert_eq!(Number::Integer(i64::from(u32::MAX)).as_condition_value(), Some(-1));
        assert_eq!(Number::Float(1.0).as_condition_value(), None);
    }

    #[test]
    fn values_are_found_by_step_until_they_are_too_old() {
        let mut history = NumberHistory::new(2);
        for step in [0, 2, 5] {
            history.push(step, Number::Integer(step as i64));
        }
        assert_eq!(history.get(0), None);
        assert_eq!(history.get(2), Some(Number::Integer(2)));
        assert_eq!(history.get(3), None);
        history.clear();
        assert_eq!(history.get(5), None);
    }
}
