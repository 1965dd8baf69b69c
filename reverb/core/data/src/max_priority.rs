// SPDX-License-Identifier: Apache-2.0
//! Priority of a new item that is to be as large as the largest of its table.

/// Stands for the largest priority of the table, wherever the priority of a new item is expected.
///
/// It is a NaN, because every other number is a priority for some selector. Its payload
/// distinguishes it from the NaN of a wrong computation, even after a conversion to `f32`.
pub const MAX_PRIORITY: f64 = f64::from_bits(0x7ffe_5a40_0000_0000);

/// Returns true if a priority is [`MAX_PRIORITY`].
#[inline]
pub fn is_max_priority(priority: f64) -> bool {
    priority.to_bits() == MAX_PRIORITY.to_bits()
}

/// Returns true if a number can be the priority of a new item of some table.
#[inline]
pub fn is_priority(priority: f64) -> bool {
    !priority.is_nan() || is_max_priority(priority)
}

/// Priorities of a new item, for the sampler and for the remover.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemPriority {
    /// The priority, or [`MAX_PRIORITY`].
    pub value: f64,
    /// Priority for the remover, if it differs.
    pub removal: Option<f64>,
}

impl ItemPriority {
    /// Returns true if neither is NaN.
    #[inline]
    pub fn is_valid(&self) -> bool {
        is_priority(self.value) && !self.removal.is_some_and(f64::is_nan)
    }
}

impl From<f64> for ItemPriority {
    fn from(value: f64) -> Self {
        Self { value, removal: None }
    }
}

/// Definition of a table's largest priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaxPriority {
    /// Largest priority of the items present.
    #[default]
    Present,
    /// Largest priority that any item had since the table was created or reset.
    Ever,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_priority_is_told_from_other_nans() {
        assert!(MAX_PRIORITY.is_nan() && is_max_priority(MAX_PRIORITY));
        // The compiler may compute another NaN than the processor.
        assert!(is_max_priority(f64::from(std::hint::black_box(MAX_PRIORITY) as f32)));
        for other in [f64::NAN, -f64::NAN, f64::INFINITY, 1.0, f64::INFINITY - f64::INFINITY] {
            assert!(!is_max_priority(other));
        }
        assert!(is_priority(MAX_PRIORITY) && is_priority(1.0) && !is_priority(f64::NAN));
    }
}
