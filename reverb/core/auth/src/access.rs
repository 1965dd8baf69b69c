// SPDX-License-Identifier: Apache-2.0
//! Rights of one caller.

use std::collections::BTreeSet;

use reverb_base::error::cut;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::Right;

use crate::entry::Key;
use crate::rights::Rights;

/// Maximum number of tables that a message names.
const MAX_NAMED_TABLES: usize = 10;

/// Tables that rights apply to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableSet {
    /// All tables of the server: `*`.
    All,
    /// These tables, which the server need not have.
    Named(BTreeSet<String>),
}

impl TableSet {
    fn contains(&self, table: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(tables) => tables.contains(table),
        }
    }
}

/// Rights of one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    name: String,
    rights: Rights,
    tables: TableSet,
    /// Token or certificate name of the caller.
    key: Key,
}

impl Access {
    pub(crate) fn new(name: String, rights: Rights, tables: TableSet, key: Key) -> Self {
        Self { name, rights, tables, key }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Name of the caller in messages: `token learner`, `certificate learner`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if it has this right on a table. The server need not have the table.
    pub fn has(&self, right: Right, table: &str) -> bool {
        self.rights.contains(right) && self.tables.contains(table)
    }

    /// Returns true if it has any right on a table.
    pub fn has_any(&self, table: &str) -> bool {
        self.tables.contains(table)
    }

    /// Returns true if it has this right on all tables.
    pub fn has_everywhere(&self, right: Right) -> bool {
        self.rights.contains(right) && self.tables == TableSet::All
    }

    /// Checks a call about a table. The answer is the same whether the server has the table or not,
    /// so it should be checked before the table is looked up.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` that names the call, the table, and the caller's rights.
    pub fn check(&self, right: Right, table: &str, call: &str) -> Result<()> {
        if self.has(right, table) {
            return Ok(());
        }
        Err(self.denied(call, right, &format!("{} table {}", right.verb(), cut(table))))
    }

    /// Checks a call that is about a table to be named later.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the caller has the right on no table.
    pub fn check_somewhere(&self, right: Right, call: &str) -> Result<()> {
        if self.rights.contains(right) {
            return Ok(());
        }
        Err(self.denied(call, right, &format!("{} any table", right.verb())))
    }

    /// Checks a call that is about the whole server.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the caller does not have the right on all tables.
    pub fn check_everywhere(&self, right: Right, call: &str) -> Result<()> {
        if self.has_everywhere(right) {
            return Ok(());
        }
        Err(self.denied(call, right, &format!("{} all tables", right.verb())))
    }

    fn denied(&self, call: &str, right: Right, what: &str) -> Error {
        // The verb of every other right is its name.
        let hint = if right == Right::Admin { " (right admin)" } else { "" };
        let message =
            format!("{call}: {} may not {what}{hint}; it may {}.", self.name, self.summary());
        Error::new(ErrorKind::PermissionDenied, message)
    }

    /// Summary of its rights: `sample and update (tables a and b)`.
    fn summary(&self) -> String {
        let verbs = self.rights.iter().map(|right| match right {
            Right::Admin => "administer",
            other => other.name(),
        });
        let verbs = joined(&verbs.collect::<Vec<_>>());
        let TableSet::Named(tables) = &self.tables else { return verbs };
        let mut names: Vec<&str> =
            tables.iter().take(MAX_NAMED_TABLES).map(String::as_str).collect();
        let more = tables.len().saturating_sub(names.len());
        let more = (more > 0).then(|| format!("{more} more"));
        names.extend(more.as_deref());
        format!("{verbs} (table{} {})", if tables.len() == 1 { "" } else { "s" }, joined(&names))
    }
}

/// A list in a sentence: `a, b and c`.
fn joined(parts: &[&str]) -> String {
    match parts {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => parts.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(rights: &[Right], tables: &[&str]) -> Access {
        let tables = match tables {
            ["*"] => TableSet::All,
            _ => TableSet::Named(tables.iter().map(ToString::to_string).collect()),
        };
        let key = Key::of_certificate("learner");
        Access::new("token learner".to_owned(), rights.iter().copied().collect(), tables, key)
    }

    #[test]
    fn a_missing_right_is_named_with_the_call_and_the_table() {
        let learner = access(&[Right::Update, Right::Sample], &["*"]);
        learner.check(Right::Sample, "replay", "SampleStream").unwrap();
        let error = learner.check(Right::Insert, "replay", "InsertStream").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(
            error.message(),
            "InsertStream: token learner may not insert into table replay; it may sample and update."
        );
        let error = learner.check_somewhere(Right::Insert, "InsertStream").unwrap_err();
        assert!(error.message().contains("may not insert into any table; "), "{error}");
        let error = learner.check(Right::Admin, "replay", "Reset").unwrap_err();
        assert!(error.message().contains("may not administer table replay (right admin); "));
    }

    #[test]
    fn rights_hold_for_the_tables_of_the_line() {
        let actor = access(&[Right::Insert, Right::Sample, Right::Admin], &["a", "b"]);
        assert!(actor.has(Right::Insert, "a") && actor.has_any("b"));
        assert!(!actor.has(Right::Update, "a") && !actor.has_any("c"));
        actor.check_somewhere(Right::Insert, "InsertStream").unwrap();
        let error = actor.check_everywhere(Right::Admin, "Drain").unwrap_err();
        assert_eq!(
            error.message(),
            "Drain: token learner may not administer all tables (right admin); \
             it may sample, insert and administer (tables a and b)."
        );
        let error = actor.check(Right::Insert, "c", "InsertStream").unwrap_err();
        assert!(error.message().contains("may not insert into table c; "), "{error}");
    }

    #[test]
    fn long_lists_of_tables_are_cut() {
        let names: Vec<String> = (10..30).map(|at| format!("t{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = access(&[Right::Sample], &names).check(Right::Sample, "x", "Scan").unwrap_err();
        assert!(error.message().ends_with("t18, t19 and 10 more)."), "{error}");
    }
}
