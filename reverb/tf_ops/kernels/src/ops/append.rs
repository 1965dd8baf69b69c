// SPDX-License-Identifier: Apache-2.0
//! Appending a step to a sequence writer.

use std::sync::Arc;
use std::time::Duration;

use reverb_client::SequenceWriter;
use reverb_client::{PerRow, Step};
use reverb_data::tensor::shape_text;

use crate::attrs::Attrs;
use crate::failure::{Failure, Outcome};
use crate::kernel::{Context, Definition, Op};
use crate::pending::{self, Reply};
use crate::tensor::{Input, Output};
use crate::writers;

/// Appends a step of all environments, and queues the items that it completes.
///
/// When the op returns, the step is stored and its items are queued. `pending` is a call only while
/// the writer is throttled because it is faster than its connection.
pub(super) struct Append {
    labels: Vec<String>,
    wait: Duration,
}

impl Op for Append {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayAppend",
        inputs: &[
            "writer: int64",
            // The resource is never read: ops with the same resource run in program order, which
            // TensorFlow guarantees for nothing else inside loops and branches.
            "order: resource",
            "is_last: bool",
            "priorities: double",
            "data: Tdata_list",
        ],
        outputs: &["pending: int64", "num_items: int64"],
        attrs: &["Tdata_list: list(type) >= 1", "labels: list(string) >= 1", "wait_ms: int = 20"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        let labels = attrs.strings("labels")?.into_iter();
        let labels = labels.map(|label| String::from_utf8_lossy(&label).into_owned()).collect();
        Ok(Self { labels, wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let writer = writers::get(context.input(0)?.int()?)?;
        let is_last = Rows::flags(&context.input(2)?)?;
        let priorities = Rows::numbers(&context.input(3)?)?;
        let data =
            (4..context.num_inputs()).map(|i| context.input(i)).collect::<Outcome<Vec<_>>>()?;
        if data.len() != self.labels.len() {
            return Err(Failure::internal("labels and data must be of the same length"));
        }
        let created = writer.append(Step {
            labels: Some(&self.labels),
            values: data.iter().map(Input::cell).collect(),
            is_last: is_last.per_row(),
            priorities: priorities.per_row(),
            removal_priorities: None,
        })?;
        drop(data);
        context.set_output(0, Output::int(self.throttle(writer)?)?)?;
        context.set_output(1, Output::int(created as i64)?)
    }
}

impl Append {
    /// Waits while the writer is faster than its connection; returns the handle of an unfinished
    /// wait.
    fn throttle(&self, writer: Arc<SequenceWriter>) -> Outcome<i64> {
        if !writer.queue().is_over_limit() {
            return Ok(0);
        }
        let runtime = writer.runtime().clone();
        let call = Box::pin(async move {
            writer.queue().throttle().await?;
            Ok(Reply::Done)
        });
        Ok(pending::start(&runtime, call, self.wait)?.handle())
    }
}

/// One value per row, or one for all.
enum Rows<T> {
    All(T),
    Each(Vec<T>),
}

impl<T: Copy> Rows<T> {
    fn per_row(&self) -> PerRow<'_, T> {
        match self {
            Self::All(value) => PerRow::All(*value),
            Self::Each(values) => PerRow::Each(values),
        }
    }

    fn from_input(name: &str, input: &Input, values: Vec<T>) -> Outcome<Self> {
        match (input.shape(), values.first()) {
            ([], Some(value)) => Ok(Self::All(*value)),
            ([_], _) => Ok(Self::Each(values)),
            (shape, _) => Err(Failure::invalid_argument(format!(
                "{name} must be one value for each row of the batch, or one for all, got shape {}",
                shape_text(shape)
            ))),
        }
    }
}

impl Rows<bool> {
    fn flags(input: &Input) -> Outcome<Self> {
        Self::from_input("is_last", input, input.bytes().iter().map(|&flag| flag != 0).collect())
    }
}

impl Rows<f64> {
    fn numbers(input: &Input) -> Outcome<Self> {
        let (numbers, _) = input.bytes().as_chunks::<8>();
        Self::from_input(
            "priorities",
            input,
            numbers.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect(),
        )
    }
}
