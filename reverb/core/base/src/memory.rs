// SPDX-License-Identifier: Apache-2.0
//! Memory for batches: aligned as TensorFlow and JAX require, and reused.
//!
//! Design: `docs/design/tensorflow.md`.
//!
//! They take over memory without a copy only if it is aligned to 64 bytes. A batch may take many
//! megabytes. Fresh memory from the system costs more in page faults than writing the batch.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Alignment of a tensor's memory in TensorFlow and in JAX.
const ALIGNMENT: usize = 64;
/// Bytes that the processor reads from memory together.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;
/// Smaller blocks are left to the allocator, which is as fast.
const MIN_POOLED_BYTES: usize = 4 * 1024;
/// Larger blocks come directly from the system.
const MIN_MAPPED_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of bytes kept for reuse.
const MAX_KEPT_BYTES: usize = 1 << 30;
/// Maximum size of a block: half of the allocator's maximum, so that rounding it up fits.
const MAX_BYTES: usize = usize::MAX >> 2;
/// Memory that is not reused for this long is freed.
const MAX_IDLE: Duration = Duration::from_secs(2);

static KEPT: Mutex<Kept> = Mutex::new(Kept { blocks: BTreeMap::new(), bytes: 0, latest: 0 });

/// Free blocks by capacity; the most recently used one is at the end.
struct Kept {
    blocks: BTreeMap<usize, Vec<(Memory, Instant)>>,
    bytes: usize,
    /// Capacity of the block that was freed last, which may be in the processor's cache.
    latest: usize,
}

/// A block of memory, initialised, aligned to 64 bytes.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: it is the only owner of its memory.
unsafe impl Send for Memory {}
// SAFETY: shared references only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// Takes at least `length` bytes of any content, at least 1; `None` if memory is exhausted.
    pub fn take(length: usize) -> Option<Self> {
        if length > MAX_BYTES {
            return None;
        }
        let capacity = capacity_for(length);
        // In the child of a fork the lock may never be released. Otherwise it is held only for a
        // moment.
        if capacity >= MIN_POOLED_BYTES
            && let Some(mut kept) = KEPT.try_lock()
            && let Some(memory) = kept.take(capacity)
        {
            return Some(memory);
        }
        let start =
            if capacity < MIN_MAPPED_BYTES { allocate(capacity) } else { pages::map(capacity) };
        Some(Self { start: start?, capacity })
    }

    /// The first `length` bytes.
    #[inline]
    pub fn bytes_mut(&mut self, length: usize) -> &mut [u8] {
        assert!(length <= self.capacity, "memory is taken for what is written to it");
        // SAFETY: the memory is initialised, belongs to `self` and is long enough.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), length) }
    }

    /// Address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Keeps the memory for reuse.
    pub fn recycle(self) {
        if self.capacity >= MIN_POOLED_BYTES
            && let Some(mut kept) = KEPT.try_lock()
        {
            kept.put(self);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, and freed only here.
        unsafe {
            if self.capacity < MIN_MAPPED_BYTES {
                dealloc(self.start.as_ptr(), layout(self.capacity));
            } else {
                pages::unmap(self.start, self.capacity);
            }
        }
    }
}

/// Starts to bring bytes into the cache of the processor, where it can; does not wait for them.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes no memory and cannot fail; every processor of x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Starts to bring a value, and what follows it within `num_bytes` of its start, into the cache of
/// the processor, where it can; does not wait for them, and reads nothing.
#[inline]
pub fn prefetch_from<T>(value: &T, num_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = std::ptr::from_ref(value).cast::<i8>();
        let prefetch = |at| {
            // SAFETY: a prefetch changes no memory and cannot fail, whatever the address is; every
            // processor of x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at)) };
        };
        (0..num_bytes).step_by(CACHE_LINE).for_each(prefetch);
        prefetch(num_bytes.saturating_sub(1));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, num_bytes);
}

/// Zeroed memory from the allocator.
fn allocate(capacity: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout has a size above zero.
    NonNull::new(unsafe { alloc_zeroed(layout(capacity)) })
}

/// Memory directly from the system, in huge pages if possible: the first access to a hundred
/// megabytes then takes a tenth of the time.
#[cfg(target_os = "linux")]
mod pages {
    use std::ffi::{c_int, c_void};
    use std::ptr::NonNull;

    unsafe extern "C" {
        fn mmap(
            at: *mut c_void,
            length: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        fn munmap(start: *mut c_void, length: usize) -> c_int;
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    /// `PROT_READ | PROT_WRITE`
    const READ_AND_WRITE: c_int = 3;
    /// `MAP_PRIVATE | MAP_ANONYMOUS`
    const PRIVATE_AND_ANONYMOUS: c_int = 0x22;
    /// `MADV_HUGEPAGE`
    const HUGE_PAGES: c_int = 14;

    pub(super) fn map(length: usize) -> Option<NonNull<u8>> {
        // SAFETY: a new mapping that does not overlap any other.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, READ_AND_WRITE, PRIVATE_AND_ANONYMOUS, -1, 0)
        };
        let failed = start.addr() == usize::MAX;
        let start = NonNull::new(start).filter(|_| !failed)?;
        // SAFETY: the mapping was just made. Without huge pages the system refuses, which is fine.
        unsafe { madvise(start.as_ptr(), length, HUGE_PAGES) };
        Some(start.cast())
    }

    /// # Safety
    ///
    /// The memory must come from `map` with the same length, and must not be used any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, length: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { munmap(start.as_ptr().cast(), length) };
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    use std::ptr::NonNull;

    pub(super) fn map(length: usize) -> Option<NonNull<u8>> {
        super::allocate(length)
    }

    /// # Safety
    ///
    /// The memory must come from `map` with the same length, and must not be used any more.
    pub(super) unsafe fn unmap(start: NonNull<u8>, length: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { std::alloc::dealloc(start.as_ptr(), super::layout(length)) };
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGNMENT)
        .expect("memory is smaller than half the address space")
}

/// Large blocks are rounded up a little, so that they fit batches of about the same size.
fn capacity_for(length: usize) -> usize {
    let step = (length.next_power_of_two() / 16).max(ALIGNMENT);
    length.max(1).next_multiple_of(step)
}

impl Kept {
    fn take(&mut self, capacity: usize) -> Option<Memory> {
        // Batches of items of different lengths never have the same size. A block that is a little
        // larger than necessary and was just in use is better than one that fits.
        let fits = capacity..=capacity + capacity / 4;
        let least = if fits.contains(&self.latest) && self.blocks.contains_key(&self.latest) {
            self.latest
        } else {
            capacity
        };
        let (&found, blocks) = self.blocks.range_mut(least..=capacity * 2).next()?;
        let (memory, _) = blocks.pop()?;
        if blocks.is_empty() {
            self.blocks.remove(&found);
        }
        self.bytes -= found;
        Some(memory)
    }

    fn put(&mut self, memory: Memory) {
        self.bytes += memory.capacity;
        self.latest = memory.capacity;
        self.blocks.entry(memory.capacity).or_default().push((memory, Instant::now()));
        self.purge();
    }

    fn purge(&mut self) {
        let now = Instant::now();
        let mut bytes = self.bytes;
        let mut room = MAX_KEPT_BYTES;
        self.blocks.retain(|&capacity, blocks| {
            blocks.retain(|(_, since)| {
                let keep = now.duration_since(*since) < MAX_IDLE && capacity <= room;
                if keep {
                    room -= capacity;
                } else {
                    bytes -= capacity;
                }
                keep
            });
            !blocks.is_empty()
        });
        self.bytes = bytes;
    }
}

/// Frees memory that was not reused for a while. To be called periodically.
pub fn purge() {
    // If another thread holds the lock, that thread does the same. In the child of a fork the lock
    // may never be released.
    if let Some(mut kept) = KEPT.try_lock() {
        kept.purge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_long_enough() {
        for length in [0, 1, 63, 64, 65, 1000, 40_000, 1_000_001, 9_000_000] {
            let mut memory = Memory::take(length).unwrap();
            assert_eq!(memory.start.as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!(memory.bytes_mut(length).len(), length);
            assert!(memory.capacity <= length + length / 8 + ALIGNMENT);
        }
    }

    #[test]
    fn a_block_that_is_a_little_too_large_is_taken_if_it_came_back_last() {
        let mut kept = Kept { blocks: BTreeMap::new(), bytes: 0, latest: 0 };
        let capacities = [100_000, 110_000, 180_000].map(capacity_for);
        for capacity in [capacities[0], capacities[2], capacities[1]] {
            kept.put(Memory::take(capacity).unwrap());
        }
        let mut take = |capacity| kept.take(capacity).map(|memory| memory.capacity);
        assert_eq!(take(capacities[0]), Some(capacities[1]));
        assert_eq!(take(capacities[0]), Some(capacities[0]), "it has been taken");
        assert_eq!(take(capacities[0]), Some(capacities[2]), "less than twice the size");
        assert_eq!((take(1000), kept.bytes), (None, 0));
    }

    #[test]
    fn large_blocks_are_used_again() {
        let length = 3_333_333;
        let memory = Memory::take(length).unwrap();
        let start = memory.start;
        memory.recycle();
        assert_eq!(Memory::take(length - 1000).unwrap().start, start);
    }

    #[test]
    fn memory_that_is_not_there_is_no_end_of_the_process() {
        for length in [usize::MAX, isize::MAX as usize, MAX_BYTES, 1 << 56] {
            assert!(Memory::take(length).is_none(), "{length}");
        }
    }
}
