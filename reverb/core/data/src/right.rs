// SPDX-License-Identifier: Apache-2.0
//! A right of a caller on a table.

/// A right on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Read items, and the status of the table.
    Sample,
    /// Insert items.
    Insert,
    /// Change priorities, and delete items.
    Update,
    /// Everything else: reset, change settings, pause. On all tables: checkpoints, and draining the
    /// server.
    Admin,
}

impl Right {
    /// All rights, in the order in which messages list them.
    pub const ALL: [Self; 4] = [Self::Sample, Self::Insert, Self::Update, Self::Admin];

    /// Name in the tokens file: `sample`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Admin => "admin",
        }
    }

    /// Verb for messages: `insert into`, followed by the name of a table.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Sample => "sample from",
            Self::Insert => "insert into",
            Self::Update => "update",
            Self::Admin => "administer",
        }
    }
}
