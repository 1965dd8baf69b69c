// SPDX-License-Identifier: Apache-2.0
//! Patterns over the steps of a dataset.

use reverb_client::Configs;
use reverb_data::DType;

use crate::attrs::Attrs;
use crate::failure::Outcome;
use crate::kernel::{Context, Definition, Op};
use crate::patterns;
use crate::tensor::{Input, Output};

/// Appends a step. Returns the items that it completes, or queues them.
///
/// The handle is the state of the iterator; 0 makes an engine. The engine is freed with the last
/// tensor that holds its handle, which is when the iterator is freed.
pub(super) struct Append {
    configs: Configs,
    dtypes: Vec<DType>,
    clear_after_episode: bool,
    stack: bool,
}

impl Op for Append {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayPatternAppend",
        inputs: &["engine: int64", "end_of_episode: bool", "data: Tinput_list"],
        outputs: &["handle: int64", "count: int64", "items: Toutput_list"],
        attrs: &[
            "Tinput_list: list(type) >= 1",
            "Toutput_list: list(type) >= 1",
            "configs: list(string) >= 1",
            "clear_after_episode: bool",
            "stack: bool = true",
        ],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self {
            configs: patterns::parse_configs(&attrs.strings("configs")?)?,
            dtypes: attrs.types("Toutput_list")?,
            clear_after_episode: attrs.bool("clear_after_episode")?,
            stack: attrs.bool("stack")?,
        })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let mut handle = context.input(0)?.int()?;
        if handle == 0 {
            handle = patterns::open(self.configs.clone());
            let owner = Output::int(handle)?.on_release(move || patterns::close(handle));
            context.set_output(0, owner)?;
        } else {
            // The output is the same tensor, which keeps the engine alive.
            context.forward(0, 0)?;
        }
        let engine = patterns::get(handle)?;
        let end_of_episode = context.input(1)?.bool()?;
        let step =
            (2..context.num_inputs()).map(|i| context.input(i)).collect::<Outcome<Vec<_>>>()?;
        let step = step.iter().map(Input::cell).collect();
        let count = engine.append(step, end_of_episode, self.clear_after_episode)?;
        context.set_output(1, Output::int(count as i64)?)?;
        let items = if self.stack {
            engine.pop_all(&self.dtypes)?
        } else {
            self.dtypes.iter().map(|&dtype| Output::placeholder(dtype)).collect::<Outcome<_>>()?
        };
        for (i, column) in items.into_iter().enumerate() {
            context.set_output(2 + i, column)?;
        }
        Ok(())
    }
}

/// Returns the oldest item of the queue.
pub(super) struct Pop {
    dtypes: Vec<DType>,
}

impl Op for Pop {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayPatternPop",
        inputs: &["engine: int64"],
        outputs: &["item: Toutput_list"],
        attrs: &["Toutput_list: list(type) >= 1"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { dtypes: attrs.types("Toutput_list")? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let item = patterns::get(context.input(0)?.int()?)?.pop(&self.dtypes)?;
        for (i, column) in item.into_iter().enumerate() {
            context.set_output(i, column)?;
        }
        Ok(())
    }
}
