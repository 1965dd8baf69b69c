// SPDX-License-Identifier: Apache-2.0
//! Forks: static values that each process has for itself.
//!
//! Design: `docs/design/processes.md`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Values in one piece of a [`PerProcess`]. A static has one piece; deeper forks make more.
const NUM_VALUES: usize = 8;

static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Number of forks between the first process and this one.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Acquire)
}

/// Begins a generation. The child of a fork calls it before anything else of this package.
pub fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Name of this machine; empty where the system does not say it.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// A static value that each process makes on first use.
///
/// A forked child never touches the value of its parent: locks in it may be held, and tasks in it
/// may be running, by threads that the child does not have. Values are never dropped.
#[derive(Debug)]
pub struct PerProcess<T> {
    /// By generation.
    values: [OnceLock<T>; NUM_VALUES],
    /// Values of the generations after these.
    more: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    /// No values yet.
    #[expect(clippy::new_without_default, reason = "only statics have it")]
    pub const fn new() -> Self {
        Self { values: [const { OnceLock::new() }; NUM_VALUES], more: OnceLock::new() }
    }

    /// Value of this process, made by `make` if it is the first use.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.slot(generation()).get_or_init(make)
    }

    fn slot(&self, generation: usize) -> &OnceLock<T> {
        match generation.checked_sub(NUM_VALUES) {
            None => &self.values[generation],
            Some(after) => self.more.get_or_init(|| Box::new(Self::new())).slot(after),
        }
    }

    /// Values of the processes from which this one was forked.
    pub fn inherited(&self) -> impl Iterator<Item = &T> {
        (0..generation()).filter_map(|generation| self.slot(generation).get())
    }
}

impl<T: Default> PerProcess<T> {
    /// Value of this process, its default if it is the first use.
    pub fn get(&self) -> &T {
        self.get_or_init(T::default)
    }
}

impl<T: Default> PerProcess<Mutex<T>> {
    /// Reads or changes the value of this process, under its lock.
    pub fn with<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.get().lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generation_has_its_own_value() {
        static VALUES: PerProcess<Mutex<usize>> = PerProcess::new();
        // Far more forks within forks than one piece has values for.
        for generation in 0..3 * NUM_VALUES {
            let slot = VALUES.slot(generation);
            assert!(slot.get().is_none());
            *slot.get_or_init(Mutex::default).lock() = generation;
        }
        for generation in 0..3 * NUM_VALUES {
            assert_eq!(*VALUES.slot(generation).get().unwrap().lock(), generation);
        }
        VALUES.with(|value| assert_eq!(*value, generation()));
    }
}
