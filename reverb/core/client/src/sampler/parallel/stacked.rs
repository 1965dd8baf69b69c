// SPDX-License-Identifier: Apache-2.0
//! Requests for stacked items from a table that removes sampled items. Each request is for whole
//! batches, so that the table can check a batch before it removes any item.

use reverb_data::Stacking;

/// The position of the next request in its batch.
#[derive(Debug)]
pub(super) struct StackedRequests {
    /// Position of the next requested item in its batch.
    next: Stacking,
}

impl StackedRequests {
    /// Starts at the beginning of a batch.
    pub(super) fn new(batch_size: usize) -> Self {
        Self { next: Stacking::new(batch_size) }
    }

    /// Number of items to request if up to `wanted` are allowed: up to the end of a batch. `None`
    /// if `wanted` is less than a whole batch, or than the rest of a started batch.
    pub(super) fn count(&self, wanted: usize) -> Option<usize> {
        let more = wanted.checked_sub(self.next.missing())?;
        Some(wanted - more % self.next.batch_size)
    }

    /// Records a request for `count` items; returns its position for the table's check.
    pub(super) fn reserve(&mut self, count: usize) -> Stacking {
        let position = self.next;
        self.next = position.after(count);
        position
    }

    /// Records that `count` requested items will not arrive.
    pub(super) fn lost(&mut self, count: usize) {
        self.next = self.next.before(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_batches_are_requested() {
        let mut requests = StackedRequests::new(4);
        assert_eq!(requests.count(3), None);
        assert_eq!(requests.count(4), Some(4));
        assert_eq!(requests.count(11), Some(8));
        assert_eq!(requests.reserve(8), Stacking { batch_size: 4, position: 0 });
        // A stream, or the items, may end within a batch.
        assert_eq!(requests.reserve(3), Stacking { batch_size: 4, position: 0 });
        assert_eq!(
            (requests.count(0), requests.count(1), requests.count(6)),
            (None, Some(1), Some(5))
        );
        assert_eq!(requests.reserve(1), Stacking { batch_size: 4, position: 3 });
        requests.lost(2);
        assert_eq!(requests.count(9), Some(6));
    }
}
