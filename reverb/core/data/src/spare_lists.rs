// SPDX-License-Identifier: Apache-2.0
//! Spare lists: memory of lists that a thread fills again and again.
//!
//! A batch of some hundred items needs lists of tens of kilobytes. Reusing them costs nothing, and
//! the allocator sees no large blocks.

use std::cell::RefCell;

use crate::item::Sampled;

/// Number of lists that a thread keeps: a batch that arrives in parts needs two.
const MAX_LISTS: usize = 2;
/// Larger lists are freed.
const MAX_KEPT_BYTES: usize = 4 * 1024 * 1024;

/// Empty lists that keep their memory, for one thread.
#[derive(Debug)]
pub struct SpareLists<T>(RefCell<Vec<Vec<T>>>);

impl<T> SpareLists<T> {
    /// Starts without lists.
    pub const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// An empty list, with memory if one is kept.
    pub fn take(&self) -> Vec<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the memory of a list for later. The longest lists are kept.
    pub fn keep(&self, mut list: Vec<T>) {
        // Cleared first, because dropping items may run any code.
        list.clear();
        if size_of::<T>() * list.capacity() > MAX_KEPT_BYTES || list.capacity() == 0 {
            return;
        }
        let mut kept = self.0.borrow_mut();
        if kept.len() < MAX_LISTS {
            kept.push(list);
        } else if let Some(shortest) = kept.iter_mut().min_by_key(|list| list.capacity())
            && shortest.capacity() < list.capacity()
        {
            *shortest = list;
        }
    }
}

impl<T> Default for SpareLists<T> {
    fn default() -> Self {
        Self::new()
    }
}

thread_local! {
    static SAMPLES: SpareLists<Sampled> = const { SpareLists::new() };
}

/// An empty list for samples, with the memory of one that this thread gave to [`keep_samples`].
pub fn spare_samples() -> Vec<Sampled> {
    SAMPLES.try_with(SpareLists::take).unwrap_or_default()
}

/// Drops samples, and keeps the memory of their list for the next batch of this thread.
pub fn keep_samples(samples: Vec<Sampled>) {
    // A thread that ends keeps nothing.
    let _ = SAMPLES.try_with(|spare| spare.keep(samples));
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_memory_of_a_list_is_used_again_and_its_content_dropped() {
        let (spare, thing) = (SpareLists::new(), Rc::new(()));
        let list = vec![Rc::clone(&thing); 100];
        let (start, capacity) = (list.as_ptr(), list.capacity());
        spare.keep(list);
        assert_eq!(Rc::strong_count(&thing), 1);
        let list = spare.take();
        assert_eq!((list.as_ptr(), list.capacity(), list.len()), (start, capacity, 0));
        assert_eq!(spare.take().capacity(), 0, "there was one");
    }

    #[test]
    fn few_lists_are_kept_and_none_that_is_very_long() {
        let spare = SpareLists::<u8>::new();
        for capacity in [10, 30, 20, 5, MAX_KEPT_BYTES + 1] {
            spare.keep(Vec::with_capacity(capacity));
        }
        let mut kept = [spare.take().capacity(), spare.take().capacity()];
        kept.sort_unstable();
        assert_eq!((kept, spare.take().capacity()), ([20, 30], 0));
    }
}
