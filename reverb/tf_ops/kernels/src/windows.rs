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
        window.map(|window| Self {
            window,
            rows: samples.iter().map(|sample| sample.window).collect(),
        })
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
        let mask = self.rows.iter().flat_map(|&row| self.window.mask(row));
        let mask = mask.map(|is_step| [u8::from(is_step)]);
        context.set_output(first + 2, Output::numbers(DType::Bool, shape, mask)?)
    }
}
