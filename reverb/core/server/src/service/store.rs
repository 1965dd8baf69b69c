// SPDX-License-Identifier: Apache-2.0
//! Where a server keeps payloads that do not fit into its memory.

use std::path::PathBuf;

/// A directory for payloads.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The directory, which is made if it is missing.
    pub path: PathBuf,
    /// Limit of the bytes of all its files; that of the file system less 5 % if absent.
    pub max_bytes: Option<u64>,
}
