// SPDX-License-Identifier: Apache-2.0
//! States of the directory on disk of a server.

/// State of a store; the gravest comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreState {
    /// What has to be written is written.
    Ok,
    /// The disk is slow: inserts wait for a journal.
    Behind,
    /// It is at its limit: items leave, or inserts wait.
    Full,
    /// Writes fail: payloads stay in memory.
    Failing,
}

impl StoreState {
    /// All states in order.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Behind, Self::Full, Self::Failing];

    /// Name of the state: `ok`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Behind => "behind",
            Self::Full => "full",
            Self::Failing => "failing",
        }
    }

    /// State of this name; `None` for one of another release.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}
