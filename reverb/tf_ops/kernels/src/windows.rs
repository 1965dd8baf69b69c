// SPDX-License-Identifier: Apache-2.0
//! Outputs about the windows of sampled items: their starts, how many each item has, their masks.

use reverb_data::{DType, Sampled, SampledWindow, Shape, StepWindow};

use crate::failure::Outcome;
use crate::kernel::Context;
use crate::tensor::Output;

/// Dtypes of the outputs.
pub(crate) const WINDOW_DTYPES: [DType; 3] = [DType::Int32, DType::Int32, DType::Bool];

/// Windows of some rows.
pub(crate) struct Windows {
    window: StepWindow,
    rows: Vec<SampledWindow>,
}

impl Windows {
    /// Windows of sampled items; `None` if they were sampled without.
    pub(crate) fn of(window: Option<StepWindow>, samples: &[Sampled]) -> Option<Self> {
        window.map(|window| Self { window, rows: samples.iter().map(|it| it.window).collect() })
    }

    /// Sets three outputs, starting at `first`.
    pub(crate) fn set_outputs(&self, context: &mut Context, first: usize) -> Outcome<()> {
        let vector = |number: fn(SampledWindow) -> i32| {
            let numbers = self.rows.iter().map(|&row| number(row).to_ne_bytes());
            Output::numbers(DType::Int32, Shape::from_slice(&[self.rows.len()]), numbers)
        };
        context.set_output(first, vector(|row| row.start)?)?;
        let count = |row: SampledWindow| i32::try_from(row.count).unwrap_or(i32::MAX);
        context.set_output(first + 1, vector(count)?)?;
        let shape = Shape::from_slice(&[self.rows.len(), self.window.num_steps() as usize]);
        let mask = self.mask().map(|is_step| [u8::from(is_step)]);
        context.set_output(first + 2, Output::numbers(DType::Bool, shape, mask)?)
    }

    /// For each step of each window, whether it is a step of its item and not padding.
    fn mask(&self) -> impl Iterator<Item = bool> {
        let num_steps = i64::from(self.window.num_steps());
        self.rows.iter().flat_map(move |row| {
            let (start, steps) = (i64::from(row.start), self.window.steps_of(row.count));
            (start..start + num_steps).map(move |step| (0..i64::from(steps)).contains(&step))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_tell_steps_from_padding() {
        let mask = |pad: u32, (length, before), start, steps| {
            let (pads_left, pads_right) = (pad & 1 == 1, pad & 2 == 2);
            let window = StepWindow { length, before, pads_left, pads_right };
            let rows = vec![SampledWindow { start, count: window.count(steps) }];
            Windows { window, rows }.mask().map(u8::from).collect::<Vec<_>>()
        };
        assert_eq!(mask(0, (3, 1), 2, 9), [1, 1, 1, 1]);
        assert_eq!(mask(1, (3, 2), -2, 3), [0, 0, 1, 1, 1]);
        assert_eq!(mask(2, (4, 0), 4, 5), [1, 0, 0, 0]);
        assert_eq!(mask(3, (3, 2), -1, 2), [0, 1, 1, 0, 0]);
    }
}
