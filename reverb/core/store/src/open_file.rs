// SPDX-License-Identifier: Apache-2.0
//! An open data file, and the thread that is told when nothing refers to one any more.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Instant;

use reverb_base::process::generation;
use reverb_data::ReadAt;
use reverb_files::DiskFile;

use crate::counts::Counts;

/// Wakes the thread of a store. It takes no lock, because chunks are dropped anywhere.
#[derive(Debug)]
pub(crate) struct Waker {
    thread: OnceLock<Thread>,
    has_dead_file: AtomicBool,
    /// A forked child has no such thread.
    generation: usize,
}

impl Waker {
    pub(crate) fn new() -> Self {
        let generation = generation();
        Self { thread: OnceLock::new(), has_dead_file: AtomicBool::new(false), generation }
    }

    /// Returns true in the process that opened the store.
    pub(crate) fn is_mine(&self) -> bool {
        self.generation == generation()
    }

    /// The calling thread is the one to wake.
    pub(crate) fn set_thread(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get().filter(|_| self.is_mine()) {
            thread.unpark();
        }
    }

    /// Returns true if a file has died since the last call.
    pub(crate) fn take_dead_file(&self) -> bool {
        self.has_dead_file.swap(false, Ordering::AcqRel)
    }
}

/// A data file as places read it. It is dropped with the last place.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) waker: Arc<Waker>,
}

impl ReadAt for OpenFile {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let start = Instant::now();
        let done = self.file.read_exact_at(bytes, offset);
        self.counts.add_read(bytes.len(), start.elapsed());
        done.inspect_err(|error| self.counts.add_error("read", error))
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        let start = Instant::now();
        let is_read = self.file.read_cached_at(bytes, offset);
        if is_read {
            self.counts.add_read(bytes.len(), start.elapsed());
        }
        is_read
    }

    fn count_wrong_bytes(&self) {
        self.counts.add_error("read", &io::ErrorKind::InvalidData.into());
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.waker.has_dead_file.store(true, Ordering::Release);
        self.waker.wake();
    }
}
