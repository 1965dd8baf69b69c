// SPDX-License-Identifier: Apache-2.0
//! Conditions under which a pattern is applied.

use reverb_wire::generated::condition::{Cmp, Left as ProtoLeft};
use reverb_wire::generated::{Condition as Proto, condition::ModuloEq};

use super::config::Checked;

/// The left side of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Index of the current step in its episode.
    StepIndex,
    /// Steps since the pattern was last applied, the current one included.
    StepsSinceApplied,
    /// Steps in the history.
    BufferLength,
    /// 1 at the end of the episode, otherwise 0.
    IsEndEpisode,
    /// The value of a column at the current step.
    Data {
        /// The column.
        column: usize,
    },
}

/// Comparison with the left side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal(i64),
    AtLeast(i64),
    /// The remainder has the sign of the left side.
    RemainderEqual {
        modulus: i64,
        remainder: i64,
    },
}

/// One condition; a pattern is applied only when all of its conditions hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Condition {
    left: Left,
    comparison: Comparison,
    inverse: bool,
}

/// The values that conditions read, at the current step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs {
    pub(super) step_index: u64,
    pub(super) steps_since_applied: u64,
    pub(super) buffer_length: u64,
    pub(super) is_end_episode: bool,
}

impl Condition {
    /// Translates a condition; `column_of` maps a leaf to its column. The error is a sentence about
    /// the condition.
    pub(super) fn new(proto: &Proto, column_of: impl Fn(usize) -> usize) -> Checked<Self> {
        let left = match proto.left {
            None => {
                return Err(
                    "a condition has nothing to compare, its left side is not set".to_owned()
                );
            }
            Some(ProtoLeft::StepIndex(_)) => Left::StepIndex,
            Some(ProtoLeft::StepsSinceApplied(_)) => Left::StepsSinceApplied,
            Some(ProtoLeft::BufferLength(_)) => Left::BufferLength,
            Some(ProtoLeft::IsEndEpisode(_)) => Left::IsEndEpisode,
            Some(ProtoLeft::FlatSourceIndex(leaf)) => Left::Data {
                column: column_of(usize::try_from(leaf).map_err(|_| {
                    format!("flat_source_index of a condition must not be negative, got {leaf}")
                })?),
            },
        };
        let comparison = match proto.cmp {
            None => return Err("a condition has no comparison, set eq, ge or mod_eq".to_owned()),
            Some(Cmp::Eq(value)) => Comparison::Equal(value.into()),
            Some(Cmp::Ge(value)) => Comparison::AtLeast(value.into()),
            Some(Cmp::ModEq(ModuloEq { r#mod, eq })) => {
                if r#mod <= 0 {
                    return Err(format!("mod of a condition must be positive, got {mod}"));
                }
                if eq < 0 {
                    return Err(format!("eq of a modulo condition must not be negative, got {eq}"));
                }
                Comparison::RemainderEqual { modulus: r#mod.into(), remainder: eq.into() }
            }
        };
        let plain = comparison == Comparison::Equal(1) && !proto.inverse;
        if left == Left::IsEndEpisode && !plain {
            return Err("a condition on is_end_episode must be eq=1 and not inverse".to_owned());
        }
        Ok(Self { left, comparison, inverse: proto.inverse })
    }

    /// The condition that the history has at least `steps` steps.
    pub(super) fn min_buffer_length(steps: u64) -> Self {
        let comparison = Comparison::AtLeast(steps as i64);
        Self { left: Left::BufferLength, comparison, inverse: false }
    }

    /// True if the condition requires a history of at least `steps` steps.
    pub(super) fn requires_buffer_length(&self, steps: u64) -> bool {
        self.left == Left::BufferLength
            && !self.inverse
            && matches!(self.comparison, Comparison::AtLeast(value) if value >= steps as i64)
    }

    /// The column whose values the condition reads.
    pub(super) fn data_column(&self) -> Option<usize> {
        match self.left {
            Left::Data { column } => Some(column),
            _ => None,
        }
    }

    /// True if the condition holds. `data` returns the value of a column; without a value the
    /// condition is false, inverted or not.
    pub(super) fn holds(&self, inputs: &Inputs, data: impl Fn(usize) -> Option<i32>) -> bool {
        let left = match self.left {
            Left::StepIndex => inputs.step_index as i64,
            Left::StepsSinceApplied => inputs.steps_since_applied as i64,
            Left::BufferLength => inputs.buffer_length as i64,
            Left::IsEndEpisode => inputs.is_end_episode.into(),
            Left::Data { column } => match data(column) {
                Some(value) => value.into(),
                None => return false,
            },
        };
        let holds = match self.comparison {
            Comparison::Equal(value) => left == value,
            Comparison::AtLeast(value) => left >= value,
            Comparison::RemainderEqual { modulus, remainder } => left % modulus == remainder,
        };
        holds != self.inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Inputs =
        Inputs { step_index: 7, steps_since_applied: 3, buffer_length: 5, is_end_episode: false };

    fn holds(left: ProtoLeft, cmp: Cmp, inverse: bool, data: Option<i32>) -> bool {
        let proto = Proto { inverse, left: Some(left), cmp: Some(cmp) };
        Condition::new(&proto, |leaf| leaf).unwrap().holds(&MOMENT, |_| data)
    }

    #[test]
    fn every_left_side_is_compared() {
        for (left, value) in [
            (ProtoLeft::StepIndex(true), 7),
            (ProtoLeft::StepsSinceApplied(true), 3),
            (ProtoLeft::BufferLength(true), 5),
            (ProtoLeft::FlatSourceIndex(2), -4),
        ] {
            for (cmp, expected) in [
                (Cmp::Eq(value), true),
                (Cmp::Eq(value + 1), false),
                (Cmp::Ge(value), true),
                (Cmp::Ge(value - 1), true),
                (Cmp::Ge(value + 1), false),
            ] {
                assert_eq!(holds(left, cmp, false, Some(-4)), expected, "{left:?} {cmp:?}");
                assert_eq!(holds(left, cmp, true, Some(-4)), !expected, "{left:?} not {cmp:?}");
            }
        }
    }

    #[test]
    fn the_remainder_has_the_sign_of_the_left_side() {
        let modulo = |eq| Cmp::ModEq(ModuloEq { r#mod: 3, eq });
        assert!(holds(ProtoLeft::StepIndex(true), modulo(1), false, None));
        assert!(!holds(ProtoLeft::StepIndex(true), modulo(1), true, None));
        let data = ProtoLeft::FlatSourceIndex(0);
        assert!(!holds(data, modulo(2), false, Some(-4)), "-4 % 3 is -1");
        assert!(!holds(data, modulo(1), false, Some(-4)));
        assert!(holds(data, modulo(0), false, Some(-6)));
    }

    #[test]
    fn a_missing_value_is_false_even_when_inverted() {
        let data = ProtoLeft::FlatSourceIndex(0);
        assert!(!holds(data, Cmp::Eq(0), false, None));
        assert!(!holds(data, Cmp::Eq(0), true, None));
    }

    #[test]
    fn the_end_of_an_episode_is_seen() {
        let proto = Proto {
            inverse: false,
            left: Some(ProtoLeft::IsEndEpisode(true)),
            cmp: Some(Cmp::Eq(1)),
        };
        let condition = Condition::new(&proto, |leaf| leaf).unwrap();
        assert!(!condition.holds(&MOMENT, |_| None));
        assert!(condition.holds(&Inputs { is_end_episode: true, ..MOMENT }, |_| None));
    }

    #[test]
    fn conditions_that_make_no_sense_are_refused() {
        let end = Some(ProtoLeft::IsEndEpisode(true));
        let index = Some(ProtoLeft::StepIndex(true));
        let modulo = |r#mod, eq| Some(Cmp::ModEq(ModuloEq { r#mod, eq }));
        for (left, cmp, inverse, text) in [
            (None, Some(Cmp::Eq(1)), false, "left side is not set"),
            (index, None, false, "has no comparison"),
            (Some(ProtoLeft::FlatSourceIndex(-1)), Some(Cmp::Eq(1)), false, "got -1"),
            (index, modulo(0, 1), false, "mod of a condition must be positive, got 0"),
            (index, modulo(-2, 1), false, "must be positive, got -2"),
            (index, modulo(2, -1), false, "must not be negative, got -1"),
            (end, Some(Cmp::Eq(0)), false, "must be eq=1"),
            (end, Some(Cmp::Ge(1)), false, "must be eq=1"),
            (end, modulo(2, 1), false, "must be eq=1"),
            (end, Some(Cmp::Eq(1)), true, "not inverse"),
        ] {
            let error = Condition::new(&Proto { inverse, left, cmp }, |leaf| leaf).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn only_a_plain_lower_bound_counts_as_a_required_length() {
        let condition = |left, cmp, inverse| {
            Condition::new(&Proto { inverse, left: Some(left), cmp: Some(cmp) }, |leaf| leaf)
                .unwrap()
                .requires_buffer_length(3)
        };
        assert!(condition(ProtoLeft::BufferLength(true), Cmp::Ge(3), false));
        assert!(condition(ProtoLeft::BufferLength(true), Cmp::Ge(4), false));
        assert!(!condition(ProtoLeft::BufferLength(true), Cmp::Ge(2), false));
        assert!(!condition(ProtoLeft::BufferLength(true), Cmp::Ge(3), true));
        assert!(!condition(ProtoLeft::BufferLength(true), Cmp::Eq(3), false));
        assert!(!condition(ProtoLeft::StepIndex(true), Cmp::Ge(3), false));
    }
}
