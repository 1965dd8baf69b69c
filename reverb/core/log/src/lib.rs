// SPDX-License-Identifier: Apache-2.0
//! The log of this process: filter, format and destination of its lines.
//!
//! Design: `docs/design/operations.md`.
//!
//! The crates of the core log by the macros of `tracing`. This crate decides which of these events
//! are shown ([`Filter`]), makes a [`Line`] of each, counts repeated lines instead of showing them
//! again, and writes the lines to standard error, as text or JSON, or into a [`Queue`] that a
//! Python thread empties. Nothing here takes the GIL.

mod escape;
mod filter;
mod format;
mod layer;
mod line;
mod logs;
mod queue;
mod repeats;
mod settings;
mod time;

pub use filter::{Filter, Unreadable};
pub use format::Format;
pub use line::{Line, Value};
pub use logs::{after_fork_in_child, flush, to_queue, to_stderr, written};
pub use queue::Queue;
pub use settings::{configure, install, tell_problems};
