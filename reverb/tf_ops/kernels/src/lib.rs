// SPDX-License-Identifier: Apache-2.0
//! TensorFlow's custom ops: sample, insert and update inside a graph.
//!
//! Design: `docs/design/tensorflow.md`.
//!
//! Nothing of TensorFlow is linked. `register` looks the functions of its stable C API up in the
//! process, so one binary works with every TensorFlow, and without it. It must be called while
//! `tf.load_op_library` loads a library, because only ops registered at that time become Python
//! functions; the shim beside this crate calls it then.
//!
//! No op blocks longer than its `wait_ms`, because the C API has no cancellation. An op that times
//! out returns an empty result, and the caller polls it again while the result is still needed.

mod api;
mod attrs;
mod environment;
mod failure;
mod handles;
mod kernel;
mod ops;
mod patterns;
mod pending;
mod row_specs;
mod rows;
mod sampler;
mod strings;
mod tensor;
mod timesteps;
mod waiting;
mod windows;
mod writers;

pub use api::register_address;
pub use environment::{Environment, install};
pub use sampler::close as close_sampler;
pub use writers::{register as register_writer, unregister as unregister_writer};
