// SPDX-License-Identifier: Apache-2.0
//! Parts that every crate may use: errors, sentences and figures for people, files, memory of
//! batches, tasks that callers share, and statics in forked children.
//!
//! Design: `docs/design/rpc.md`, `docs/design/tensorflow.md`.
//!
//! Errors and sentences name tables and items; this crate holds none. It starts no thread and opens
//! no socket.

mod file;
mod store_state;
mod token_text;

pub mod byte_size;
pub mod diagnosis;
pub mod error;
pub mod figures;
#[allow(unsafe_code, reason = "memory of its own alignment")]
pub mod memory;
pub mod process;
pub mod ranked;
pub mod tasks;

pub use error::{Error, ErrorKind, Result};
pub use file::{Unreadable, open_directory, open_file, read_file};
pub use process::PerProcess;
pub use store_state::StoreState;
