// SPDX-License-Identifier: Apache-2.0
//! Requests of a sampler whose items are stacked, from a table that removes what it samples: whole
//! batches, so that the table can check each of them before it gives anything away.

use reverb_data::Stacking;

/// What is asked for next.
#[derive(Debug)]
pub(super) struct StackedRequests {
    /// The place of the next item that is asked for.
    next: Stacking,
}

impl StackedRequests {
    /// Nothing was asked for yet.
    pub(super) fn new(batch_size: usize) -> Self {
        Self { next: Stacking::new(batch_size) }
    }

    /// How many items to ask for if `wanted` may be: up to the end of a batch. `None` if that is
    /// too few for the next batch, or for the rest of one.
    pub(super) fn count(&self, wanted: usize) -> Option<usize> {
        let more = wanted.checked_sub(self.next.missing())?;
        Some(wanted - more % self.next.batch_size)
    }

    /// Notes that `count` items are asked for, and says how they are to be checked.
    pub(super) fn asked(&mut self, count: usize) -> Stacking {
        let place = self.next;
        self.next = place.after(count);
        place
    }

    /// Notes that `count` items that were asked for will not come.
    pub(super) fn lost(&mut self, count: usize) {
        self.next = self.next.before(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_batches_are_asked_for() {
        let mut requests = StackedRequests::new(4);
        assert_eq!(requests.count(3), None);
        assert_eq!(requests.count(4), Some(4));
        assert_eq!(requests.count(11), Some(8));
        assert_eq!(requests.asked(8), Stacking { batch_size: 4, position: 0 });
        // A stream, or the items, may end within a batch.
        assert_eq!(requests.asked(3), Stacking { batch_size: 4, position: 0 });
        assert_eq!(
            (requests.count(0), requests.count(1), requests.count(6)),
            (None, Some(1), Some(5))
        );
        assert_eq!(requests.asked(1), Stacking { batch_size: 4, position: 3 });
        requests.lost(2);
        assert_eq!(requests.count(9), Some(6));
    }
}
