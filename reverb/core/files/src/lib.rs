// SPDX-License-Identifier: Apache-2.0
//! Files that a server keeps: locks that show who uses them.
//!
//! Design: `docs/design/processes.md`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod lock;
mod owner;

pub use lock::{FileLock, is_locked, leave_locks_to_parent, lock_directory, open_to_lock};
pub use owner::Owner;
