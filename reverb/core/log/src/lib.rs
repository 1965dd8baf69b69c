// SPDX-License-Identifier: Apache-2.0
//! The log of this process: filter, format and destination of its lines.
//!
//! Design: `docs/design/operations.md`.
//!
//! The crates of the core log by the macros of `tracing`. This crate decides which of these events
//! are shown ([`Filter`]), makes a [`Line`] of each, counts repeated lines instead of showing them
//! again, and hands the lines to a thread that writes them to standard error, as text or JSON, or
//! to a Python thread that empties a [`Queue`]. Nothing here takes the GIL.

mod escape;
mod filter;
mod format;
mod layer;
mod line;
mod logs;
mod queue;
mod repeats;
mod settings;
mod standard_error;
mod time;

pub use filter::{Filter, Unreadable};
pub use format::Format;
pub use line::{Line, Value};
pub use logs::{flush, print, to_queue, to_stderr, wait_until_written};
pub use queue::Queue;
pub use settings::{configure, install, log_config_problems};
