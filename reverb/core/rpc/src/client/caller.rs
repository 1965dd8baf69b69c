// SPDX-License-Identifier: Apache-2.0
//! A caller that waits in its own thread, and drives the connections whose answers it waits for.
//!
//! Design: `docs/design/rpc.md`.

use std::cell::RefCell;
use std::future::poll_fn;
#[cfg(unix)]
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
#[cfg(unix)]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use reverb_base::process::generation;
use reverb_base::tasks::run_inline;
#[cfg(unix)]
use rustix::event::{PollFd, PollFlags, Timespec};
#[cfg(unix)]
use smallvec::SmallVec;
#[cfg(unix)]
use socket2::Socket;
use tokio::runtime::Handle;

use super::driver::{Driver, Noted, noting};

/// Polls a future in this thread until it is finished, or for `limit`. The shared tasks that it
/// wakes are polled in this thread, too; and so are the connections on which it waits, if nobody
/// else waits on them.
///
/// Tokio's `timeout` would set a timer for every call, which wakes a thread of the runtime. So only
/// the polls run in `block_on`, which bounds the work of each of them.
pub fn poll_for<T>(
    runtime: &Handle,
    limit: Duration,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let parker = Parker::of_this_thread();
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let mut waits = Waits::default();
    let mut end = None;
    parker.notify();
    loop {
        let polled = poll_fn(|_| {
            let to_poll = std::mem::take(&mut waits.to_poll);
            Poll::Ready(noting(&mut waits.noted, || {
                if !to_poll.is_empty() {
                    run_inline(|| to_poll.iter().for_each(|driver| driver.wake()));
                }
                if !parker.take_notification() {
                    return Poll::Pending;
                }
                run_inline(|| future.as_mut().poll(&mut context))
            }))
        });
        if let Poll::Ready(result) = runtime.block_on(polled) {
            return Some(result);
        }
        let now = Instant::now();
        let end = *end.get_or_insert(now + limit);
        if now >= end {
            return None;
        }
        if !parker.is_notified() {
            waits.wait(&parker, &waker, end - now);
        }
    }
}

/// The connections on which this thread waits.
#[derive(Default)]
struct Waits {
    noted: Vec<Noted>,
    /// Connections that are to be polled: there is something to read, or the socket has left the
    /// runtime.
    to_poll: Vec<Arc<Driver>>,
}

impl Waits {
    /// Waits for a wake, or for the sockets of the connections that this thread drives.
    #[cfg(unix)]
    fn wait(&mut self, parker: &Parker, caller: &Waker, limit: Duration) {
        let Some(interrupt) = parker.interrupt() else {
            self.noted.iter().for_each(|noted| noted.driver.leave_to_runtime());
            return std::thread::park_timeout(limit);
        };
        let to_poll = &mut self.to_poll;
        let driven = self.noted.iter_mut().filter_map(|noted| {
            let (socket, has_left_runtime) = noted.wait(caller)?;
            if has_left_runtime {
                to_poll.push(Arc::clone(&noted.driver));
            }
            Some((Arc::clone(&noted.driver), socket))
        });
        let driven: SmallVec<[(Arc<Driver>, Arc<Socket>); 3]> = driven.collect();
        if driven.is_empty() {
            return std::thread::park_timeout(limit);
        }
        if !self.to_poll.is_empty() {
            return;
        }
        let sockets = driven.iter().map(|(_, socket)| &**socket);
        parker.wait_for(interrupt, sockets, limit, |at| {
            self.to_poll.push(Arc::clone(&driven[at].0));
        });
    }

    #[cfg(not(unix))]
    fn wait(&mut self, _parker: &Parker, _caller: &Waker, limit: Duration) {
        std::thread::park_timeout(limit);
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.noted.iter_mut().for_each(Noted::stop);
    }
}

/// It runs, or waits without a look at sockets.
const IDLE: u8 = 0;
/// There was a wake since the last poll.
const NOTIFIED: u8 = 1;
/// It waits for sockets.
const WAITS_FOR_SOCKETS: u8 = 2;

/// Waker of a thread that polls a future.
struct Parker {
    thread: Thread,
    state: AtomicU8,
    /// Ends a wait for sockets. Made at the first one.
    #[cfg(unix)]
    interrupt: OnceLock<(PipeReader, PipeWriter)>,
}

impl Parker {
    fn of_this_thread() -> Arc<Self> {
        thread_local! {
            /// With the process: a forked child has the value of its parent.
            static PARKER: RefCell<Option<(usize, Arc<Parker>)>> = const { RefCell::new(None) };
        }
        PARKER.with_borrow_mut(|parker| match parker {
            Some((process, parker)) if *process == generation() => Arc::clone(parker),
            _ => Arc::clone(&parker.insert((generation(), Arc::new(Self::new()))).1),
        })
    }

    fn new() -> Self {
        Self {
            thread: std::thread::current(),
            state: AtomicU8::new(IDLE),
            #[cfg(unix)]
            interrupt: OnceLock::new(),
        }
    }

    fn notify(&self) {
        self.state.store(NOTIFIED, Ordering::Release);
    }

    fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    fn take_notification(&self) -> bool {
        self.state.swap(IDLE, Ordering::AcqRel) == NOTIFIED
    }

    /// Readable after a wake while this thread waits for sockets; `None` if there are no more
    /// files.
    #[cfg(unix)]
    fn interrupt(&self) -> Option<&PipeReader> {
        if self.interrupt.get().is_none() {
            let _ = self.interrupt.set(std::io::pipe().ok()?);
        }
        self.interrupt.get().map(|(reader, _)| reader)
    }

    /// Waits for a wake, or until one of the sockets is readable: calls `ready` with its place. A
    /// signal ends the wait.
    #[cfg(unix)]
    fn wait_for<'a>(
        &self,
        interrupt: &PipeReader,
        sockets: impl Iterator<Item = &'a Socket>,
        limit: Duration,
        mut ready: impl FnMut(usize),
    ) {
        let exchange =
            |from, to| self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        if exchange(IDLE, WAITS_FOR_SOCKETS).is_err() {
            return;
        }
        let mut files: SmallVec<[PollFd<'_>; 4]> = SmallVec::new();
        files.push(PollFd::new(interrupt, PollFlags::IN));
        files.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let limit = Timespec::try_from(limit).ok();
        let polled = rustix::event::poll(&mut files, limit.as_ref());
        let _ = exchange(WAITS_FOR_SOCKETS, IDLE);
        if !matches!(polled, Ok(1..)) {
            return;
        }
        let is_ready = |file: &PollFd<'_>| !file.revents().is_empty();
        if is_ready(&files[0]) {
            let _ = Read::read(&mut &*interrupt, &mut [0; 16]);
        }
        (0..files.len() - 1).filter(|at| is_ready(&files[at + 1])).for_each(&mut ready);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            IDLE => self.thread.unpark(),
            #[cfg(unix)]
            WAITS_FOR_SOCKETS => {
                let interrupt = self.interrupt.get();
                if let Some((_, interrupt)) = interrupt {
                    let _ = Write::write(&mut &*interrupt, &[0]);
                }
            }
            _ => {}
        }
    }
}
