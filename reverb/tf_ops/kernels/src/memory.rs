// SPDX-License-Identifier: Apache-2.0
//! Memory for output tensors: aligned as TensorFlow wants it, and used again.
//!
//! TensorFlow takes memory over without a copy only where it is aligned to 64 bytes. A batch may be many megabytes;
//! memory that is fresh from the system costs more in page faults than the batch takes to be written.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What TensorFlow asks of the memory of a tensor.
const ALIGNMENT: usize = 64;
/// Smaller pieces are left to the allocator, which is as fast.
const MIN_POOLED_BYTES: usize = 32 * 1024;
/// Bytes kept for use again, at the most.
const MAX_KEPT_BYTES: usize = 1 << 30;
/// Memory that nobody asked for in this time is given back.
const KEEP_FOR: Duration = Duration::from_secs(2);

static KEPT: Mutex<Kept> = Mutex::new(Kept { pieces: BTreeMap::new(), bytes: 0 });

/// Pieces that are free, by capacity, the one that was used last at the end.
struct Kept {
    pieces: BTreeMap<usize, Vec<(Memory, Instant)>>,
    bytes: usize,
}

/// A piece of memory, initialised, aligned to 64 bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: it owns its memory alone.
unsafe impl Send for Memory {}

impl Memory {
    /// At least `length` bytes of any content.
    pub(crate) fn take(length: usize) -> Self {
        let capacity = capacity_for(length);
        if capacity >= MIN_POOLED_BYTES
            && let Some(memory) = KEPT.lock().take(capacity)
        {
            return memory;
        }
        let layout = layout(capacity);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, capacity }
    }

    /// The first `length` bytes.
    pub(crate) fn bytes_mut(&mut self, length: usize) -> &mut [u8] {
        assert!(length <= self.capacity, "memory is taken for what is written to it");
        // SAFETY: the memory is initialised, belongs to `self` and is long enough.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), length) }
    }

    /// Keeps it for the next who needs as much.
    pub(crate) fn recycle(self) {
        if self.capacity >= MIN_POOLED_BYTES {
            KEPT.lock().put(self);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) };
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGNMENT)
        .expect("tensors are smaller than half the address space")
}

/// Large pieces are a little larger than asked for, so that they fit batches of about the same size.
fn capacity_for(length: usize) -> usize {
    let step = (length.next_power_of_two() / 16).max(ALIGNMENT);
    length.max(1).next_multiple_of(step)
}

impl Kept {
    fn take(&mut self, capacity: usize) -> Option<Memory> {
        let (&found, pieces) = self.pieces.range_mut(capacity..=capacity * 2).next()?;
        let (memory, _) = pieces.pop()?;
        if pieces.is_empty() {
            self.pieces.remove(&found);
        }
        self.bytes -= found;
        Some(memory)
    }

    fn put(&mut self, memory: Memory) {
        self.bytes += memory.capacity;
        self.pieces.entry(memory.capacity).or_default().push((memory, Instant::now()));
        self.give_back();
    }

    fn give_back(&mut self) {
        let now = Instant::now();
        let mut bytes = self.bytes;
        let mut room = MAX_KEPT_BYTES;
        self.pieces.retain(|&capacity, pieces| {
            pieces.retain(|(_, since)| {
                let keep = now.duration_since(*since) < KEEP_FOR && capacity <= room;
                if keep {
                    room -= capacity;
                } else {
                    bytes -= capacity;
                }
                keep
            });
            !pieces.is_empty()
        });
        self.bytes = bytes;
    }
}

/// Gives memory back to the system that was free for a while. To be called now and then.
pub fn give_back() {
    // Who holds the lock gives back too; and in the child of a fork it may be held for ever.
    if let Some(mut kept) = KEPT.try_lock() {
        kept.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_long_enough() {
        for length in [0, 1, 63, 64, 65, 1000, 40_000, 1_000_001] {
            let mut memory = Memory::take(length);
            assert_eq!(memory.start.as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!(memory.bytes_mut(length).len(), length);
            assert!(memory.capacity <= length + length / 8 + ALIGNMENT);
        }
    }

    #[test]
    fn large_pieces_are_used_again() {
        let length = 3_333_333;
        let memory = Memory::take(length);
        let start = memory.start;
        memory.recycle();
        assert_eq!(Memory::take(length - 1000).start, start);
    }
}
