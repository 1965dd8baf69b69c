// SPDX-License-Identifier: Apache-2.0
//! A message: items that are sent together.

use reverb_data::{Chunk, NewItem};
use reverb_wire::transport::InsertBatch;

/// Items to send, and the chunks that the server lacks.
#[derive(Default)]
pub(super) struct Message {
    /// A server in this process takes items out.
    pub(super) items: Vec<NewItem>,
    pub(super) chunks: Vec<Chunk>,
    /// The key of each item, and the bytes that it added; also of those that were taken.
    sizes: Vec<(u64, usize)>,
}

impl Message {
    /// Adds an item, and the number of bytes that it added to those that wait.
    pub(super) fn push(&mut self, item: NewItem, bytes: usize) {
        self.sizes.push((item.key, bytes));
        self.items.push(item);
    }

    /// Keeps the first items alone.
    pub(super) fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
        self.sizes.truncate(len);
    }

    /// The items from this one on, each with its bytes.
    pub(super) fn items_from(&self, first: usize) -> impl Iterator<Item = (&NewItem, usize)> {
        self.items[first..].iter().zip(self.sizes[first..].iter().map(|&(_, bytes)| bytes))
    }

    /// Takes the contents for a server elsewhere.
    pub(super) fn take_batch(&mut self, keep_chunk_keys: Vec<u64>) -> InsertBatch {
        let Self { items, chunks, .. } = std::mem::take(self);
        InsertBatch { chunks, items, keep_chunk_keys }
    }

    /// Empties the message; returns the number of items that were taken out, with their bytes, and
    /// gives the others to `leave`, each with its bytes.
    pub(super) fn settle(&mut self, mut leave: impl FnMut(NewItem, usize)) -> (usize, usize) {
        let mut taken = 0;
        let mut taken_bytes = 0;
        let mut left = self.items.drain(..).peekable();
        for (key, bytes) in self.sizes.drain(..) {
            if let Some(item) = left.next_if(|item| item.key == key) {
                leave(item, bytes);
            } else {
                taken += 1;
                taken_bytes += bytes;
            }
        }
        debug_assert!(left.peek().is_none(), "items are taken out, and stay in order");
        (taken, taken_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::item;

    #[test]
    fn items_that_were_taken_out_are_counted_and_others_are_left() {
        for taken in 0..1u64 << 5 {
            let mut message = Message::default();
            (0..5).for_each(|key| message.push(item(key), 1 << key));
            message.items.retain(|item| taken >> item.key & 1 == 0);
            let mut left = Vec::new();
            let settled = message.settle(|item, bytes| {
                assert_eq!(bytes, 1 << item.key);
                left.push(item.key);
            });
            assert_eq!(settled, (taken.count_ones() as usize, taken as usize));
            assert!(left.is_sorted() && left.len() as u32 == 5 - taken.count_ones());
            assert!(message.items.is_empty() && message.settle(|_, _| panic!("empty")) == (0, 0));
        }
    }
}
