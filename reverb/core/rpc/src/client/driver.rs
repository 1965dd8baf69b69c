// SPDX-License-Identifier: Apache-2.0
//! The driver of a connection: its task, its socket, and who waits for the two.
//!
//! Design: `docs/design/rpc.md`.
//!
//! A thread of the runtime that reads an answer wakes the caller: two switches of threads. A caller
//! that is alone on its connection takes the socket out of the runtime instead, and waits for it in
//! its own thread. `who_drives` has the rules.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use reverb_base::tasks::{SharedTask, is_inline};
use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;

use super::movable_socket::MovableSocket;
use super::who_drives::{DrivenBy, Waits, WhoDrives};

/// Interval of the looks for callers, after which the runtime drives again.
const LOOK_EVERY: Duration = Duration::from_millis(50);

thread_local! {
    /// Connections with answers that this thread waits for; `None` outside of `noting`.
    static NOTED: RefCell<Option<Vec<Noted>>> = const { RefCell::new(None) };
}

/// Answers of one connection that a thread waits for.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) driver: Arc<Driver>,
    num_waits: usize,
    /// True while this thread drives the connection.
    drives: bool,
}

/// Calls `poll`, and notes the connections on which this thread waits then.
pub(super) fn noting<T>(noted: &mut Vec<Noted>, poll: impl FnOnce() -> T) -> T {
    NOTED.set(Some(std::mem::take(noted)));
    let polled = poll();
    *noted = NOTED.take().unwrap_or_default();
    polled
}

impl Noted {
    /// The socket, if this thread is to wait for it; else it is woken. With a socket that has left
    /// the runtime, the connection is to be polled first.
    pub(super) fn wait(&mut self, caller: &Waker) -> Option<(Arc<Socket>, bool)> {
        self.drives = self.driver.change(|state| {
            let waits = state.who.wait(self.num_waits, self.drives);
            if waits == Waits::Drives {
                state.caller = Some(caller.clone());
            } else if self.drives {
                state.caller = None;
            }
            waits == Waits::Drives
        });
        let socket = self.drives.then(|| self.driver.socket.detached())?;
        if socket.is_none() {
            // The connection has ended.
            self.stop();
        }
        Some((socket?, self.driver.has_left_runtime.swap(false, Ordering::AcqRel)))
    }

    /// This thread does not wait any more, although answers may be left.
    pub(super) fn stop(&mut self) {
        if std::mem::take(&mut self.drives) {
            self.driver.change(|state| {
                state.caller = None;
                state.who.stop();
            });
        } else if self.num_waits > 0 {
            self.driver.change(|state| state.who.serve_waits());
        }
    }
}

/// The task and the socket of a connection, and who drives it.
#[derive(Debug)]
pub struct Driver {
    /// The connection, which reads and writes the socket when it is polled.
    pub(super) task: Arc<SharedTask>,
    socket: MovableSocket,
    runtime: Handle,
    state: Mutex<State>,
    /// True unless the runtime drives: so that most calls need not lock `state`.
    is_detached: AtomicBool,
    /// True if what the connection waited for at the runtime, such as room to write, was lost.
    has_left_runtime: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    who: WhoDrives,
    /// The caller that drives.
    caller: Option<Waker>,
    /// True while `look_for_callers` runs.
    is_watched: bool,
}

impl Driver {
    /// The driver of a connection over this socket. Called on the runtime.
    pub(super) fn new(socket: MovableSocket) -> Arc<Self> {
        Arc::new(Self {
            task: Arc::default(),
            socket,
            runtime: Handle::current(),
            state: Mutex::default(),
            is_detached: AtomicBool::new(false),
            has_left_runtime: AtomicBool::new(false),
        })
    }

    /// Begins to wait for an answer, so that it is read as soon as it arrives: by this thread in
    /// `poll_for`, or by the runtime.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        let is_callers = self.note();
        self.begin_wait(is_callers)
    }

    /// Like `wait`. In `run_inline` outside of `poll_for` the answer is read by the caller that
    /// calls this again in `poll_for`; without one after 100 ms.
    pub fn wait_for_caller(self: &Arc<Self>) -> Waiting {
        let is_callers = self.note() || is_inline();
        self.begin_wait(is_callers)
    }

    /// True in `poll_for`, which drives the connection.
    fn note(self: &Arc<Self>) -> bool {
        NOTED.with_borrow_mut(|noted| {
            let Some(noted) = noted else { return false };
            let is_known = |noted: &&mut Noted| Arc::ptr_eq(&noted.driver, self);
            if let Some(noted) = noted.iter_mut().find(is_known) {
                noted.num_waits += 1;
            } else {
                let driver = Arc::clone(self);
                noted.push(Noted { driver, num_waits: 1, drives: false });
            }
            true
        })
    }

    fn begin_wait(self: &Arc<Self>, is_callers: bool) -> Waiting {
        self.change(|state| state.who.begin_wait(is_callers));
        Waiting { driver: Arc::clone(self), is_callers }
    }

    /// Changes who drives, and moves the socket there.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        let is_detached = state.who.by() != DrivenBy::Runtime;
        if is_detached != self.is_detached.swap(is_detached, Ordering::AcqRel) {
            self.move_socket(state, is_detached);
        }
        changed
    }

    fn move_socket(self: &Arc<Self>, mut state: MutexGuard<'_, State>, detaches: bool) {
        if detaches {
            self.socket.detach();
            self.has_left_runtime.store(true, Ordering::Release);
            if !std::mem::replace(&mut state.is_watched, true) {
                self.runtime.spawn(Arc::clone(self).look_for_callers());
            }
        } else {
            self.socket.attach(&self.runtime);
            drop(state);
            // The connection registers its interest in the socket when it is polled.
            Wake::wake_by_ref(&self.task);
        }
    }

    async fn look_for_callers(self: Arc<Self>) {
        let mut is_watched = true;
        while is_watched {
            tokio::time::sleep(LOOK_EVERY).await;
            is_watched = self.change(|state| {
                state.who.look();
                state.is_watched = state.who.by() != DrivenBy::Runtime;
                state.is_watched
            });
        }
    }

    /// Gives a socket that is full to the runtime: now, or when the caller that drives has stopped.
    pub(super) fn leave_to_runtime(self: &Arc<Self>) {
        let caller = self.change(|state| {
            state.who.want_runtime();
            state.caller.clone()
        });
        if let Some(caller) = caller {
            caller.wake();
        }
    }

    /// Wakes the connection, because there is something to read.
    pub(super) fn wake(&self) {
        self.socket.note_readable();
        Wake::wake_by_ref(&self.task);
    }

    /// Reads what has arrived while nobody drove: perhaps the end of the connection.
    pub(super) fn catch_up(&self) {
        if self.is_detached.load(Ordering::Acquire) {
            self.wake();
            self.task.run();
        }
    }
}

/// The socket of a connection, as the connection uses it.
#[derive(Debug)]
pub(super) struct DrivenSocket(pub(super) Arc<Driver>);

impl DrivenSocket {
    fn write(&self, context: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let driver = &self.0;
        loop {
            match driver.socket.poll_write(context, bytes) {
                Some(written) => return written,
                None => driver.leave_to_runtime(),
            }
            if driver.is_detached.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for DrivenSocket {
    fn drop(&mut self) {
        self.0.socket.close();
    }
}

impl AsyncRead for DrivenSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.socket.poll_read(context, buffer)
    }
}

impl AsyncWrite for DrivenSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.socket.poll_shutdown(context)
    }
}

/// A wait for an answer; it ends when it is dropped.
#[derive(Debug)]
pub struct Waiting {
    driver: Arc<Driver>,
    is_callers: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_callers {
            NOTED.with_borrow_mut(|noted| {
                let mut noted = noted.iter_mut().flatten();
                if let Some(noted) = noted.find(|noted| Arc::ptr_eq(&noted.driver, &self.driver)) {
                    noted.num_waits = noted.num_waits.saturating_sub(1);
                }
            });
        }
        self.driver.change(|state| state.who.end_wait(self.is_callers));
    }
}
