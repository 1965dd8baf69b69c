// SPDX-License-Identifier: Apache-2.0
//! Rollouts: items that grow, a try at a prompt after the other, until a learner can have them.
//!
//! An item has columns that it has once (the prompt), and rollouts, each of one or more sequences,
//! which have the other columns. A part of a change is one column of the item, or of one sequence.
//! Everything here is a function of values: no table, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::{Error, Result};

use crate::trajectory::Column;
use crate::{StoredItem, Trajectory, TrajectoryBuilder};

/// Largest number of rollouts of an item.
pub const MAX_ROLLOUTS: u32 = 1024;
/// Largest number of sequences of an item, over all rollouts.
pub const MAX_SEQUENCES: usize = 65_536;
/// Largest number of columns of a table with rollouts.
pub const MAX_COLUMNS: u32 = 1024;
/// Largest number of bytes of an item's name.
pub const MAX_NAME_BYTES: usize = 256;

/// What happens to an item that is staler than its table allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStale {
    /// It is a bare prompt again, and its rollouts are made once more.
    #[default]
    Again,
    /// Nothing.
    Keep,
    /// It does not come to that: a learner waits for old items before it takes younger ones. If the
    /// version makes a leap all the same, as `Again`.
    Wait,
}

impl OnStale {
    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Keep => "keep",
            Self::Wait => "wait",
        }
    }
}

/// Settings of a table whose items have rollouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutSettings {
    /// Number of columns of the signature.
    pub num_columns: u32,
    /// Positions of the columns that an item has once; sorted.
    pub item_columns: Box<[u32]>,
    /// Rollouts of an item.
    pub num_rollouts: u32,
    /// With how many final rollouts an item may be trained on when the others have failed.
    pub min_rollouts: u32,
    /// Batches that generators may be ahead of the learner; `None`: `max_staleness`.
    pub ahead: Option<u32>,
    /// Items that the learner takes for each version.
    pub items_per_version: Option<u32>,
    /// Largest staleness of an item; `None`: any.
    pub max_staleness: Option<u32>,
    /// What happens to items that are staler.
    pub on_stale: OnStale,
    /// How long one client may hold an open item.
    pub open_timeout: Option<Duration>,
    /// How many clients may lose an item before it leaves as failed.
    pub max_attempts: u32,
}

impl RolloutSettings {
    /// True for a column that an item has once.
    pub fn is_of_item(&self, column: u32) -> bool {
        self.item_columns.binary_search(&column).is_ok()
    }

    /// Number of items that may be present or taken for the present version; `None`: any.
    pub fn backlog(&self) -> Option<u64> {
        let ahead = self.ahead.or(self.max_staleness)?;
        Some((u64::from(ahead) + 1) * u64::from(self.items_per_version?))
    }

    /// Checks every argument.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, its value and its limit.
    pub fn validate(&self) -> Result<()> {
        within("the number of columns", self.num_columns, 1..=MAX_COLUMNS)?;
        within("num_rollouts", self.num_rollouts, 1..=MAX_ROLLOUTS)?;
        within("max_attempts", self.max_attempts, 1..=u32::MAX)?;
        let is_sorted = self.item_columns.is_sorted_by(|a, b| a < b);
        if !is_sorted || self.item_columns.last().is_some_and(|&last| last >= self.num_columns) {
            return Err(Error::invalid_argument(format!(
                "item has the columns {:?}, which must be different positions below {}.",
                self.item_columns, self.num_columns
            )));
        }
        if self.item_columns.len() == self.num_columns as usize {
            return Err(Error::invalid_argument(
                "item has all columns; at least one must be of sequences.",
            ));
        }
        if !(1..=self.num_rollouts).contains(&self.min_rollouts) {
            return Err(Error::invalid_argument(format!(
                "min_rollouts must be at least 1 and at most num_rollouts ({}), got {}.",
                self.num_rollouts, self.min_rollouts
            )));
        }
        match (self.ahead, self.items_per_version, self.max_staleness) {
            (_, Some(0), _) => {
                Err(Error::invalid_argument("items_per_version must be at least 1, got 0."))
            }
            (Some(_), None, _) => Err(Error::invalid_argument("ahead needs items_per_version.")),
            (None, Some(_), None) => {
                Err(Error::invalid_argument("items_per_version needs ahead or max_staleness."))
            }
            (Some(ahead), _, Some(most)) if most < ahead => Err(Error::invalid_argument(format!(
                "max_staleness ({most}) must be at least ahead ({ahead})."
            ))),
            (_, None, _) if self.on_stale == OnStale::Wait => Err(wait_needs()),
            _ if self.on_stale == OnStale::Wait && self.open_timeout.is_none() => Err(wait_needs()),
            _ => Ok(()),
        }
    }
}

fn wait_needs() -> Error {
    Error::invalid_argument("on_stale=\"wait\" needs items_per_version and open_timeout_s.")
}

fn within(what: &str, value: u32, range: RangeInclusive<u32>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (first, last) = (range.start(), range.end());
    Err(Error::invalid_argument(format!(
        "{what} must be at least {first} and at most {last}, got {value}."
    )))
}

/// A table with rollouts at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutsInfo {
    /// Version of the policy.
    pub version: i64,
    /// Name of the item that was inserted last.
    pub newest: Box<str>,
    /// Items taken since the version was set.
    pub taken: u64,
    /// Items that the backlog counts.
    pub backlog: u64,
    /// Open items.
    pub open: u64,
    /// Settled ones.
    pub settled: u64,
    /// Ready ones.
    pub ready: u64,
    /// Those of them all that clients hold.
    pub leased: u64,
    /// Ready ones that clients hold.
    pub ready_held: u64,
    /// Those of them that were taken since the version was set.
    pub taken_held: u64,
    /// Numbers of items that left since the table was first made, by the name of the reason; those
    /// that are not 0.
    pub left: Vec<(Box<str>, u64)>,
}

/// Versions of the policy that made the tokens of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest one.
    pub oldest: i64,
    /// The newest one.
    pub newest: i64,
}

impl Versions {
    /// Stands for the version that the table has when the rollout arrives.
    pub const OF_TABLE: Self = Self { oldest: i64::MIN, newest: i64::MIN };

    /// These, or those of a table of this version.
    #[must_use]
    pub fn or_of_table(self, version: i64) -> Self {
        if self == Self::OF_TABLE { Self { oldest: version, newest: version } } else { self }
    }
}

/// Where a column of a change belongs. Ordered as in a joined item: columns of the item first, then
/// sequence by sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Its sequence; `None` for a column that the item has once.
    pub sequence: Option<SequenceOf>,
    /// Position of the column in the signature.
    pub column: u32,
}

/// A sequence of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceOf {
    /// Number of its rollout.
    pub rollout: u32,
    /// Its number in the rollout.
    pub number: u32,
}

/// Columns of an item that came together. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Its columns, one for each part.
    pub trajectory: Trajectory,
    /// Where the columns belong; sorted, each once.
    pub parts: Arc<[Part]>,
}

/// How a rollout ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is complete.
    Final,
    /// It is stored, and replaced by what comes next.
    Partial,
    /// It will not be made; with the reason.
    Failed(Box<str>),
}

/// A rollout of an item, without its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    /// Its number, below `num_rollouts`.
    pub number: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Versions that made it.
    pub versions: Versions,
}

/// Number of a lease, which its client draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId {
    /// The client.
    pub holder: u64,
    /// Its number of the lease.
    pub number: u64,
}

/// Why an item, or a change of one, was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The item is not there any more, does not lack what came, or is another client's.
    Gone,
    /// An item of this name is present.
    Present,
    /// The newest item is not the one that it should come after, but this one.
    Newest(Box<str>),
    /// It has waited for as long as it may, and for this; of several items, the first one says it.
    Waited(Box<str>),
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Rollouts are missing.
    Open,
    /// All rollouts are there; columns are missing.
    Settled,
    /// A learner can have it.
    Ready,
}

/// An item with rollouts, as a checkpoint stores it.
#[derive(Debug, Clone)]
pub struct StoredGrowing {
    /// Key of the item.
    pub key: u64,
    /// Its name; empty for none.
    pub name: Box<str>,
    /// Number of its insert in the table.
    pub order: u64,
    /// How far it is.
    pub stage: Stage,
    /// Number of times that it was lost or became stale.
    pub attempts: u32,
    /// Those of them that the server gave up for lack of memory.
    pub given_up: u32,
    /// Version of the table when it was first taken.
    pub opened_at: Option<i64>,
    /// Its rollouts so far, by number.
    pub rollouts: Vec<Rollout>,
    /// Its sequences, if it is not open.
    pub sequences: Arc<[SequenceInfo]>,
    /// Its columns and other values; `None` for a ready one, which is stored as other items are.
    pub aside: Option<(StoredItem, Arc<[Part]>)>,
}

/// What the columns of a [`NewItem`](crate::NewItem) are for, in a table with rollouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemChange {
    /// A new item.
    Opens(Opening),
    /// More of the item that has the key.
    Grows(Growth),
}

/// Rollouts or late columns of an item, beside the columns themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    /// Where the columns belong.
    pub parts: Arc<[Part]>,
    /// Rollouts; none for late columns.
    pub rollouts: Vec<Rollout>,
    /// The lease of the client on the item.
    pub lease: Option<LeaseId>,
    /// What late columns do.
    pub late: Late,
}

/// What late columns of an item do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Late {
    /// True if they replace those that are there; else those stay.
    pub overwrites: bool,
    /// Attempts of the item when they were made; they belong to its rollouts of then.
    pub attempts: Option<u32>,
}

/// What an item with rollouts begins with, beside its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Its name; not empty.
    pub name: Box<str>,
    /// Name of the item that has to be the newest one before it; empty for none.
    pub after: Option<Box<str>>,
    /// Where its columns belong.
    pub parts: Arc<[Part]>,
    /// Rollouts that it has from the beginning.
    pub rollouts: Vec<Rollout>,
}

impl Opening {
    /// Checks what an item begins with.
    ///
    /// # Errors
    ///
    /// Those of [`Piece::new`]. `InvalidArgument` for a name that is empty or too long, a column of
    /// items that is missing, and rollouts that differ from those of the parts.
    pub fn check(&self, trajectory: &Trajectory, settings: &RolloutSettings) -> Result<()> {
        for name in [Some(&self.name), self.after.as_ref()].into_iter().flatten() {
            if name.len() > MAX_NAME_BYTES {
                return Err(Error::invalid_argument(format!(
                    "the name of an item must have at most {MAX_NAME_BYTES} bytes, got {}.",
                    name.len()
                )));
            }
        }
        if self.name.is_empty() {
            return Err(Error::invalid_argument("the name of an item must not be empty."));
        }
        let piece = Piece::new(trajectory.clone(), Arc::clone(&self.parts), settings)?;
        let has =
            |column: &u32| piece.parts.binary_search(&Part { sequence: None, column: *column });
        if let Some(missing) = settings.item_columns.iter().find(|column| has(column).is_err()) {
            return Err(Error::invalid_argument(format!(
                "the item lacks column {missing}, which is one of items."
            )));
        }
        check_rollouts(&self.rollouts, Some(&piece), settings)
    }
}

/// Checks the rollouts of a change with the columns that came with them.
///
/// # Errors
///
/// `InvalidArgument` for a rollout that no item has, that is there twice, that has no columns
/// although it was made, or has some although it failed; and for columns of another rollout.
pub fn check_rollouts(
    rollouts: &[Rollout],
    piece: Option<&Piece>,
    settings: &RolloutSettings,
) -> Result<()> {
    let parts = piece.into_iter().flat_map(|piece| piece.parts.iter());
    let with_columns: BTreeSet<u32> =
        parts.filter_map(|part| Some(part.sequence?.rollout)).collect();
    let mut numbers = BTreeSet::new();
    for Rollout { number, outcome, versions } in rollouts {
        if *number >= settings.num_rollouts {
            return Err(no_such_rollout(*number, settings));
        }
        if !numbers.insert(*number) {
            return Err(Error::invalid_argument(format!("rollout {number} is there twice.")));
        }
        let has_failed = matches!(outcome, Outcome::Failed(_));
        if has_failed == with_columns.contains(number) {
            let (how, has) = if has_failed { ("failed", "has") } else { ("was made", "has no") };
            return Err(Error::invalid_argument(format!(
                "rollout {number} {how}, and {has} sequences."
            )));
        }
        if versions.oldest > versions.newest {
            return Err(Error::invalid_argument(format!(
                "version of rollout {number} must be (oldest, newest), got ({}, {}).",
                versions.oldest, versions.newest
            )));
        }
    }
    match with_columns.difference(&numbers).next() {
        Some(odd) if !rollouts.is_empty() => Err(Error::invalid_argument(format!(
            "the change has columns of rollout {odd}, which it does not name."
        ))),
        _ => Ok(()),
    }
}

/// One sequence of a joined item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceInfo {
    /// Number of its rollout.
    pub rollout: u32,
    /// Number of its steps.
    pub length: u32,
}

impl Piece {
    /// A piece of these columns, checked with the settings of its table.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for another number of parts than columns, a part that is there twice or
    /// that no item of the table has, a sequence that lacks columns which others of its rollout
    /// have, or whose columns differ in length.
    pub fn new(
        trajectory: Trajectory,
        parts: Arc<[Part]>,
        settings: &RolloutSettings,
    ) -> Result<Self> {
        if parts.len() != trajectory.num_columns() || !parts.is_sorted_by(|a, b| a < b) {
            return Err(Error::invalid_argument(format!(
                "a change of {} columns names {} parts, which must be as many, sorted, each once.",
                trajectory.num_columns(),
                parts.len()
            )));
        }
        for part in &*parts {
            let rollout = part.sequence.map(|sequence| sequence.rollout);
            if part.column >= settings.num_columns {
                return Err(Error::invalid_argument(format!(
                    "column {} must be below {}, the number of columns.",
                    part.column, settings.num_columns
                )));
            }
            if rollout.is_none() != settings.is_of_item(part.column) {
                let (is, not) = ("items", "sequences");
                let (is, not) = if rollout.is_some() { (is, not) } else { (not, is) };
                return Err(Error::invalid_argument(format!(
                    "column {} is one of {is}, not of {not}.",
                    part.column
                )));
            }
            if let Some(rollout) = rollout.filter(|&rollout| rollout >= settings.num_rollouts) {
                return Err(no_such_rollout(rollout, settings));
            }
        }
        let piece = Self { trajectory, parts };
        piece.check_sequences()?;
        Ok(piece)
    }

    /// Sequences of a rollout are numbered from 0, have the same columns, and one length each.
    fn check_sequences(&self) -> Result<()> {
        let mut columns: BTreeMap<SequenceOf, Vec<u32>> = BTreeMap::new();
        for part in &*self.parts {
            if let Some(sequence) = part.sequence {
                columns.entry(sequence).or_default().push(part.column);
            }
        }
        if columns.len() > MAX_SEQUENCES {
            return Err(Error::invalid_argument(format!(
                "an item must have at most {MAX_SEQUENCES} sequences, got {}.",
                columns.len()
            )));
        }
        let mut before: Option<(SequenceOf, &[u32])> = None;
        for (&sequence, columns) in &columns {
            let SequenceOf { rollout, number } = sequence;
            let same = before.filter(|(before, _)| before.rollout == rollout);
            let expected = same.map_or(0, |(before, _)| before.number + 1);
            if number != expected {
                return Err(Error::invalid_argument(format!(
                    "rollout {rollout} has a sequence {number} where {expected} follows."
                )));
            }
            if let Some((_, first)) = same
                && let Some(missing) = odd_one(first, columns)
            {
                let (lacks, has) = if columns.contains(&missing) {
                    (number - 1, number)
                } else {
                    (number, number - 1)
                };
                return Err(Error::invalid_argument(format!(
                    "rollout {rollout}: sequence {lacks} lacks column {missing}, which sequence \
                     {has} has."
                )));
            }
            before = Some((sequence, columns));
        }
        let mut length: Option<(SequenceOf, usize)> = None;
        for (part, column) in self.parts.iter().zip(self.trajectory.columns()) {
            let Some(sequence) = part.sequence.filter(|_| !column.squeeze) else { continue };
            let steps = column.num_steps();
            match length {
                Some((of, first)) if of == sequence && first != steps => {
                    return Err(Error::invalid_argument(format!(
                        "rollout {}: the columns of sequence {} have {first} and {steps} steps; \
                         they must have the same number.",
                        sequence.rollout, sequence.number
                    )));
                }
                _ => length = Some((sequence, steps)),
            }
        }
        Ok(())
    }

    /// The same without the columns of a rollout; `None` if nothing is left.
    #[must_use]
    pub fn without(&self, rollout: u32) -> Option<Self> {
        self.keep(|part| part.sequence.is_none_or(|sequence| sequence.rollout != rollout))
    }

    /// These columns of the item itself; `None` if it has none of them.
    #[must_use]
    pub fn only(&self, columns: &[u32]) -> Option<Self> {
        self.keep(|part| part.sequence.is_none() && columns.contains(&part.column))
    }

    /// The same without these parts; `None` if nothing is left.
    #[must_use]
    pub fn without_parts(&self, parts: &BTreeSet<Part>) -> Option<Self> {
        self.keep(|part| !parts.contains(part))
    }

    fn keep(&self, stays: impl Fn(&Part) -> bool) -> Option<Self> {
        let kept: Vec<u32> =
            (0..).zip(&*self.parts).filter(|(_, part)| stays(part)).map(|(at, _)| at).collect();
        if kept.len() == self.parts.len() {
            return Some(self.clone());
        }
        let trajectory = TrajectoryBuilder::new().select(&self.trajectory, &kept).ok()?;
        let parts = kept.into_iter().map(|at| self.parts[at as usize]).collect();
        Some(Self { trajectory, parts })
    }
}

/// A column that only one of two sorted lists has.
fn odd_one(a: &[u32], b: &[u32]) -> Option<u32> {
    let missing = |from: &[u32], of: &[u32]| of.iter().find(|it| !from.contains(it)).copied();
    missing(b, a).or_else(|| missing(a, b))
}

/// Error for a rollout that no item of the table has.
pub fn no_such_rollout(rollout: u32, settings: &RolloutSettings) -> Error {
    Error::invalid_argument(format!(
        "rollout must be at least 0 and below num_rollouts ({}), got {rollout}.",
        settings.num_rollouts
    ))
}

/// The columns of several pieces as those of one item.
#[derive(Debug)]
pub struct Joined {
    /// The columns that are there, in the order of the signature: those of sequences have the steps
    /// of one sequence after those of another, by their numbers.
    pub trajectory: Trajectory,
    /// Their positions.
    pub columns: Vec<u32>,
    /// The sequences in order.
    pub sequences: Vec<SequenceInfo>,
}

/// What an item has, each column for itself, in the order of the parts. Where two pieces have a
/// part, the later one counts.
///
/// # Errors
///
/// `InvalidArgument` if there is nothing.
pub fn lay_out(pieces: &[Piece]) -> Result<Trajectory> {
    let mut found = BTreeMap::new();
    for Piece { trajectory, parts } in pieces {
        found.extend(parts.iter().zip(trajectory.columns().map(|column| (trajectory, column))));
    }
    let mut builder = TrajectoryBuilder::new();
    for (trajectory, column) in found.into_values() {
        for run in column.runs() {
            builder.run(&trajectory.chunks()[run.slice.chunk], run);
        }
        builder.end_column(column.squeeze);
    }
    builder.finish()
}

/// Joins what an item has. A column counts if the item, or each of its sequences, has it. Where two
/// pieces have a part, the later one counts.
///
/// # Errors
///
/// `InvalidArgument` if no column is complete.
pub fn join(pieces: &[Piece]) -> Result<Joined> {
    let mut found: BTreeMap<Part, Column<'_>> = BTreeMap::new();
    let mut chunks: BTreeMap<Part, &Trajectory> = BTreeMap::new();
    for Piece { trajectory, parts } in pieces {
        for (&part, column) in parts.iter().zip(trajectory.columns()) {
            found.insert(part, column);
            chunks.insert(part, trajectory);
        }
    }
    // By column, then by sequence.
    let mut by_column: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
    let mut lengths: BTreeMap<SequenceOf, u32> = BTreeMap::new();
    for (part, column) in &found {
        by_column.entry(part.column).or_default().push(*part);
        if let Some(sequence) = part.sequence {
            let length = lengths.entry(sequence).or_insert(1);
            if !column.squeeze {
                *length = u32::try_from(column.num_steps()).unwrap_or(u32::MAX);
            }
        }
    }
    let mut builder = TrajectoryBuilder::new();
    let mut columns = Vec::with_capacity(by_column.len());
    for (at, parts) in by_column {
        let is_of_item = parts.iter().any(|part| part.sequence.is_none());
        if !is_of_item && parts.len() < lengths.len() {
            continue;
        }
        for part in &parts {
            for run in found[part].runs() {
                builder.run(&chunks[part].chunks()[run.slice.chunk], run);
            }
        }
        builder.end_column(is_of_item && found[&parts[0]].squeeze);
        columns.push(at);
    }
    let of =
        |(sequence, length): (SequenceOf, u32)| SequenceInfo { rollout: sequence.rollout, length };
    Ok(Joined {
        trajectory: builder.finish()?,
        columns,
        sequences: lengths.into_iter().map(of).collect(),
    })
}

#[cfg(test)]
mod tests;
