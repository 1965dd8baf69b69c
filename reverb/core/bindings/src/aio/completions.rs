// SPDX-License-Identifier: Apache-2.0
//! Completions: passes the numbers of ended calls to an event loop.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;

use crate::locks::Visit;

/// Filled by the runtime, emptied by the event loop, which reads from one end of a pair of sockets.
#[derive(Debug)]
pub(super) struct Completions {
    ended: Mutex<Vec<u64>>,
    /// `None` after the event loop has closed it. Reading and writing never block.
    sockets: Mutex<Option<(UnixStream, UnixStream)>>,
}

impl Completions {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { ended: Mutex::default(), sockets: Mutex::new(Some((reader, writer))) })
    }

    /// The end that becomes readable when a call has ended; -1 if it is closed.
    pub(super) fn fileno(&self) -> RawFd {
        self.sockets.visit(|sockets| sockets.as_ref().map_or(-1, |(reader, _)| reader.as_raw_fd()))
    }

    /// Records that a call has ended, and wakes the event loop unless it has been woken.
    pub(super) fn push(&self, number: u64) {
        let was_empty = self.ended.visit(|ended| {
            ended.push(number);
            ended.len() == 1
        });
        if was_empty {
            // If the socket is full, the loop has not read yet and will.
            self.sockets.visit(|sockets| sockets.as_mut().map(|(_, writer)| writer.write(&[1])));
        }
    }

    /// Takes the calls that have ended since the last time.
    pub(super) fn take(&self) -> Vec<u64> {
        // Read first: a call that ends after the list was taken wakes the loop again.
        self.sockets.visit(|sockets| {
            let mut bytes = [0; 64];
            let Some((reader, _)) = sockets else { return };
            while matches!(reader.read(&mut bytes), Ok(count) if count == bytes.len()) {}
        });
        self.ended.visit(std::mem::take)
    }

    pub(super) fn close(&self) {
        self.sockets.visit(Option::take);
    }
}
