// SPDX-License-Identifier: Apache-2.0
//! Checkpoints: all tables of a server as of one moment, in a directory.
//!
//! The files are those of dm-reverb, so that each can read the other's. [`save()`] copies a moment
//! of running tables and writes it aside; a checkpoint appears under its name when all of it is on
//! disk. [`load()`] reads one with all its checksums before any table is touched; [`Stored`] reads
//! one without tables.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod blocks;
mod chunk_set;
mod cursor;
mod directory;
mod failure;
mod held;
mod legacy;
mod load;
mod lock;
mod manifest;
mod name;
mod owner;
mod pipeline;
mod progress;
mod record;
mod save;
mod settings;
mod statistics;
mod stored;
mod zlib;

pub use cursor::ItemCursor;
pub use held::Held;
pub use load::{LoadOptions, Loaded, load};
pub use lock::leave_locks_to_parent;
pub use name::ServerName;
pub use progress::Progress;
pub use record::masked_crc;
pub use save::{SaveOptions, Saved, save};
pub use statistics::TableStatistics;
pub use stored::{Stored, StoredTable};
