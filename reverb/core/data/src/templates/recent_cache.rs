// SPDX-License-Identifier: Apache-2.0
//! A cache of the last few templates of a stream.

/// A stream rarely has items of more templates; each lookup searches all of them.
const CAPACITY: usize = 8;

/// Learning costs more than it saves if all items are different. So each entry must be paid for by
/// lookups that found something; the initial credit fills the cache.
const LOOKUPS_TO_LEARN: u32 = 4;
const MAX_CREDIT: u32 = LOOKUPS_TO_LEARN * CAPACITY as u32;

/// Number of failed lookups after which an entry is learned anyway, for a stream whose items become
/// alike later.
const INTERVAL: u32 = 64;

/// The entries that were learned last.
#[derive(Debug)]
pub struct RecentCache<T> {
    entries: Vec<T>,
    oldest: usize,
    /// Successful lookups, less the price of learning.
    credit: u32,
    misses: u32,
}

impl<T> Default for RecentCache<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), oldest: 0, credit: MAX_CREDIT, misses: 0 }
    }
}

impl<T> RecentCache<T> {
    /// The entry for which `is_it` is true.
    #[inline]
    pub fn find(&mut self, is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let at = self.entries.iter().position(is_it);
        match at {
            Some(_) => self.credit = MAX_CREDIT.min(self.credit + 1),
            None => self.misses = self.misses.wrapping_add(1),
        }
        at.map(|at| &mut self.entries[at])
    }

    /// Adds an entry that was not found, in place of the oldest one, unless learning did not help
    /// lately.
    pub fn learn(&mut self, make: impl FnOnce() -> Option<T>) {
        match self.credit.checked_sub(LOOKUPS_TO_LEARN) {
            Some(rest) => self.credit = rest,
            None if self.misses.is_multiple_of(INTERVAL) => {}
            None => return,
        }
        let Some(entry) = make() else { return };
        if self.entries.len() < CAPACITY {
            self.entries.push(entry);
        } else {
            self.entries[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % CAPACITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of these values that were learned.
    fn learned(known: &mut RecentCache<u32>, values: impl Iterator<Item = u32>) -> usize {
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
        let mut known = RecentCache::default();
        assert_eq!(learned(&mut known, (0..1000).map(|i| i % 8)), 8);
        assert_eq!(learned(&mut known, 1000..2000), 8 + 1000 / 64);
        assert_eq!(learned(&mut known, (0..1000).map(|i| i % 2)), 2, "it comes late");
        assert_eq!(learned(&mut known, (0..1000).map(|i| i % 8)), 6);
    }
}
