// SPDX-License-Identifier: Apache-2.0
//! The memory allocator of the native module and of everything else that links this crate.
//!
//! Design: `docs/design/chunks.md`.
//!
//! Programs allocate and free millions of small cells, items and chunks. The system's allocator
//! spends more on them than they hold.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc,
    mi_zalloc_aligned,
};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// mimalloc, asked for an alignment only where its blocks may not have it.
///
/// `mimalloc::MiMalloc` always asks. Then a block whose size is no power of two is often searched
/// in a slow way, and taken from the next size: 96 bytes instead of 80.
struct Allocator;

/// Blocks of at least this size have that alignment, like those of `malloc` in C.
const BLOCK_ALIGNMENT: usize = 16;

fn is_aligned_anyway(size: usize, alignment: usize) -> bool {
    alignment <= BLOCK_ALIGNMENT && alignment <= size
}

// SAFETY: mimalloc's functions keep the contract of their namesakes in C, and the plain ones are
// called only for alignments that all of its blocks of the size have.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size();
        let alignment = layout.align();
        // SAFETY: any size and any power of two may be passed.
        unsafe {
            if is_aligned_anyway(size, alignment) {
                mi_malloc(size).cast()
            } else {
                mi_malloc_aligned(size, alignment).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let size = layout.size();
        let alignment = layout.align();
        // SAFETY: like `alloc`.
        unsafe {
            if is_aligned_anyway(size, alignment) {
                mi_zalloc(size).cast()
            } else {
                mi_zalloc_aligned(size, alignment).cast()
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller passes a block of this allocator, which knows its size.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of this allocator, of any alignment.
        unsafe {
            if is_aligned_anyway(size, layout.align()) {
                mi_realloc(block.cast(), size).cast()
            } else {
                mi_realloc_aligned(block.cast(), size, layout.align()).cast()
            }
        }
    }
}

/// `mi_option_purge_delay` of mimalloc's `mimalloc.h`; the crate has no name for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Time for which freed memory is kept before it returns to the system. A stream of large chunks
/// reuses the same memory; with the default of 10 ms, most of its time went to clearing fresh
/// pages.
const PURGE_DELAY_MS: std::ffi::c_long = 1000;

/// The same time in a process whose server has a memory limit. Ten milliseconds keep some 15 MiB
/// less than this, and a second 100 MiB more.
const LIMITED_PURGE_DELAY_MS: std::ffi::c_long = 50;

/// The environment variable that overrides both.
const PURGE_DELAY_VARIABLE: &str = "MIMALLOC_PURGE_DELAY";

/// Keeps freed memory for a shorter time from now on, because a server has a limit.
pub fn keep_little() {
    if std::env::var_os(PURGE_DELAY_VARIABLE).is_none() {
        // SAFETY: sets one word of mimalloc's option table, which its documentation allows at any
        // time.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, LIMITED_PURGE_DELAY_MS) };
    }
}

/// Returns free memory to the system, except pages that belong to another thread's heap.
///
/// By itself the allocator purges only while it is busy, and only in part.
pub fn purge() {
    // SAFETY: may be called at any time, by any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Memory of a block of this size.
pub fn block_bytes(bytes: usize) -> usize {
    // SAFETY: computes a number.
    unsafe { libmimalloc_sys::mi_good_size(bytes) }
}

/// Sets up the allocator, unless the environment overrides it (`MIMALLOC_PURGE_DELAY`).
pub fn set_up() {
    // SAFETY: sets one word of mimalloc's option table, as its documentation allows at any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_alignment_and_no_more_than_the_size_that_was_asked_for() {
        for alignment in [1, 2, 4, 8, 16, 32, 64, 4096] {
            for size in (1..300).chain([1000, 4000, 70_000, 3_000_000]) {
                let layout = Layout::from_size_align(size, alignment).unwrap();
                // SAFETY: the blocks are used with the layouts that they were allocated with.
                unsafe {
                    let blocks = [ALLOCATOR.alloc(layout), ALLOCATOR.alloc_zeroed(layout)];
                    assert_eq!(*blocks[1].add(size - 1), 0);
                    for block in blocks {
                        assert!(block.addr().is_multiple_of(alignment));
                        block.write(7);
                        let larger = Layout::from_size_align(2 * size, alignment).unwrap();
                        let moved = ALLOCATOR.realloc(block, layout, larger.size());
                        assert!(moved.addr().is_multiple_of(alignment));
                        assert_eq!(moved.read(), 7);
                        ALLOCATOR.dealloc(moved, larger);
                    }
                }
            }
        }
        // SAFETY: like above.
        unsafe {
            for size in [48, 80, 96, 112, 160] {
                let layout = Layout::from_size_align(size, 8).unwrap();
                let block = ALLOCATOR.alloc(layout);
                assert_eq!(libmimalloc_sys::mi_usable_size(block.cast_const().cast()), size);
                ALLOCATOR.dealloc(block, layout);
            }
        }
    }
}
