// SPDX-License-Identifier: Apache-2.0
//! Where the log lines of this process go, and how they look.
//!
//! Design: `docs/design/operations.md`.
//!
//! The crates of the core log by the macros of `tracing`. This crate decides which of these events
//! are shown ([`Filter`]), makes a [`Line`] of each, counts lines that repeat instead of telling
//! them again, and writes them to standard error, as text or JSON, or into a [`Queue`] that a
//! thread of Python empties. Nothing here takes the GIL.

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
