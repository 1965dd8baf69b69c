// SPDX-License-Identifier: Apache-2.0
//! A node of a pattern: the cells of one column that an item contains, counted back from the
//! current step.

use reverb_wire::generated::PatternNode;
use reverb_wire::generated::pattern_node::{StartOrNone, StepOrNone, StopOrNone};

use super::config::Checked;

/// Cells of one column, relative to the end of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The column: its position among the leaves that are read.
    pub column: usize,
    /// The first cell is this many steps before the end of the history; 1 is the current step.
    from_end: u64,
    /// The end of the slice is this many steps before the end of the history.
    stop_from_end: u64,
    stride: u64,
    /// True if the single cell has no leading dimension.
    pub squeeze: bool,
}

impl Node {
    /// Translates a node; `column` is the column of its leaf. The error is a sentence about the
    /// node.
    pub(super) fn new(proto: &PatternNode, column: usize) -> Checked<Self> {
        let start = proto.start_or_none.map(|StartOrNone::Start(start)| i64::from(start));
        let stop = proto.stop_or_none.map(|StopOrNone::Stop(stop)| i64::from(stop));
        let step = proto.step_or_none.map(|StepOrNone::Step(step)| i64::from(step));
        check(start, stop, step)?;
        let stop_from_end = stop.unwrap_or(0).unsigned_abs();
        Ok(match start {
            Some(start) => Self {
                column,
                from_end: start.unsigned_abs(),
                stop_from_end,
                stride: step.unwrap_or(1).unsigned_abs(),
                squeeze: false,
            },
            // A stop without a start selects a single step.
            None => Self {
                column,
                from_end: stop_from_end,
                stop_from_end: stop_from_end - 1,
                stride: 1,
                squeeze: true,
            },
        })
    }

    /// Number of steps of history that the node spans, including the current one.
    pub fn history(&self) -> u64 {
        self.from_end
    }

    /// The selected steps of a history of `history_len` steps, oldest first; `None` if the history
    /// is too short.
    pub fn steps(&self, history_len: u64) -> Option<impl Iterator<Item = u64> + use<>> {
        let first = history_len.checked_sub(self.from_end)?;
        let end = history_len - self.stop_from_end;
        // A stride beyond the end takes one cell, whatever its size.
        let stride = usize::try_from(self.stride).unwrap_or(usize::MAX);
        Some((first..end).step_by(stride))
    }
}

fn check(start: Option<i64>, stop: Option<i64>, step: Option<i64>) -> Checked<()> {
    if start.is_none() && stop.is_none() {
        return Err("a pattern node needs a start or a stop; x[:] has neither".to_owned());
    }
    if let Some(start) = start.filter(|&start| start >= 0) {
        return Err(format!(
            "start of a pattern node must be negative, counted from the current step, got {start}"
        ));
    }
    if let Some(stop) = stop.filter(|&stop| stop > 0) {
        return Err(format!(
            "stop of a pattern node must not be positive, it is counted from the current step, got {stop}"
        ));
    }
    match (start, stop) {
        (Some(start), Some(stop)) if start >= stop => {
            return Err(format!(
                "start of a pattern node must be before its stop, got start={start} and stop={stop}"
            ));
        }
        (None, Some(0)) => {
            return Err("stop of a pattern node without a start must not be 0".to_owned());
        }
        _ => {}
    }
    match step {
        Some(step) if start.is_none() => Err(format!(
            "a pattern node with a step needs a start; without one it is a single step, got step={step}"
        )),
        Some(step) if step <= 0 => {
            Err(format!("step of a pattern node must be positive, got {step}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(start: Option<i32>, stop: Option<i32>, step: Option<i32>) -> Checked<Node> {
        let proto = PatternNode {
            flat_source_index: 0,
            start_or_none: start.map(StartOrNone::Start),
            stop_or_none: stop.map(StopOrNone::Stop),
            step_or_none: step.map(StepOrNone::Step),
        };
        Node::new(&proto, 0)
    }

    fn steps(start: Option<i32>, stop: Option<i32>, step: Option<i32>) -> Vec<u64> {
        node(start, stop, step).unwrap().steps(10).unwrap().collect()
    }

    #[test]
    fn nodes_count_from_the_current_step() {
        assert_eq!(steps(None, Some(-1), None), [9], "x[-1]");
        assert_eq!(steps(None, Some(-10), None), [0], "x[-10]");
        assert_eq!(steps(Some(-3), None, None), [7, 8, 9], "x[-3:]");
        assert_eq!(steps(Some(-3), Some(0), None), [7, 8, 9], "x[-3:0]");
        assert_eq!(steps(Some(-3), Some(-1), None), [7, 8], "x[-3:-1]");
        assert_eq!(steps(Some(-5), None, Some(2)), [5, 7, 9], "x[-5::2]");
        assert_eq!(steps(Some(-5), Some(-1), Some(3)), [5, 8], "x[-5:-1:3]");
        assert_eq!(steps(Some(-5), Some(-1), Some(i32::MAX)), [5]);
        assert!(node(Some(-11), None, None).unwrap().steps(10).is_none());
        assert!(node(None, Some(-11), None).unwrap().steps(10).is_none());
    }

    #[test]
    fn only_single_steps_are_squeezed() {
        assert!(node(None, Some(-2), None).unwrap().squeeze);
        assert!(!node(Some(-1), None, None).unwrap().squeeze);
        assert_eq!(node(None, Some(-2), None).unwrap().history(), 2);
        assert_eq!(node(Some(-4), Some(-2), None).unwrap().history(), 4);
        assert_eq!(node(Some(i32::MIN), None, None).unwrap().history(), 1 << 31);
    }

    #[test]
    fn nodes_that_make_no_sense_are_refused() {
        for (start, stop, step, text) in [
            (None, None, None, "needs a start or a stop"),
            (Some(0), None, None, "start of a pattern node must be negative"),
            (Some(1), None, None, "must be negative, counted from the current step, got 1"),
            (Some(-2), Some(1), None, "must not be positive"),
            (None, Some(3), None, "must not be positive"),
            (Some(-2), Some(-2), None, "got start=-2 and stop=-2"),
            (Some(-1), Some(-2), None, "must be before its stop"),
            (None, Some(0), None, "without a start must not be 0"),
            (None, Some(-1), Some(2), "with a step needs a start"),
            (Some(-2), None, Some(0), "must be positive, got 0"),
            (Some(-2), None, Some(-1), "must be positive, got -1"),
        ] {
            let error = node(start, stop, step).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
