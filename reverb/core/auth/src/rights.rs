// SPDX-License-Identifier: Apache-2.0
//! What a caller may do with a table.

use std::fmt;

/// A right on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Read items, and the status of the table.
    Sample,
    /// Insert items.
    Insert,
    /// Change priorities, and delete items.
    Update,
    /// All else: reset, change settings, pause. On all tables: checkpoints, and draining the
    /// server.
    Admin,
}

impl Right {
    /// All of them, in the order in which messages name them.
    pub const ALL: [Self; 4] = [Self::Sample, Self::Insert, Self::Update, Self::Admin];

    /// Its name in the file: `sample`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Admin => "admin",
        }
    }

    /// What it allows: `insert into`, which the name of a table follows.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Sample => "sample from",
            Self::Insert => "insert into",
            Self::Update => "update",
            Self::Admin => "administer",
        }
    }
}

/// A set of rights.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// Whether a right is in the set.
    pub fn contains(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    /// Its rights, in the order of [`Right::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |&right| self.contains(right))
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        Self(rights.into_iter().fold(0, |set, right| set | 1 << right as u8))
    }
}

/// As the file has them: `sample,update`.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, right) in self.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { "," } else { "" }, right.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}
