// SPDX-License-Identifier: Apache-2.0
//! Checkpoints: a consistent snapshot of all tables of a server, in a directory.
//!
//! Design: `docs/design/checkpoints.md`.
//!
//! The files have dm-reverb's format, so each package can read the other's checkpoints. [`save()`]
//! copies a snapshot of tables in use and writes it to a partial directory. The checkpoint gets its
//! name when all of it is on disk. [`load()`] reads a checkpoint and verifies all its checksums
//! before it changes any table. [`Stored`] reads one without tables.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod blocks;
mod chunk_set;
mod cursor;
mod directory;
mod failure;
mod filling;
mod held;
mod legacy;
mod load;
mod manifest;
mod name;
mod pipeline;
mod progress;
mod record;
mod save;
mod settings;
mod statistics;
mod stored;
mod table_record;
mod zlib;

pub use cursor::ItemCursor;
pub use filling::{FillOptions, Filling};
pub use held::Held;
pub use load::{LoadOptions, Loaded, latest_of_another, load};
pub use name::ServerName;
pub use progress::Progress;
pub use save::{SaveOptions, Saved, save};
pub use settings::{from_config, to_config, to_counters_message, to_message};
pub use statistics::TableStatistics;
pub use stored::{Stored, StoredTable};
