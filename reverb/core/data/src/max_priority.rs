// SPDX-License-Identifier: Apache-2.0
//! The priority of a new item that shall be as large as any other of its table.

/// Stands for the largest priority of the table, wherever the priority of a new item is expected.
///
/// It is a NaN, because every other number is a priority for some selector. Its payload tells it
/// from the NaN of a wrong computation, also after it was a `f32`.
pub const MAX_PRIORITY: f64 = f64::from_bits(0x7ffe_5a40_0000_0000);

/// Whether a priority is [`MAX_PRIORITY`].
pub fn is_max_priority(priority: f64) -> bool {
    priority.to_bits() == MAX_PRIORITY.to_bits()
}

/// Whether a number can be the priority of a new item of some table.
pub fn is_priority(priority: f64) -> bool {
    !priority.is_nan() || is_max_priority(priority)
}

/// The priority of a new item, and what the remover goes by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemPriority {
    /// The priority, or [`MAX_PRIORITY`].
    pub value: f64,
    /// What the remover goes by instead.
    pub removal: Option<f64>,
}

impl ItemPriority {
    /// Whether neither is NaN.
    pub fn is_valid(&self) -> bool {
        is_priority(self.value) && !self.removal.is_some_and(f64::is_nan)
    }
}

impl From<f64> for ItemPriority {
    fn from(value: f64) -> Self {
        Self { value, removal: None }
    }
}

/// Which priority is the largest one of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaxPriority {
    /// The largest one of the items that are there.
    #[default]
    Present,
    /// The largest one that any item had since the table was made or reset.
    Ever,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_priority_is_told_from_other_nans() {
        assert!(MAX_PRIORITY.is_nan() && is_max_priority(MAX_PRIORITY));
        // What the compiler computes may be another NaN than what the processor does.
        assert!(is_max_priority(f64::from(std::hint::black_box(MAX_PRIORITY) as f32)));
        for other in [f64::NAN, -f64::NAN, f64::INFINITY, 1.0, f64::INFINITY - f64::INFINITY] {
            assert!(!is_max_priority(other));
        }
        assert!(is_priority(MAX_PRIORITY) && is_priority(1.0) && !is_priority(f64::NAN));
    }
}
