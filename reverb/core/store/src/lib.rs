// SPDX-License-Identifier: Apache-2.0
//! Payloads of chunks on disk.
//!
//! A [`Store`] has a directory of data files and one thread, which writes the payloads that it is
//! given. Nothing in it survives its process: it makes room in memory, and no more. It does not
//! know which chunks there are; who goes round the tables gives them to it.
//!
//! Design: `docs/design/processes.md`, `docs/design/locks.md`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod counts;
mod data_files;
mod directory;
mod head;
mod open_file;
mod queue;
mod status;
mod store;
mod writer;

pub use data_files::FilesToEmpty;
pub use status::{DiskErrors, Failure, StoreStatus};
pub use store::{Store, StoreOptions};
