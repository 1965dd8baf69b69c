// SPDX-License-Identifier: Apache-2.0
//! Values that each process has for itself, however many forks there are.

use std::sync::{Mutex, PoisonError};

/// Number of values. A process uses the one of its id modulo this number, so a forked child nearly
/// always has another one than its parents, whose locks may be held for ever.
const NUM_VALUES: usize = 64;

/// A static value behind a lock that begins anew in a forked child.
#[derive(Debug)]
pub struct PerProcess<T>([Mutex<Option<(u32, T)>>; NUM_VALUES]);

impl<T: Default> PerProcess<T> {
    /// Values that are made on first use.
    #[expect(clippy::new_without_default, reason = "only statics have it")]
    pub const fn new() -> Self {
        Self([const { Mutex::new(None) }; NUM_VALUES])
    }

    /// Reads or changes the value of this process, under its lock.
    pub fn with<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let process = std::process::id();
        let value = &self.0[process as usize % NUM_VALUES];
        let mut value = value.lock().unwrap_or_else(PoisonError::into_inner);
        if value.as_ref().is_none_or(|(owner, _)| *owner != process) {
            // The value of another process has locks and references of threads that are not here.
            std::mem::forget(value.replace((process, T::default())));
        }
        let (_, value) = value.as_mut().expect("it was made above");
        change(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_process_is_not_seen() {
        static VALUES: PerProcess<Vec<u32>> = PerProcess::new();
        VALUES.with(|value| value.push(1));
        assert_eq!(VALUES.with(|value| value.clone()), [1]);
        for value in &VALUES.0 {
            // As after a fork: the parent's number stands there.
            if let Some((owner, _)) = &mut *value.lock().unwrap() {
                *owner += 1;
            }
        }
        assert!(VALUES.with(|value| value.is_empty()));
    }
}
