// SPDX-License-Identifier: Apache-2.0
//! Files that a server keeps: locks that show who uses them, checksums, and the calls of a store,
//! also on disks that fail.
//!
//! Design: `docs/design/processes.md`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod checksum;
mod disk;
#[cfg(any(test, feature = "faults"))]
mod faults;
mod lock;
mod owner;
#[cfg(any(test, feature = "faults"))]
mod simulated;

pub use checksum::{masked_crc, masked_crc_of};
pub use disk::{Disk, DiskFile, FileSystem, Space, SystemDisk};
#[cfg(any(test, feature = "faults"))]
pub use faults::{FailingDisk, Faults};
pub use lock::{FileLock, is_locked, leave_locks_to_parent, lock_directory, open_to_lock};
pub use owner::Owner;
#[cfg(feature = "faults")]
pub use rustix::io::Errno;
#[cfg(any(test, feature = "faults"))]
pub use simulated::{Call, Restart, SimulatedDisk};
