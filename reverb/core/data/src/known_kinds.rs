// SPDX-License-Identifier: Apache-2.0
//! Kinds that were seen before, of things that come one after another.

/// A stream rarely has items of more kinds; each lookup searches all of them.
const CAPACITY: usize = 8;

/// As long as nothing that was learned comes again, only some of what follows is learned: items may
/// all be different, and learning takes longer than doing without.
const EAGER: u32 = 8;
const INTERVAL: u32 = 64;

/// The kinds that were learned last.
#[derive(Debug)]
pub struct KnownKinds<T> {
    kinds: Vec<T>,
    oldest: usize,
    /// Lookups in vain since the last one that found something.
    misses: u32,
}

impl<T> Default for KnownKinds<T> {
    fn default() -> Self {
        Self { kinds: Vec::new(), oldest: 0, misses: 0 }
    }
}

impl<T> KnownKinds<T> {
    /// The kind of which `is_it` is true.
    #[inline]
    pub fn find(&mut self, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        let at = self.kinds.iter().position(is_it);
        self.misses = if at.is_some() { 0 } else { self.misses.wrapping_add(1) };
        at.map(|at| &self.kinds[at])
    }

    /// Keeps the kind that was not found, in place of the oldest one, unless too many were not.
    pub fn learn(&mut self, make: impl FnOnce() -> Option<T>) {
        if self.misses > EAGER && !self.misses.is_multiple_of(INTERVAL) {
            return;
        }
        let Some(kind) = make() else { return };
        if self.kinds.len() < CAPACITY {
            self.kinds.push(kind);
        } else {
            self.kinds[self.oldest] = kind;
            self.oldest = (self.oldest + 1) % CAPACITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these were learned.
    fn learned(known: &mut KnownKinds<u32>, values: impl Iterator<Item = u32>) -> usize {
        let mut count = 0;
        for value in values {
            if known.find(|&kind| kind == value).is_none() {
                known.learn(|| {
                    count += 1;
                    Some(value)
                });
            }
        }
        count
    }

    #[test]
    fn what_comes_again_is_learned_and_what_is_always_new_hardly_is() {
        let mut known = KnownKinds::default();
        assert_eq!(learned(&mut known, (0..1000).map(|i| i % 8)), 8);
        assert_eq!(learned(&mut known, 1000..2000), 8 + 1000 / 64);
        assert_eq!(learned(&mut known, (0..1000).map(|i| i % 2)), 2, "it comes late");
        assert_eq!(learned(&mut known, (0..1000).map(|i| i % 8)), 6);
    }
}
