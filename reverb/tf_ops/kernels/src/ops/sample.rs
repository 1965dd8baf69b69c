// SPDX-License-Identifier: Apache-2.0
//! Samples one step, for `TFClient.sample`.

use std::sync::Arc;
use std::time::Duration;

use reverb_base::Error;
use reverb_client::Signatures;
use reverb_client::{Client, SampleCursor};
use reverb_data::{DType, Sampled, Shape, Signature};

use crate::attrs::Attrs;
use crate::environment::client;
use crate::failure::{Code, Failure, Outcome};
use crate::kernel::{Context, Definition, Op};
use crate::pending::{self, Progress, Reply};
use crate::tensor::Output;
use crate::timesteps::not_timesteps;

const OUTPUTS: &[&str] = &[
    "pending: int64",
    "key: uint64",
    "probability: double",
    "table_size: int64",
    "priority: double",
    "times_sampled: int32",
    "data: Toutput_list",
];

/// Samples an item and returns its first step, or the handle of the call that waits for one.
pub(super) struct Sample {
    outputs: Outputs,
    /// The error code for an unexpected dtype.
    wrong_dtype: Code,
    wait: Duration,
}

impl Op for Sample {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplaySample",
        inputs: &["server_address: string", "table: string"],
        outputs: OUTPUTS,
        attrs: &["Toutput_list: list(type) >= 0", "wait_ms: int = 20", "in_graph: bool = false"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        // TensorFlow itself detects this in dm-reverb; only graphs report an internal error.
        let wrong_dtype =
            if attrs.bool("in_graph")? { Code::Internal } else { Code::InvalidArgument };
        Ok(Self { outputs: Outputs::create(attrs)?, wrong_dtype, wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let client = client(&context.input(0)?.text()?)?;
        let table = context.input(1)?.one_text("table")?;
        let runtime = client.runtime().clone();
        let dtypes = self.outputs.dtypes.clone();
        let wrong_dtype = self.wrong_dtype;
        let call = Box::pin(async move { sample(client, &table, &dtypes, wrong_dtype).await });
        self.outputs.set(context, pending::start(&runtime, call, self.wait)?)
    }
}

/// Waits again for an item.
pub(super) struct Resume {
    outputs: Outputs,
    wait: Duration,
}

impl Op for Resume {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplaySampleResume",
        inputs: &["call: int64"],
        outputs: OUTPUTS,
        attrs: &["Toutput_list: list(type) >= 0", "wait_ms: int = 50"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { outputs: Outputs::create(attrs)?, wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let pending = context.input(0)?.int()?;
        self.outputs.set(context, pending::resume(pending, self.wait)?)
    }
}

async fn sample(
    client: Arc<Client>,
    table: &str,
    dtypes: &[DType],
    wrong_dtype: Code,
) -> Outcome<Reply> {
    let signatures = client.signatures().await?;
    let mut cursor = SampleCursor::new(&client, table, 1, None);
    let sampled = cursor.next().await?;
    cursor.finish();
    let sampled = sampled.ok_or_else(|| Failure::internal("the server sent no sample"))?;
    let check = |signatures: &Signatures| {
        let signature = signatures.get(table).and_then(Option::as_deref);
        check(&sampled, table, dtypes, wrong_dtype, signature)
    };
    if check(&signatures).is_err() {
        // The cached signatures may be those of a previous server at this address.
        client.server_info().await?;
        check(&*client.signatures().await?)?;
    }
    Ok(Reply::Sampled(Box::new(sampled)))
}

/// Checks that the item consists of steps, and that they match the expected outputs.
fn check(
    sampled: &Sampled,
    table: &str,
    dtypes: &[DType],
    wrong_dtype: Code,
    signature: Option<&Signature>,
) -> Outcome<()> {
    let trajectory = &sampled.trajectory;
    let found = trajectory.num_columns();
    let expected = signature.map_or(dtypes.len(), |signature| signature.0.len());
    if found != dtypes.len() || found != expected {
        return Err(Failure::invalid_argument(format!(
            "Inconsistent number of tensors received from table '{table}'.  Specification has {expected} tensors, \
             {} were asked for, but data coming from the table shows {found} tensors.",
            dtypes.len(),
        )));
    }
    let mut steps = None;
    for (i, column) in trajectory.columns().enumerate() {
        let (dtype, shape) = trajectory.column_spec(&column)?;
        let first = *steps.get_or_insert(shape[0]);
        if shape[0] != first || first == 0 {
            return Err(not_timesteps(table, first, i, shape[0]));
        }
        if dtype != dtypes[i] {
            let text = format!(
                "data_dtypes must have the dtypes of table '{table}': column {i} holds {}, got {}",
                dtype.name(),
                dtypes[i].name(),
            );
            return Err(Failure::new(wrong_dtype, text));
        }
    }
    let Some(signature) = signature else { return Ok(()) };
    let specs = trajectory.columns().map(|column| {
        let (dtype, mut shape) = trajectory.column_spec(&column)?;
        shape.remove(0);
        Ok((dtype, shape))
    });
    let specs: Vec<(DType, Shape)> = specs.collect::<Result<_, Error>>()?;
    for (i, ((dtype, shape), spec)) in specs.iter().zip(&signature.0).enumerate() {
        if *dtype != spec.dtype || !spec.shape_matches(shape) {
            return Err(Failure::invalid_argument(format!(
                "Received incompatible tensor at flattened index {i} (column '{}') from table '{table}'.  \
                 Specification has (dtype, shape): ({}, {}).  Tensor has (dtype, shape): ({}, {}).",
                spec.name,
                spec.dtype.name(),
                spec.shape_text(),
                dtype.name(),
                reverb_data::tensor::shape_text(shape.iter()),
            )));
        }
    }
    Ok(())
}

/// The outputs of both ops.
struct Outputs {
    dtypes: Vec<DType>,
}

impl Outputs {
    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { dtypes: attrs.types("Toutput_list")? })
    }

    fn set(&self, context: &mut Context, progress: Progress) -> Outcome<()> {
        context.set_output(0, Output::int(progress.handle())?)?;
        if let Some(sampled) = progress.into_sampled()? {
            return self.set_sampled(context, &sampled);
        }
        for (i, dtype) in INFO_DTYPES.iter().chain(&self.dtypes).enumerate() {
            context.set_output(1 + i, Output::placeholder(*dtype)?)?;
        }
        Ok(())
    }

    fn set_sampled(&self, context: &mut Context, sampled: &Sampled) -> Outcome<()> {
        let trajectory = &sampled.trajectory;
        if trajectory.num_columns() != self.dtypes.len() {
            return Err(Failure::invalid_argument(
                "the handle belongs to a sample of another table",
            ));
        }
        let eight =
            |dtype, bytes: [u8; 8]| Output::numbers(dtype, Shape::new(), std::iter::once(bytes));
        context.set_output(1, eight(DType::UInt64, sampled.key.to_ne_bytes())?)?;
        context.set_output(2, eight(DType::Float64, sampled.probability.to_ne_bytes())?)?;
        context.set_output(3, eight(DType::Int64, sampled.table_size.to_ne_bytes())?)?;
        context.set_output(4, eight(DType::Float64, sampled.priority.to_ne_bytes())?)?;
        let times_sampled = std::iter::once(sampled.times_sampled.to_ne_bytes());
        context.set_output(5, Output::numbers(DType::Int32, Shape::new(), times_sampled)?)?;
        for (i, column) in trajectory.columns().enumerate() {
            let slice = column.slices().next();
            let slice = slice.ok_or_else(|| Failure::internal("a column has no slices"))?;
            let step =
                trajectory.chunks()[slice.chunk].tensor(slice.tensor)?.rows(slice.offset, 1)?;
            let shape = step.shape.iter().skip(1).copied().collect();
            context.set_output(6 + i, Output::from_tensor(&step, shape)?)?;
        }
        Ok(())
    }
}

const INFO_DTYPES: [DType; 5] =
    [DType::UInt64, DType::Float64, DType::Int64, DType::Float64, DType::Int32];
