// SPDX-License-Identifier: Apache-2.0
//! The memory allocator of the module.
//!
//! Programs allocate and free millions of small cells, items and chunks. The system's allocator
//! spends more on them than they hold.

#![allow(unsafe_code)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc's `mimalloc.h`; the crate has no name for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// How long freed memory is kept before it returns to the system. A stream of large chunks reuses
/// the same memory; with the default of 10 ms, most of its time went to clearing fresh pages.
const PURGE_DELAY_MS: std::ffi::c_long = 1000;

/// The same in a process whose server has a limit of memory. Ten milliseconds keep some 15 MiB
/// less than this, and a second 100 MiB more.
const LIMITED_PURGE_DELAY_MS: std::ffi::c_long = 50;

/// The environment variable that overrides both.
const PURGE_DELAY_VARIABLE: &str = "MIMALLOC_PURGE_DELAY";

/// Keeps freed memory for a shorter time from now on, because a server has a limit.
pub(crate) fn keep_little() {
    if std::env::var_os(PURGE_DELAY_VARIABLE).is_none() {
        // SAFETY: sets one word of mimalloc's option table, which its documentation allows at any
        // time.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, LIMITED_PURGE_DELAY_MS) };
    }
}

/// Returns free memory to the system, except pages that belong to another thread's heap.
///
/// By itself the allocator purges only while it is busy, and only in part.
pub(crate) fn purge() {
    // SAFETY: may be called at any time, by any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Sets up the allocator, unless the environment overrides it (`MIMALLOC_PURGE_DELAY`).
pub(crate) fn set_up() {
    // SAFETY: sets one word of mimalloc's option table, as its documentation allows at any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}
