// SPDX-License-Identifier: Apache-2.0
//! The ops behind a dataset's iterator: create a sampler, take rows from it, close it.

use std::sync::OnceLock;
use std::time::Duration;

use reverb_client::SamplerOptions;
use reverb_data::{DType, StepWindow};

use crate::attrs::{Attrs, PartialShape};
use crate::environment::client;
use crate::failure::{Failure, Outcome};
use crate::kernel::{Context, Definition, Op};
use crate::row_specs::RowSpecs;
use crate::sampler::{self, RowRequest};
use crate::tensor::Output;

/// Starts a sampler.
///
/// Its input `dataset_key` and the name of `park` are from a release in which an iterator's dataset
/// looked for a sampler that was started before it.
pub(super) struct Create {
    columns: Vec<(DType, PartialShape)>,
    timesteps: bool,
    options: SamplerOptions,
    /// True if the caller closes the sampler, which the tensor of the handle then does not own.
    park: bool,
}

impl Op for Create {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplaySamplerCreate",
        inputs: &["server_address: string", "table: string", "dataset_key: int64"],
        outputs: &["handle: int64"],
        attrs: &[
            "dtypes: list(type) >= 0",
            "shapes: list(shape) >= 0",
            "timesteps: bool = false",
            "max_in_flight_samples_per_worker: int = 100",
            "num_workers: int = -1",
            "max_samples_per_stream: int = -1",
            "rate_limiter_timeout_ms: int = -1",
            "max_samples: int = -1",
            "batch_size: int = 0",
            "park: bool = false",
            "window_length: int = 0",
            "window_before: int = 0",
            "window_pad: int = 0",
        ],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        let dtypes = attrs.types("dtypes")?;
        let shapes = attrs.shapes("shapes")?;
        if dtypes.len() != shapes.len() {
            return Err(Failure::invalid_argument(format!(
                "dtypes and shapes must be of the same length, got {} and {}",
                dtypes.len(),
                shapes.len()
            )));
        }
        let timesteps = attrs.bool("timesteps")?;
        let window = window(attrs)?;
        if timesteps && window.is_some() {
            return Err(Failure::invalid_argument("single steps cannot be sampled with a window"));
        }
        let options = sampler::options(
            attrs.int("max_in_flight_samples_per_worker")?,
            attrs.int("num_workers")?,
            attrs.int("max_samples_per_stream")?,
            attrs.int("rate_limiter_timeout_ms")?,
            attrs.int("max_samples")?,
            attrs.int("batch_size")?,
        )?;
        Ok(Self {
            columns: dtypes.into_iter().zip(shapes).collect(),
            timesteps,
            options: SamplerOptions { window, ..options },
            park: attrs.bool("park")?,
        })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let client = client(&context.input(0)?.text()?)?;
        let specs = RowSpecs {
            table: context.input(1)?.text()?,
            columns: self.columns.clone(),
            timesteps: self.timesteps,
            window: self.options.window,
            signature: OnceLock::new(),
        };
        let handle = sampler::open(&client, specs, self.options.clone());
        let output = if self.park { Output::int(handle)? } else { owner(handle)? };
        context.set_output(0, output)
    }
}

/// The window of the attributes; `None` if its length is 0. The bits of `window_pad` are the ends
/// at which it may reach beyond the item: 1 at the left, 2 at the right.
fn window(attrs: &Attrs) -> Outcome<Option<StepWindow>> {
    let number = |name: &str, max: u32| {
        let value = attrs.int(name)?;
        u32::try_from(value).ok().filter(|&number| number <= max).ok_or_else(|| {
            Failure::invalid_argument(format!("{name} must be from 0 to {max}, got {value}"))
        })
    };
    let length = number("window_length", StepWindow::MAX_STEPS)?;
    let before = number("window_before", StepWindow::MAX_STEPS)?;
    let pad = number("window_pad", 3)?;
    if length == 0 && (before, pad) == (0, 0) {
        return Ok(None);
    }
    let pads_left = pad & 1 == 1;
    let pads_right = pad & 2 == 2;
    let window = StepWindow { length, before, pads_left, pads_right };
    window.validate()?;
    Ok(Some(window))
}

/// Makes a tensor with the handle of a sampler. The sampler is closed with the last tensor that
/// holds its handle, so an iterator owns it.
fn owner(handle: i64) -> Outcome<Output> {
    Ok(Output::int(handle)?.on_release(move || _ = sampler::close(handle)))
}

/// Returns true once the table's signature was compared with the dataset's specs.
pub(super) struct Check {
    wait: Duration,
}

impl Op for Check {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplaySamplerCheck",
        inputs: &["handle: int64"],
        outputs: &["checked: bool"],
        attrs: &["wait_ms: int = 50"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let checked = sampler::get(context.input(0)?.int()?)?.check(self.wait)?;
        context.set_output(0, Output::bool(checked)?)
    }
}

/// Returns the next rows.
pub(super) struct Next {
    request: RowRequest,
    wait: Duration,
    dtypes: Vec<DType>,
    window_dtypes: Vec<DType>,
}

impl Op for Next {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplaySamplerNext",
        inputs: &["handle: int64"],
        outputs: &[
            "key: uint64",
            "probability: double",
            "table_size: int64",
            "priority: double",
            "times_sampled: int32",
            "data: Toutput_list",
            "window: Twindow_list",
        ],
        attrs: &[
            "Toutput_list: list(type) >= 0",
            "rows: int = 64",
            "exact: bool = false",
            "drop_remainder: bool = false",
            "wait_ms: int = 50",
            "Twindow_list: list(type) >= 0 = []",
        ],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        let rows = attrs.int("rows")?;
        let rows = usize::try_from(rows).ok().filter(|&rows| rows > 0);
        let rows = rows.ok_or_else(|| Failure::invalid_argument("rows must be at least 1"))?;
        Ok(Self {
            request: RowRequest {
                rows,
                exact: attrs.bool("exact")?,
                drop_remainder: attrs.bool("drop_remainder")?,
            },
            wait: super::wait(attrs)?,
            dtypes: attrs.types("Toutput_list")?,
            window_dtypes: attrs.types("Twindow_list")?,
        })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let sampler = sampler::get(context.input(0)?.int()?)?;
        sampler.check_outputs(&self.dtypes, &self.window_dtypes)?;
        sampler.next(self.request, self.wait)?.set_outputs(context)
    }
}

/// Closes a sampler.
pub(super) struct Close;

impl Op for Close {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplaySamplerClose",
        inputs: &["handle: int64"],
        outputs: &["was_open: bool"],
        attrs: &[],
    };

    fn create(_attrs: &Attrs) -> Outcome<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let was_open = sampler::close(context.input(0)?.int()?);
        context.set_output(0, Output::bool(was_open)?)
    }
}
