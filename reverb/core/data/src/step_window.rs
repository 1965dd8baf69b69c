// SPDX-License-Identifier: Apache-2.0
//! Step windows: consecutive steps of an item, which a sampler chooses at random.

use crate::column_names::ColumnNames;
use crate::trajectory::Trajectory;
use reverb_base::error::{Error, Result};

/// A window of an item's steps, relative to a step of the item, its *anchor*: the steps from
/// `anchor - before` to `anchor + length`, without the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepWindow {
    /// Number of steps from the anchor on, at least 1.
    pub length: u32,
    /// Number of steps before the anchor.
    pub before: u32,
    /// True if the window may begin before the first step; that step is repeated there.
    pub pads_left: bool,
    /// True if the window may end after the last step; that step is repeated there.
    pub pads_right: bool,
}

impl StepWindow {
    /// Largest number of steps of a window.
    pub const MAX_STEPS: u32 = 65_536;

    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the number, its value and its limit.
    pub fn validate(&self) -> Result<()> {
        if self.length == 0 {
            return Err(Error::invalid_argument("window.length must be at least 1, got 0."));
        }
        let num_steps = u64::from(self.before) + u64::from(self.length);
        if num_steps > u64::from(Self::MAX_STEPS) {
            return Err(Error::invalid_argument(format!(
                "window: before + length must be at most {}, got {num_steps}.",
                Self::MAX_STEPS
            )));
        }
        Ok(())
    }

    /// Number of its steps, padding included.
    pub fn num_steps(&self) -> u32 {
        self.before + self.length
    }

    /// Number of windows in an item of `steps` steps, one for each anchor.
    pub fn count(&self, steps: u32) -> u32 {
        let end = if self.pads_right { steps } else { steps.saturating_sub(self.length - 1) };
        end.saturating_sub(self.first_anchor())
    }

    /// The first anchor of an item.
    pub fn first_anchor(&self) -> u32 {
        if self.pads_left { 0 } else { self.before }
    }

    /// Number of steps of an item with this many windows, at least one.
    pub fn steps_of(&self, count: u32) -> u32 {
        let after = if self.pads_right { 0 } else { self.length - 1 };
        count.saturating_add(self.first_anchor()).saturating_add(after)
    }

    /// For each step of a sampled window, whether it is a step of its item and not padding.
    pub fn mask(self, sampled: SampledWindow) -> impl Iterator<Item = bool> {
        let start = i64::from(sampled.start);
        let steps = i64::from(self.steps_of(sampled.count));
        (start..start + i64::from(self.num_steps())).map(move |step| (0..steps).contains(&step))
    }

    /// Number of steps of a sampled window that are padding.
    pub fn padding(&self, sampled: SampledWindow) -> u32 {
        let start = i64::from(sampled.start);
        let steps = i64::from(self.steps_of(sampled.count));
        let end = start + i64::from(self.num_steps());
        self.num_steps() - (end.min(steps) - start.max(0)).max(0) as u32
    }

    /// The share of a window in the bytes of an item with this many windows.
    pub fn part_of(&self, bytes: usize, count: u32) -> usize {
        let steps = u64::from(self.steps_of(count).max(1));
        let part = bytes as u64 * u64::from(self.num_steps()) / steps;
        (part as usize).min(bytes)
    }

    /// The window as a part of a sentence: "window of 64 steps".
    pub fn description(&self) -> String {
        let steps =
            |count: u32| if count == 1 { "1 step".to_owned() } else { format!("{count} steps") };
        match self.before {
            0 => format!("window of {}", steps(self.length)),
            before => format!("window of {before} + {}", steps(self.length)),
        }
    }
}

/// The steps of one column that a reader gets, relative to the anchor of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSpan {
    /// Position of the column in the flat structure of the table.
    pub column: u32,
    /// First step.
    pub start: i32,
    /// The step after the last.
    pub stop: i32,
}

impl ColumnSpan {
    /// Checks that the spans lie within the window, and that their columns increase.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the span.
    pub fn validate(spans: &[Self], window: StepWindow) -> Result<()> {
        let first = -i64::from(window.before);
        let end = i64::from(window.length);
        for (at, &Self { column, start, stop }) in spans.iter().enumerate() {
            if i64::from(start) < first || i64::from(stop) > end || start >= stop {
                return Err(Error::invalid_argument(format!(
                    "window.spans: the span of column {column} must have at least one step and lie \
                     within [{first}, {end}), got ({start}, {stop})."
                )));
            }
            if at > 0 && spans[at - 1].column >= column {
                return Err(Error::invalid_argument(format!(
                    "window.spans: columns must increase, got {} before {column}.",
                    spans[at - 1].column
                )));
            }
        }
        Ok(())
    }
}

/// The window of a sampled item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampledWindow {
    /// First step of the window in its item; below 0 if it begins with padding.
    pub start: i32,
    /// Number of windows of the item; 0 if the item was sampled without a window.
    pub count: u32,
}

/// Number of steps of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCount {
    /// Number of steps that all columns with a time axis have; 0 if they differ, or if there is
    /// none. Windows are cut from these.
    pub common: u32,
    /// Number of steps of the longest column, at least 1.
    pub longest: u32,
}

impl StepCount {
    /// Counts the steps of an item.
    pub fn of(trajectory: &Trajectory) -> Self {
        let mut common = None;
        let mut longest = 1;
        for column in trajectory.columns().filter(|column| !column.squeeze) {
            let steps = u32::try_from(column.num_steps()).unwrap_or(u32::MAX);
            longest = steps.max(longest);
            common = match common {
                None => Some(steps),
                Some(known) if known == steps => common,
                Some(_) => Some(0),
            };
        }
        Self { common: common.unwrap_or(0), longest }
    }
}

/// Error for an item that has no window because its columns differ, which have these names; `None`
/// if it is too short.
pub fn different_lengths(key: u64, trajectory: &Trajectory, names: &ColumnNames) -> Option<Error> {
    let mut lengths = trajectory
        .columns()
        .enumerate()
        .filter(|(_, column)| !column.squeeze)
        .map(|(at, column)| (at, column.num_steps()));
    let (first, steps) = lengths.next()?;
    let (other, others) = lengths.find(|&(_, count)| count != steps)?;
    Some(Error::invalid_argument(format!(
        "Columns {} ({steps} steps) and {} ({others} steps) of item {key} differ, so no window can \
         be cut.",
        names.label(first),
        names.label(other),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkBuilder, SequenceRange};
    use crate::dtype::DType;
    use crate::tensor::{Shape, Tensor, TensorData};
    use crate::trajectory::TrajectoryBuilder;

    #[test]
    fn windows_are_counted_as_by_enumeration() {
        for bits in 0..4 {
            let (pads_left, pads_right) = (bits & 1 == 1, bits & 2 == 2);
            for (length, before) in [(1, 0), (1, 3), (2, 0), (3, 1), (7, 0), (7, 7)] {
                let window = StepWindow { length, before, pads_left, pads_right };
                for steps in 0..20u32 {
                    let fits = |anchor: u32| {
                        (pads_left || anchor >= before) && (pads_right || anchor + length <= steps)
                    };
                    let anchors: Vec<u32> = (0..steps).filter(|&anchor| fits(anchor)).collect();
                    assert_eq!(window.count(steps), anchors.len() as u32, "{window:?} {steps}");
                    if window.count(steps) > 0 {
                        assert_eq!(window.steps_of(window.count(steps)), steps);
                    }
                    if let Some(&first) = anchors.first() {
                        assert_eq!(window.first_anchor(), first);
                    }
                }
            }
        }
    }

    #[test]
    fn masks_tell_steps_from_padding() {
        let mask = |pad: u32, (length, before), start, steps| {
            let (pads_left, pads_right) = (pad & 1 == 1, pad & 2 == 2);
            let window = StepWindow { length, before, pads_left, pads_right };
            let sampled = SampledWindow { start, count: window.count(steps) };
            let mask: Vec<u8> = window.mask(sampled).map(u8::from).collect();
            assert_eq!(window.padding(sampled), mask.iter().map(|&real| 1 - u32::from(real)).sum());
            mask
        };
        assert_eq!(mask(0, (3, 1), 2, 9), [1, 1, 1, 1]);
        assert_eq!(mask(1, (3, 2), -2, 3), [0, 0, 1, 1, 1]);
        assert_eq!(mask(2, (4, 0), 4, 5), [1, 0, 0, 0]);
        assert_eq!(mask(3, (3, 2), -1, 2), [0, 1, 1, 0, 0]);
    }

    #[test]
    fn numbers_have_limits() {
        let window =
            |length, before| StepWindow { length, before, pads_left: false, pads_right: false };
        assert!(window(1, 65_535).validate().is_ok());
        assert!(window(2, 65_535).validate().is_err());
        let text = window(0, 1).validate().unwrap_err();
        assert_eq!(text.message(), "window.length must be at least 1, got 0.");
        let text = window(u32::MAX, u32::MAX).validate().unwrap_err();
        let expected = "window: before + length must be at most 65536, got 8589934590.";
        assert_eq!(text.message(), expected);
        let span = |start, stop| ColumnSpan { column: 3, start, stop };
        let check = |spans: &[ColumnSpan]| ColumnSpan::validate(spans, window(4, 2));
        assert!(check(&[span(-2, 4)]).is_ok());
        for (start, stop) in [(-3, 1), (0, 5), (1, 1), (2, 1)] {
            let text = check(&[span(start, stop)]).unwrap_err();
            assert!(text.message().contains("within [-2, 4)"), "{text}");
        }
        assert!(check(&[span(0, 1), span(0, 1)]).unwrap_err().message().contains("must increase"));
    }

    #[test]
    fn a_window_has_its_share_of_the_bytes_of_its_item() {
        let part = |length, before, pads, steps| {
            let window = StepWindow { length, before, pads_left: pads, pads_right: pads };
            window.part_of(1_000, window.count(steps))
        };
        assert_eq!(part(5, 0, false, 20), 250);
        assert_eq!(part(3, 2, true, 20), 250);
        assert_eq!(part(20, 0, false, 20), 1_000);
        assert_eq!(part(30, 30, true, 20), 1_000, "padding takes no bytes");
    }

    #[test]
    fn steps_are_those_of_columns_with_a_time_axis() {
        let count = |columns: &[(usize, bool)]| {
            let mut builder = TrajectoryBuilder::new();
            let mut chunk = ChunkBuilder::new(false);
            chunk.push(&Tensor {
                dtype: DType::UInt8,
                shape: Shape::from_slice(&[9]),
                data: TensorData::Bytes(vec![0; 9]),
            });
            let chunk = chunk.finish(1, SequenceRange::default());
            for &(steps, squeeze) in columns {
                builder.slice(&chunk, 0, 0, steps);
                builder.end_column(squeeze);
            }
            let StepCount { common, longest } = StepCount::of(&builder.finish().unwrap());
            (common, longest)
        };
        assert_eq!(count(&[(3, false), (3, false)]), (3, 3));
        assert_eq!(count(&[(1, true), (5, false)]), (5, 5));
        assert_eq!(count(&[(5, false), (3, false), (3, false)]), (0, 5));
        assert_eq!(count(&[(3, false), (5, false), (3, false)]), (0, 5));
        assert_eq!(count(&[(1, true)]), (0, 1));
    }
}
