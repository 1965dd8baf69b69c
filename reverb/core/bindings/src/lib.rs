// SPDX-License-Identifier: Apache-2.0
//! The compiled module `reverb.core._native`: glue between Python and the core, without decisions
//! of its own.
//!
//! Design: `docs/design/asyncio.md`.
//!
//! A method here parses its arguments, waits without the GIL, and converts the result. `unsafe`
//! lives in `array`, `batch`, `dlpack` and `inherited_ports`.

#![warn(clippy::disallowed_methods)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "Python methods own what was extracted from their arguments; nothing else does"
)]
#![allow(
    clippy::elidable_lifetime_names,
    reason = "'py shows that a value belongs to the interpreter"
)]

use pyo3::prelude::*;
use reverb_base::diagnosis::State;

mod aio;
mod array;
mod batch;
mod batch_options;
mod batched_column;
mod batched_writer;
mod batches_ahead;
mod checkpoint;
mod client;
mod column;
mod connect;
mod constant;
mod coordinator;
mod dlpack;
mod dtype;
mod error;
mod exit;
mod files;
mod flat_nest;
#[cfg(unix)]
mod inherited_ports;
mod legacy_writer;
mod limiter_hold;
mod locks;
mod logs;
mod nest;
mod new_items;
mod priority_updates;
mod process;
mod queued_writer;
mod sampler;
mod security;
mod selectors;
mod sequence_writer;
mod server;
mod shard_row;
mod store;
mod structured_writer;
mod table;
mod table_part;
mod tensorflow;
mod trajectory_writer;
mod wait;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    reverb_allocator::set_up();
    // `None` if the descriptor was closed when the interpreter started.
    reverb_log::install(!module.py().import("sys")?.getattr("__stderr__")?.is_none());
    selectors::add_classes(module)?;
    module.add("MAX_PRIORITY", reverb_data::MAX_PRIORITY)?;
    module.add("NUM_SLOTS", reverb_data::NUM_SLOTS)?;
    module.add("DTYPES", dtype::all())?;
    module.add("TABLE_STATES", State::ALL.map(|(_, name)| name))?;
    module.add_class::<table::RateLimiter>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<checkpoint::StoredCheckpoint>()?;
    module.add_class::<flat_nest::ColumnNames>()?;
    module.add_class::<flat_nest::NestFlattener>()?;
    module.add_class::<batch::Outputs>()?;
    module.add_class::<batch::BatchAnswer>()?;
    module.add_class::<shard_row::ShardRow>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<batches_ahead::BatchesAhead>()?;
    module.add_class::<aio::client::AsyncClient>()?;
    module.add_class::<aio::call::Call>()?;
    module.add_class::<aio::insertion::Insertion>()?;
    module.add_class::<queued_writer::QueuedWriter>()?;
    module.add_class::<limiter_hold::RateLimiterHold>()?;
    module.add_class::<coordinator::Coordinator>()?;
    module.add_class::<sampler::Sampler>()?;
    module.add_class::<legacy_writer::Writer>()?;
    module.add_class::<column::CellRef>()?;
    module.add_class::<column::TrajectoryColumn>()?;
    module.add_class::<column::ColumnHistory>()?;
    module.add_class::<trajectory_writer::TrajectoryWriter>()?;
    module.add_class::<batched_column::BatchedTrajectoryColumn>()?;
    module.add_class::<batched_column::BatchedColumnHistory>()?;
    module.add_class::<batched_writer::BatchedTrajectoryWriter>()?;
    module.add_class::<sequence_writer::SequenceWriter>()?;
    module.add_class::<structured_writer::StructuredWriter>()?;
    module.add_function(wrap_pyfunction!(dlpack::as_array, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::masked_crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(server::check_server_name, module)?)?;
    module.add_function(wrap_pyfunction!(server::check_limits, module)?)?;
    module.add_function(wrap_pyfunction!(server::check_unix_path, module)?)?;
    module.add_function(wrap_pyfunction!(server::process_memory, module)?)?;
    module.add_function(wrap_pyfunction!(files::open_file, module)?)?;
    module.add_function(wrap_pyfunction!(files::read_file, module)?)?;
    module.add_function(wrap_pyfunction!(store::examine_store, module)?)?;
    module.add_function(wrap_pyfunction!(batch_options::max_batch_bytes_of, module)?)?;
    module.add_function(wrap_pyfunction!(security::call_rights, module)?)?;
    module.add_function(wrap_pyfunction!(security::new_token, module)?)?;
    module.add_function(wrap_pyfunction!(security::token_hash, module)?)?;
    module.add_function(wrap_pyfunction!(security::check_tokens_file, module)?)?;
    module.add_function(wrap_pyfunction!(security::check_tls_files, module)?)?;
    module.add_function(wrap_pyfunction!(security::self_signed, module)?)?;
    module.add_class::<logs::LogLines>()?;
    module.add_function(wrap_pyfunction!(logs::configure_logs, module)?)?;
    module.add_function(wrap_pyfunction!(logs::print_log_line, module)?)?;
    module.add_function(wrap_pyfunction!(logs::wait_for_log, module)?)?;
    module.add_function(wrap_pyfunction!(logs::logs_to_queue, module)?)?;
    module.add_function(wrap_pyfunction!(logs::logs_to_stderr, module)?)?;
    module.add_function(wrap_pyfunction!(logs::report_waits, module)?)?;
    module.add_function(wrap_pyfunction!(process::shut_down, module)?)?;
    module.add_function(wrap_pyfunction!(table_part::table_part, module)?)?;
    module.add_function(wrap_pyfunction!(table_part::table_whole, module)?)?;
    module.add_function(wrap_pyfunction!(table_part::table_narrowness, module)?)?;
    module.add_function(wrap_pyfunction!(tensorflow::tensorflow_register_address, module)?)?;
    module.add_function(wrap_pyfunction!(tensorflow::close_sampler, module)?)?;
    process::register_hooks(module)
}
