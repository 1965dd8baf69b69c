// SPDX-License-Identifier: Apache-2.0
//! Locks that are held together, and their order.
//!
//! Design: `docs/design/locks.md`.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// Locks that a thread holds together, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A server's change to a new map of its group.
    ShardMap,
    /// The chunks that an insert stream holds.
    HeldChunks,
    /// A change of a table's settings.
    Settings,
    /// The state of a table.
    Table,
}

/// A lock with a rank. A debug build panics when it is taken in the wrong order, also where no
/// other thread wants it.
#[derive(Debug)]
pub struct Ranked<T> {
    value: Mutex<T>,
    rank: Rank,
}

impl<T> Ranked<T> {
    /// A lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { value: Mutex::new(value), rank }
    }

    /// Takes the lock.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = Held::new(self.rank);
        RankedGuard { value: self.value.lock(), _held: held }
    }
}

/// A [`Ranked`] lock that this thread holds.
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

thread_local! {
    /// Ranks of the locks that this thread holds, in a debug build.
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// An entry of `HELD`.
#[derive(Debug)]
struct Held(Rank);

impl Held {
    fn new(rank: Rank) -> Self {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                let last = held.iter().max();
                let is_another =
                    last == Some(&rank) && matches!(rank, Rank::Settings | Rank::Table);
                assert!(
                    last < Some(&rank) || is_another,
                    "{rank:?} is locked under {last:?}: see the order in docs/design/locks.md"
                );
                held.push(rank);
            });
        }
        Self(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                let at = held.iter().rposition(|rank| *rank == self.0);
                at.map(|at| held.remove(at));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (settings, first, second) = (
            Ranked::new(Rank::Settings, 1),
            Ranked::new(Rank::Table, 2),
            Ranked::new(Rank::Table, 3),
        );
        let guards = (settings.lock(), first.lock(), second.lock());
        assert_eq!(*guards.0 + *guards.1 + *guards.2, 6);
        drop(guards);
        drop(second.lock());
        *settings.lock() += 1;
        assert_eq!(*settings.lock(), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Settings is locked under Some(Table)")]
    fn a_wrong_order_panics_in_a_debug_build() {
        let (settings, table) = (Ranked::new(Rank::Settings, ()), Ranked::new(Rank::Table, ()));
        let _table = table.lock();
        let _settings = settings.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "ShardMap is locked under Some(ShardMap)")]
    fn a_second_lock_that_belongs_to_no_table_panics() {
        let (one, another) = (Ranked::new(Rank::ShardMap, ()), Ranked::new(Rank::ShardMap, ()));
        let _guards = (one.lock(), another.lock());
    }

    #[test]
    fn the_page_of_locks_has_the_ranks_in_their_order() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/design/locks.md");
        let page = std::fs::read_to_string(page).unwrap();
        // Lines such as "  1 Call  ..." and "    Call,".
        let row = |line: &str| {
            let mut words = line.split_whitespace();
            words.next()?.parse::<usize>().ok()?;
            words.next().map(str::to_owned)
        };
        let rows: Vec<String> = page.lines().filter_map(row).collect();
        let (_, ranks) = include_str!("ranked.rs").split_once("pub enum Rank {").unwrap();
        let ranks = ranks.lines().take_while(|line| *line != "}");
        let ranks: Vec<&str> = ranks.filter_map(|line| line.trim().strip_suffix(',')).collect();
        assert_eq!(rows, ranks, "the drawing in docs/design/locks.md, and `Rank`");
    }
}
