// SPDX-License-Identifier: Apache-2.0
//! Calls that change a server's tables: insert a step, update priorities.

use std::sync::Arc;
use std::time::Duration;

use reverb_base::Error;
use reverb_client::Client;
use reverb_data::DType;

use crate::attrs::Attrs;
use crate::environment::client;
use crate::failure::{Code, Failure, Outcome};
use crate::kernel::{Context, Definition, Op};
use crate::pending::{self, Reply};
use crate::tensor::{Input, Output};

/// Inserts one step, and an item of it into every table.
pub(super) struct Insert {
    wait: Duration,
}

impl Op for Insert {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayInsert",
        inputs: &[
            "server_address: string",
            "tables: string",
            "priorities: double",
            "data: Tdata_list",
        ],
        outputs: &["pending: int64"],
        attrs: &["Tdata_list: list(type) >= 1", "wait_ms: int = 20"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let client = client(&context.input(0)?.text()?)?;
        let tables = context.input(1)?;
        if tables.dtype() != DType::String || tables.shape().len() != 1 {
            return Err(Failure::invalid_argument("tables must be a tensor of strings of rank 1"));
        }
        let tables: Vec<String> = tables
            .strings()
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        let priorities = context.input(2)?;
        let priorities: Vec<f64> =
            priorities.vector("priorities", DType::Float64)?.map(f64::from_ne_bytes).collect();
        if tables.len() != priorities.len() {
            return Err(Failure::invalid_argument(format!(
                "tables and priorities must be of the same length, got {} and {}",
                tables.len(),
                priorities.len()
            )));
        }
        let data =
            (3..context.num_inputs()).map(|i| context.input(i)).collect::<Outcome<Vec<_>>>()?;
        let runtime = client.runtime().clone();
        let items: Vec<(String, f64)> = tables.into_iter().zip(priorities).collect();
        let call = Box::pin(insert(client, items, data));
        let progress = pending::start(&runtime, call, self.wait)?;
        context.set_output(0, Output::int(progress.handle())?)
    }
}

async fn insert(
    client: Arc<Client>,
    items: Vec<(String, f64)>,
    data: Vec<Input>,
) -> Outcome<Reply> {
    let mut insertion = client.start_insert().await?;
    let step: Vec<_> = data.iter().map(Input::cell).collect();
    // A flat list of tensors has no names.
    insertion.add(&step, &Arc::default(), &items).map_err(as_invalid_table)?;
    drop(step);
    drop(data);
    insertion.finish().await.map_err(as_invalid_table)?;
    Ok(Reply::Done)
}

/// Maps a missing table to an invalid argument, as dm-reverb does for inserts.
fn as_invalid_table(error: Error) -> Failure {
    let mut failure = Failure::from(error);
    if failure.code == Code::NotFound {
        failure.code = Code::InvalidArgument;
    }
    failure
}

/// Sets the priorities of items; unknown keys are ignored.
pub(super) struct UpdatePriorities {
    wait: Duration,
}

impl Op for UpdatePriorities {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayUpdatePriorities",
        inputs: &["server_address: string", "table: string", "keys: uint64", "priorities: double"],
        outputs: &["pending: int64"],
        attrs: &["wait_ms: int = 20"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let client = client(&context.input(0)?.text()?)?;
        let table = context.input(1)?.one_text("table")?;
        let keys = context.input(2)?;
        let priorities = context.input(3)?;
        let keys = keys.vector("keys", DType::UInt64)?.map(u64::from_ne_bytes).collect::<Vec<_>>();
        let priorities = priorities.vector("priorities", DType::Float64)?.map(f64::from_ne_bytes);
        let priorities = priorities.collect::<Vec<_>>();
        if keys.len() != priorities.len() {
            return Err(Failure::invalid_argument(format!(
                "keys and priorities must be of the same length, got {} and {}",
                keys.len(),
                priorities.len()
            )));
        }
        let runtime = client.runtime().clone();
        let updates: Vec<_> = keys.into_iter().zip(priorities).collect();
        let call = Box::pin(async move {
            client.mutate_priorities(&table, &updates, &[]).await?;
            Ok(Reply::Done)
        });
        let progress = pending::start(&runtime, call, self.wait)?;
        context.set_output(0, Output::int(progress.handle())?)
    }
}

/// Waits again for an insert or an update.
pub(super) struct Resume {
    wait: Duration,
}

impl Op for Resume {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayResume",
        inputs: &["call: int64"],
        outputs: &["pending: int64"],
        attrs: &["wait_ms: int = 50"],
    };

    fn create(attrs: &Attrs) -> Outcome<Self> {
        Ok(Self { wait: super::wait(attrs)? })
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let progress = pending::resume(context.input(0)?.int()?, self.wait)?;
        context.set_output(0, Output::int(progress.handle())?)
    }
}

/// Cancels a call.
pub(super) struct Abandon;

impl Op for Abandon {
    const DEFINITION: Definition = Definition {
        name: "ReverbReplayAbandon",
        inputs: &["call: int64"],
        outputs: &["was_pending: bool"],
        attrs: &[],
    };

    fn create(_attrs: &Attrs) -> Outcome<Self> {
        Ok(Self)
    }

    fn compute(&self, context: &mut Context) -> Outcome<()> {
        let was_pending = pending::abandon(context.input(0)?.int()?);
        context.set_output(0, Output::bool(was_pending)?)
    }
}
