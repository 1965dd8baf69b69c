// SPDX-License-Identifier: Apache-2.0
//! Payloads of chunks on disk, and tables that survive a crash.
//!
//! A [`Store`] has a directory of data files and one thread, which writes the payloads that it is
//! given. Nothing in it survives its process: it makes room in memory, and no more. It does not
//! know which chunks there are; who goes round the tables gives them to it.
//!
//! A [`Journal`] has data files too, and records what happened to items: in a log since a base, in
//! a base all of them. Items and settings of tables are bytes to it.
//!
//! Design: `docs/design/processes.md`, `docs/design/locks.md`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod appender;
mod base;
mod changes;
mod check;
mod counts;
mod data_files;
mod directory;
mod frame;
mod head;
mod journal;
mod listing;
mod log;
mod observer;
mod open_file;
mod pace;
mod queue;
mod record;
mod recovered;
mod recovery;
mod repair;
mod replay;
mod status;
mod store;
mod writer;

pub use changes::{Changes, ItemRecord, Items, Note, TableChanges};
pub use check::{LostItems, Report, StoredTable, check};
pub use data_files::FilesToEmpty;
pub use journal::{Committed, Journal};
pub use observer::Observer;
pub use recovered::{Recovered, RecoveredItem, RecoveredTable};
pub use recovery::check_not_cancelled;
pub use repair::repair;
pub use status::{DiskErrors, Failure, StoreStatus};
pub use store::{Store, StoreOptions};
