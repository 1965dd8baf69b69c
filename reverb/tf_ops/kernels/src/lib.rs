// SPDX-License-Identifier: Apache-2.0
//! TensorFlow's custom ops: sample, insert and update inside a graph.
//!
//! Nothing of TensorFlow is linked. `register` looks the functions of its stable C API up in the
//! process, so one binary serves every TensorFlow, and works where there is none. It must be called
//! while `tf.load_op_library` loads a library, because only what is registered at that time becomes
//! Python functions; the shim beside this crate does so.
//!
//! No op waits longer than its `wait_ms`: the C API has no cancellation, so whoever waits comes
//! back empty-handed from time to time, and is called again unless nobody wants the result any
//! more.

mod api;
mod attrs;
mod environment;
mod failure;
mod handles;
mod kernel;
mod memory;
mod ops;
mod patterns;
mod pending;
mod rows;
mod sampler;
mod strings;
mod tensor;
mod timesteps;
mod waiting;
mod writers;

pub use api::register_address;
pub use environment::{Environment, install};
pub use memory::give_back;
pub use sampler::close_parked;
pub use writers::{lend as lend_writer, take_back as take_back_writer};
