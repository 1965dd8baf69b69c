// SPDX-License-Identifier: Apache-2.0
//! The client, for Python.

use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyReadonlyArray1};
use parking_lot::Mutex;
use prost::Message;
use prost::bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use reverb_base::{Error, Result};
use reverb_client::{
    BatchedWriter, Client as Core, Configs, LegacyOptions, LegacyWriter, Matching, SampleCursor,
    ScanCursor,
};
use reverb_data::codec::Compression;
use reverb_data::keep_samples;
use reverb_rpc::Keepalive;
use reverb_rpc::client::{ConnectionOptions, Credentials, Environment, Security};
use reverb_shards::group::Group;
use reverb_wire::calls::{Call as _, SmallCall};
use reverb_wire::convert::item_condition::from_item_condition;
use reverb_wire::generated::ResetRequest;
use reverb_wire::generated::reverb::HoldRateLimiterRequest;
use reverb_wire::shard::Shard;

use crate::batch::{BatchAnswer, Lent};
use crate::batch_options::{BatchOptions, Window};
use crate::batched_writer::BatchedTrajectoryWriter;
use crate::connect::{AddressConnector, target_of};
use crate::error::OrRaise;
use crate::flat_nest::ColumnNames;
use crate::legacy_writer::Writer;
use crate::limiter_hold::RateLimiterHold;
use crate::locks::Visit;
use crate::new_items::{
    InsertOptions, ItemChanges, add_item, add_rows, item_priorities, row_priorities, send_changes,
};
use crate::priority_updates::{parse_mutation, parse_row_updates};
use crate::process::{Local, runtime};
use crate::sampler::{Cursor, Sampler, with_samples};
use crate::security::ClientSecurity;
use crate::sequence_writer::{SequenceArguments, SequenceWriter};
use crate::shard_row::ShardRow;
use crate::structured_writer::StructuredWriter;
use crate::trajectory_writer::TrajectoryWriter;
use crate::wait::{sample_timeout_ms, wait_while};

/// Client of one address. Connects on first use.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Client {
    address: String,
    connect_timeout: Duration,
    keepalive: Keepalive,
    /// Compression of its inserts.
    compression: Compression,
    /// Copied for every core, so that no lock in it can be held by another thread during a fork.
    security: Security,
    /// Recreated after a fork. `None` after `close`.
    parts: Mutex<Option<Local<Parts>>>,
}

pub(crate) struct Parts {
    pub(crate) core: Arc<Core>,
    connector: AddressConnector,
}

impl Client {
    pub(crate) fn core(&self) -> PyResult<Arc<Core>> {
        self.of_parts(|parts| Arc::clone(&parts.core)).or_raise()
    }

    /// The core for a writer whose chunks are compressed, or not.
    pub(crate) fn core_of_writer(&self, compresses: bool) -> PyResult<Arc<Core>> {
        let core = self.core()?;
        let compression = compression(compresses);
        if core.compression() == compression {
            return Ok(core);
        }
        Ok(Arc::new(core.with_compression(compression)))
    }

    fn connector(&self) -> Result<AddressConnector> {
        self.of_parts(|parts| parts.connector.clone())
    }

    /// # Errors
    ///
    /// `FailedPrecondition` if the client is closed.
    fn of_parts<T>(&self, part: impl FnOnce(&Parts) -> T + Send) -> Result<T> {
        self.parts.visit(|parts| {
            let Some(parts) = parts else { return Err(is_closed()) };
            if !parts.origin().is_here() {
                let security = self.security.copy();
                // The address was parsed before.
                if let Ok(new) =
                    new_parts(&self.address, self.connect_timeout, self.keepalive, security)
                {
                    let new = new.storing(self.compression);
                    *parts = Local::new(new);
                }
            }
            Ok(part(parts))
        })
    }

    /// Waits for a call until it ends or the client is closed.
    fn wait<T, F>(&self, py: Python<'_>, call: F) -> PyResult<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        wait_while(py, call, || self.of_parts(|_| ()))
    }

    /// Group at the address.
    pub(crate) fn group(&self, what: &str) -> Result<Arc<Group>> {
        match self.connector()? {
            AddressConnector::Group { transport, .. } => Ok(Arc::clone(transport.group())),
            AddressConnector::Servers(_) => Err(Error::invalid_argument(format!(
                "{what} needs the address of a group of shards (shards:///...), got {}.",
                self.address
            ))),
        }
    }

    /// The single server at the address.
    fn shard(&self, what: &str) -> Result<Arc<dyn Shard>> {
        match self.connector()? {
            AddressConnector::Servers(servers) if !servers.has_several_servers() => servers.shard(),
            _ => Err(Error::invalid_argument(format!(
                "{} has several servers, and {what} is a call to one of them: make a client of \
                 that server.",
                self.address
            ))),
        }
    }

    /// Makes a small call with an encoded request. See `call`.
    pub(crate) fn small_call(
        &self,
        name: &str,
        request: &[u8],
        timeout_s: Option<f64>,
    ) -> PyResult<(&'static SmallCall, impl Future<Output = Result<Bytes>> + Send + 'static)> {
        let call = SmallCall::named(name).ok_or_else(|| {
            PyValueError::new_err(format!("{name:?} is not the name of a small call."))
        })?;
        let core = self.core()?;
        let limit = timeout_s.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let request = Bytes::copy_from_slice(request);
        Ok((call, async move { core.small_call(call, request, limit).await }))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (server_address, connect_timeout_s, keepalive_s, keepalive_timeout_s, credentials, compresses, is_for_operators=false))]
    #[allow(clippy::too_many_arguments, reason = "arguments of Python")]
    fn new(
        py: Python<'_>,
        server_address: String,
        connect_timeout_s: f64,
        keepalive_s: Option<f64>,
        keepalive_timeout_s: f64,
        credentials: Option<ClientSecurity>,
        compresses: bool,
        is_for_operators: bool,
    ) -> PyResult<Self> {
        let connect_timeout = seconds("connect_timeout_s", connect_timeout_s)?;
        let keepalive = Keepalive::from_seconds(keepalive_s, keepalive_timeout_s).or_raise()?;
        let target = target_of(&server_address).or_raise()?;
        let credentials =
            credentials.map_or_else(Credentials::default, ClientSecurity::credentials);
        // Files may be slow.
        let mut security =
            py.detach(|| credentials.open(&target, Environment::now())).or_raise()?;
        security.is_for_operators = is_for_operators;
        let copy = security.copy();
        let parts = new_parts(&server_address, connect_timeout, keepalive, copy).or_raise()?;
        let compression = compression(compresses);
        let parts = Mutex::new(Some(Local::new(parts.storing(compression))));
        let address = server_address;
        Ok(Self { address, connect_timeout, keepalive, compression, security, parts })
    }

    /// Ends questions and changes when the server is silent for this long. Not after a fork.
    #[pyo3(signature = (limit_s))]
    fn give_up_on_silence(&self, limit_s: f64) -> PyResult<()> {
        self.core()?.give_up_on_silence(seconds("limit_s", limit_s)?);
        Ok(())
    }

    /// Ends all calls that wait. Objects that were made of this client keep its connections.
    fn close(&self, py: Python<'_>) {
        let parts = self.parts.visit(Option::take);
        // Connections end, and files are closed.
        py.detach(|| drop(parts));
    }

    /// The same client for objects that outlive it: `close` does not end its calls.
    fn lasting(&self) -> PyResult<Self> {
        let parts = self.of_parts(|Parts { core, connector, .. }| Parts {
            core: Arc::clone(core),
            connector: connector.clone(),
        });
        Ok(Self {
            address: self.address.clone(),
            connect_timeout: self.connect_timeout,
            keepalive: self.keepalive,
            compression: self.compression,
            security: self.security.copy(),
            parts: Mutex::new(Some(Local::new(parts.or_raise()?))),
        })
    }

    /// Returns true if the server is in this process now.
    pub(crate) fn is_local(&self) -> PyResult<bool> {
        let connector = self.connector().or_raise()?;
        Ok(matches!(connector, AddressConnector::Servers(servers) if servers.is_local()))
    }

    /// Makes a small call: `Reset`, `Status` and others of `wire/calls.rs`. Takes and returns
    /// serialized messages.
    #[pyo3(signature = (name, request, timeout_s=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        request: &[u8],
        timeout_s: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (call, asked) = self.small_call(name, request, timeout_s)?;
        let answer = self.wait(py, asked)?;
        if call.row.path == ResetRequest::PATH {
            // If the server runs in this process, this thread freed the items.
            py.detach(reverb_allocator::purge);
        }
        Ok(PyBytes::new(py, &answer))
    }

    #[pyo3(signature = (table, updates, deletes))]
    fn mutate_priorities(
        &self,
        py: Python<'_>,
        table: &str,
        updates: Option<&Bound<'_, PyAny>>,
        deletes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (updates, deletes) = parse_mutation(updates, deletes)?;
        let core = self.core()?;
        self.wait(py, core.mutate_priorities(table, &updates, &deletes))
    }

    #[pyo3(signature = (table, keys, priorities))]
    fn update_priorities(
        &self,
        py: Python<'_>,
        table: &str,
        keys: PyReadonlyArray1<'_, u64>,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let updates = parse_row_updates(&keys, &priorities)?;
        let core = self.core()?;
        self.wait(py, core.mutate_priorities(table, &updates, &[]))
    }

    #[pyo3(signature = (table, count))]
    fn hold_rate_limiter(
        &self,
        py: Python<'_>,
        table: String,
        count: bool,
    ) -> PyResult<RateLimiterHold> {
        let core = self.core()?;
        let hold =
            self.wait(py, core.hold_rate_limiter(HoldRateLimiterRequest { table, count }))?;
        Ok(RateLimiterHold::new(hold))
    }

    fn shard_info(&self, py: Python<'_>) -> PyResult<Vec<ShardRow>> {
        let group = self.group("shard_info").or_raise()?;
        let rows = self.wait(py, async move { group.shard_info().await })?;
        Ok(rows.into_iter().map(|row| ShardRow::new(py, row)).collect())
    }

    /// Keys that this client wanted to update or delete, and that no shard had.
    fn updates_missed(&self) -> PyResult<u64> {
        Ok(self.group("updates_missed").or_raise()?.num_missed_updates())
    }

    /// Adds the items of a table of this server whose keys have these slots (all slots, if the list
    /// is empty) to another server. Returns the number of items added there, and of items that it
    /// already had.
    #[pyo3(signature = (table, slots, target))]
    fn transfer(
        &self,
        py: Python<'_>,
        table: String,
        slots: Vec<u16>,
        target: &Self,
    ) -> PyResult<(i64, i64)> {
        let source = self.shard("the items to move").or_raise()?;
        let target = target.shard("the items to add").or_raise()?;
        let moved = self.wait(py, async move {
            reverb_shards::transfer::transfer(&*source, &*target, &table, &slots).await
        })?;
        Ok((moved.num_added, moved.num_present))
    }

    /// One item for each table; of a sequence, its columns are `[T, ...]`, which may differ in `T`.
    #[pyo3(signature = (leaves, names, priorities, removal_priorities, is_sequence = false, options = None))]
    #[allow(clippy::too_many_arguments, reason = "arguments of Python")]
    fn insert(
        &self,
        py: Python<'_>,
        leaves: Vec<Bound<'_, PyAny>>,
        names: &Bound<'_, ColumnNames>,
        priorities: &Bound<'_, PyDict>,
        removal_priorities: Option<&Bound<'_, PyDict>>,
        is_sequence: bool,
        options: Option<InsertOptions<'_>>,
    ) -> PyResult<()> {
        let priorities = item_priorities(priorities, removal_priorities)?;
        let mut insertion = self.wait(py, self.core()?.start_insert())?;
        options.map_or(Ok(()), |it| it.set(&mut insertion))?;
        add_item(&mut insertion, &leaves, names, &priorities, is_sequence)?;
        self.wait(py, insertion.finish())
    }

    /// All arrays must have the same length.
    #[pyo3(signature = (leaves, names, priorities, removal_priorities, options = None))]
    fn insert_batch<'py>(
        &self,
        py: Python<'py>,
        leaves: Vec<Bound<'py, PyAny>>,
        names: &Bound<'py, ColumnNames>,
        priorities: &Bound<'py, PyDict>,
        removal_priorities: Option<&Bound<'py, PyDict>>,
        options: Option<InsertOptions<'_>>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let tables = row_priorities(priorities, removal_priorities)?;
        let mut insertion = self.wait(py, self.core()?.start_insert())?;
        options.map_or(Ok(()), |it| it.set(&mut insertion))?;
        let keys = add_rows(&mut insertion, &leaves, names, &tables)?;
        self.wait(py, insertion.finish())?;
        Ok(PyArray1::from_vec(py, keys))
    }

    /// Adds or changes items with rollouts.
    #[pyo3(signature = (changes))]
    fn change_items<'py>(
        &self,
        py: Python<'py>,
        changes: ItemChanges<'py>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut insertion = self.wait(py, self.core()?.start_insert())?;
        changes.add_to(&mut insertion)?;
        let limit = changes.limit();
        let refused = self.wait(py, send_changes(insertion, limit))?;
        Ok(refused.iter().map(|it| PyBytes::new(py, it)).collect())
    }

    /// Holder of the leases of this client, and the number of the next one.
    fn new_lease(&self) -> PyResult<(u64, u64)> {
        let core = self.core()?;
        Ok((core.holder(), core.new_lease()))
    }

    /// Releases a lease some time, without waiting for it.
    #[pyo3(signature = (table, number))]
    fn give_up_lease(&self, table: String, number: u64) -> PyResult<()> {
        self.core()?.give_up_lease(table, number);
        Ok(())
    }

    /// Takes items with rollouts, for a serialized `TakeRequest` and the number of a lease.
    #[pyo3(signature = (request, number))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        request: &[u8],
        number: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let request = decoded(request)?;
        let core = self.core()?;
        let answer = self.wait(py, core.take(request, number))?;
        Ok(PyBytes::new(py, &answer))
    }

    #[pyo3(signature = (max_sequence_length, chunk_length, delta_encoded, max_in_flight_items, compresses))]
    fn writer(
        &self,
        py: Python<'_>,
        max_sequence_length: usize,
        chunk_length: usize,
        delta_encoded: bool,
        max_in_flight_items: usize,
        compresses: bool,
    ) -> PyResult<Py<Writer>> {
        let core = self.core_of_writer(compresses)?;
        let options =
            LegacyOptions { max_sequence_length, chunk_length, delta_encoded, max_in_flight_items };
        let signatures = self.wait(py, core.signatures())?;
        Writer::wrap(py, LegacyWriter::new(&core, options, signatures))
    }

    #[pyo3(signature = (num_keep_alive_refs, validate_items, match_names, compresses))]
    fn trajectory_writer(
        &self,
        py: Python<'_>,
        num_keep_alive_refs: usize,
        validate_items: bool,
        match_names: bool,
        compresses: bool,
    ) -> PyResult<Py<TrajectoryWriter>> {
        let core = self.core_of_writer(compresses)?;
        let signatures =
            if validate_items { Some(self.wait(py, core.signatures())?) } else { None };
        let writer = reverb_client::TrajectoryWriter::new(
            &core,
            num_keep_alive_refs,
            signatures,
            matching(match_names),
        );
        TrajectoryWriter::wrap(py, writer)
    }

    #[pyo3(signature = (batch_size, num_keep_alive_refs, validate_items, compresses))]
    fn batched_trajectory_writer(
        &self,
        py: Python<'_>,
        batch_size: usize,
        num_keep_alive_refs: usize,
        validate_items: bool,
        compresses: bool,
    ) -> PyResult<Py<BatchedTrajectoryWriter>> {
        let core = self.core_of_writer(compresses)?;
        let signatures =
            if validate_items { Some(self.wait(py, core.signatures())?) } else { None };
        let writer = BatchedWriter::new(&core, batch_size, num_keep_alive_refs, signatures);
        BatchedTrajectoryWriter::wrap(py, writer)
    }

    #[pyo3(signature = (options, compresses))]
    fn sequence_writer(
        &self,
        py: Python<'_>,
        options: SequenceArguments,
        compresses: bool,
    ) -> PyResult<Py<SequenceWriter>> {
        let core = self.core_of_writer(compresses)?;
        let signatures = self.wait(py, core.signatures())?;
        let writer = reverb_client::SequenceWriter::new(&core, options.into(), signatures);
        SequenceWriter::wrap(py, writer.or_raise()?)
    }

    #[pyo3(signature = (configs, compresses))]
    #[allow(clippy::needless_pass_by_value, reason = "an argument of Python")]
    fn structured_writer(
        &self,
        py: Python<'_>,
        configs: Vec<Vec<u8>>,
        compresses: bool,
    ) -> PyResult<Py<StructuredWriter>> {
        let configs = Configs::decode(&configs).or_raise()?;
        let core = self.core_of_writer(compresses)?;
        StructuredWriter::wrap(py, reverb_client::StructuredWriter::new(&core, configs))
    }

    #[pyo3(signature = (table, max_samples, emit_timesteps, timeout_ms, unflatten, window=None))]
    fn sampler(
        &self,
        table: &str,
        max_samples: u64,
        emit_timesteps: bool,
        timeout_ms: Option<i64>,
        unflatten: Option<Py<PyAny>>,
        window: Option<Window>,
    ) -> PyResult<Sampler> {
        let timeout = sample_timeout_ms(timeout_ms).or_raise()?;
        let core = self.core()?;
        let mut cursor = SampleCursor::new(&core, table, max_samples, timeout);
        if let Some(Window((window, spans))) = &window {
            cursor = cursor.with_window(*window, spans);
        }
        let window = window.map(|Window((window, _))| window);
        let mut sampler = Sampler::new(Cursor::Sample(cursor), unflatten);
        sampler.emit_timesteps = emit_timesteps;
        sampler.window = window;
        Ok(sampler)
    }

    #[pyo3(signature = (table, columns, condition, partial, with_inserted_at, unflatten))]
    fn scanner(
        &self,
        table: &str,
        columns: Vec<u32>,
        condition: &[u8],
        partial: bool,
        with_inserted_at: bool,
        unflatten: Option<Py<PyAny>>,
    ) -> PyResult<Sampler> {
        let condition = from_item_condition(Some(&decoded(condition)?));
        let core = self.core()?;
        let cursor = ScanCursor::new(&core, table)
            .with_columns(columns)
            .with_condition(condition)
            .with_partial(partial);
        let mut sampler = Sampler::new(Cursor::Scan(cursor), unflatten);
        sampler.with_inserted_at = with_inserted_at;
        Ok(sampler)
    }

    #[pyo3(signature = (request, keys))]
    fn fetch(
        &self,
        py: Python<'_>,
        request: BatchOptions,
        keys: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<BatchAnswer> {
        let core = self.core()?;
        let keys = keys.as_array().to_vec();
        let (items, batch) = self.wait(py, core.fetch(&request.request(), &keys))?;
        request.answer(py, &items, batch)
    }

    #[pyo3(signature = (request))]
    fn sample_batch(&self, py: Python<'_>, request: BatchOptions) -> PyResult<BatchAnswer> {
        let core = self.core()?;
        let lent = request.lend().or_raise()?;
        let given = lent.as_ref().map(Lent::columns);
        let mut taken = Vec::new();
        let batch = self.wait(py, core.sample_batch(&request.request(), given, &mut taken));
        let batch = batch.map_err(|error| with_samples(py, error, &taken))?;
        let answer = request.answer(py, &taken, batch);
        keep_samples(taken);
        answer
    }
}

impl Parts {
    /// The same parts, of a client whose inserts are compressed like this.
    fn storing(self, compression: Compression) -> Self {
        Self { core: Arc::new(self.core.with_compression(compression)), ..self }
    }
}

fn compression(compresses: bool) -> Compression {
    if compresses { Compression::Auto } else { Compression::None }
}

/// A duration of at least 0.
pub(crate) fn seconds(argument: &str, value: f64) -> PyResult<Duration> {
    let seconds = Duration::try_from_secs_f64(value).map_err(|_| {
        Error::invalid_argument(if value >= 0.0 && value.is_finite() {
            format!("{argument} must be at most 1e19 s, got {value:e}")
        } else {
            format!("{argument} must be a number of seconds of at least 0, got {value}")
        })
    });
    seconds.or_raise()
}

pub(crate) fn decoded<M: Message + Default>(message: &[u8]) -> PyResult<M> {
    // Decoding code is generated for each type of buffer; this one is used everywhere.
    let decoded = M::decode(Bytes::copy_from_slice(message));
    decoded
        .map_err(|error| Error::invalid_argument(format!("Malformed message: {error}.")))
        .or_raise()
}

pub(crate) fn new_parts(
    address: &str,
    connect_timeout: Duration,
    keepalive: Keepalive,
    security: Security,
) -> Result<Parts> {
    let options = ConnectionOptions { connect_timeout, keepalive, security };
    let connector = AddressConnector::new(address, options)?;
    let runtime = runtime().handle().clone();
    let core = Core::new(address, Box::new(connector.clone()), connect_timeout, runtime);
    Ok(Parts { core: Arc::new(core), connector })
}

/// The error of calls of a closed client.
fn is_closed() -> Error {
    Error::failed_precondition("This reverb.Client is closed; make a new one")
}

/// Matching of a writer's columns to those of a table's signature.
pub(crate) fn matching(by_name: bool) -> Matching {
    if by_name { Matching::ByName } else { Matching::ByPosition }
}
