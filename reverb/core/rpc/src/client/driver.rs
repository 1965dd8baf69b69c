// SPDX-License-Identifier: Apache-2.0
//! Driver of a connection: moves frames between the streams and the socket.
//!
//! A task drives the connection whenever something wakes it. A caller that sends a request and
//! waits for the answer can drive it as well. Then the request leaves without a second thread, and
//! without the two thread switches that waking one costs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use crate::BoxFuture;

/// Result with which a connection ended.
type End = Result<(), h2::Error>;

/// A connection that a task and callers drive in turns.
#[derive(Clone)]
pub(super) struct Driver(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wakes: Arc<Wakes>,
}

enum State {
    Open(BoxFuture<'static, End>),
    Ended(End),
    /// The task has returned the end, or has been dropped.
    Closed,
}

impl Driver {
    /// A driver, and the task without which the connection makes no progress. The connection is
    /// closed when the task is dropped.
    pub(super) fn new(
        connection: impl Future<Output = End> + Send + 'static,
    ) -> (Self, DriverTask) {
        let state = Mutex::new(State::Open(Box::pin(connection)));
        let shared = Arc::new(Shared { state, wakes: Arc::default() });
        (Self(Arc::clone(&shared)), DriverTask(shared))
    }

    /// Calls `send`, which queues frames, and writes them in this thread as far as the socket takes
    /// them. `send` must not block.
    pub(super) fn send_now<T>(&self, send: impl FnOnce() -> T) -> T {
        let _deferred = self.0.wakes.defer();
        let sent = send();
        // If another thread drives the connection, the wake that was deferred makes the task look
        // again.
        if let Some(mut state) = self.0.state.try_lock() {
            self.0.wakes.forget();
            if self.0.drive(&mut state) {
                // The task has to return the end.
                self.0.wakes.wake_by_ref();
            }
        }
        sent
    }

    /// Drops a stream. For that h2 wakes the connection, which has nothing to send but a reset of a
    /// stream that had not ended. This thread drives it, so that no call wakes the task at its end.
    pub(super) fn release(&self, stream: impl Sized) {
        self.send_now(|| drop(stream));
    }
}

impl Shared {
    /// Polls an open connection once. Returns true if it has ended.
    fn drive(&self, state: &mut State) -> bool {
        let State::Open(connection) = state else { return true };
        let waker = Waker::from(Arc::clone(&self.wakes));
        match connection.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => false,
            Poll::Ready(end) => {
                *state = State::Ended(end);
                true
            }
        }
    }
}

pub(super) struct DriverTask(Arc<Shared>);

impl Future for DriverTask {
    type Output = End;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        self.0.wakes.set_task(context.waker());
        let mut state = self.0.state.lock();
        if !self.0.drive(&mut state) {
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Closed) {
            State::Ended(end) => Poll::Ready(end),
            State::Open(_) | State::Closed => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *self.0.state.lock(), State::Closed);
        drop(state);
    }
}

/// The waker of a connection. It wakes the task, unless a caller is going to drive the connection.
#[derive(Default)]
struct Wakes {
    task: Mutex<Option<Waker>>,
    deferrals: AtomicUsize,
    /// True if there was a wake since such a caller last polled the connection.
    is_woken: AtomicBool,
}

impl Wakes {
    fn set_task(&self, waker: &Waker) {
        let mut task = self.task.lock();
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// Defers wakes: until the guard is dropped they are only recorded. Then one wakes the task,
    /// unless they were forgotten.
    fn defer(&self) -> Deferral<'_> {
        self.deferrals.fetch_add(1, Ordering::SeqCst);
        Deferral(self)
    }

    /// Must be called before the connection is polled: a wake may come during that.
    fn forget(&self) {
        self.is_woken.store(false, Ordering::SeqCst);
    }

    fn wake_task(&self) {
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Both orders of this and of the end of a deferral wake the task.
        self.is_woken.store(true, Ordering::SeqCst);
        if self.deferrals.load(Ordering::SeqCst) == 0 {
            self.wake_task();
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

struct Deferral<'a>(&'a Wakes);

impl Drop for Deferral<'_> {
    fn drop(&mut self) {
        self.0.deferrals.fetch_sub(1, Ordering::SeqCst);
        if self.0.is_woken.swap(false, Ordering::SeqCst) {
            self.0.wake_task();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;

    /// Frames that are queued by callers and written when the connection is driven.
    #[derive(Default)]
    struct Frames {
        queued: Mutex<Vec<u32>>,
        written: Mutex<Vec<u32>>,
        waker: Mutex<Option<Waker>>,
        has_ended: AtomicBool,
        /// True if the connection wakes itself whenever it is driven.
        wakes_itself: AtomicBool,
    }

    impl Frames {
        fn queue(&self, frame: u32) {
            self.queued.lock().push(frame);
            self.wake();
        }

        fn wake(&self) {
            if let Some(waker) = self.waker.lock().clone() {
                waker.wake();
            }
        }

        fn poll(&self, context: &Context<'_>) -> Poll<End> {
            *self.waker.lock() = Some(context.waker().clone());
            let queued = std::mem::take(&mut *self.queued.lock());
            self.written.lock().extend(queued);
            if self.wakes_itself.load(Ordering::Relaxed) {
                context.waker().wake_by_ref();
            }
            if self.has_ended.load(Ordering::Relaxed) { Poll::Ready(Ok(())) } else { Poll::Pending }
        }
    }

    fn connect() -> (Arc<Frames>, Driver, DriverTask) {
        let frames = Arc::new(Frames::default());
        let it = Arc::clone(&frames);
        let (driver, task) = Driver::new(std::future::poll_fn(move |context| it.poll(context)));
        (frames, driver, task)
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn take(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }

        fn poll(self: &Arc<Self>, task: &mut DriverTask) -> Poll<End> {
            let waker = Waker::from(Arc::clone(self));
            Pin::new(task).poll(&mut Context::from_waker(&waker))
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_caller_writes_its_frames_without_waking_the_task() {
        let ((frames, driver, mut task), wakes) = (connect(), Arc::new(Count::default()));
        assert!(wakes.poll(&mut task).is_pending());
        for frame in 0..3 {
            assert_eq!(driver.send_now(|| frames.queue(frame)), ());
        }
        assert_eq!((wakes.take(), &*frames.written.lock()), (0, &vec![0, 1, 2]));
        frames.queue(3);
        assert_eq!(wakes.take(), 1, "others wake it");
        assert!(wakes.poll(&mut task).is_pending());
        assert_eq!(*frames.written.lock(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_stream_that_is_dropped_wakes_no_task() {
        struct Stream(Arc<Frames>);

        impl Drop for Stream {
            fn drop(&mut self) {
                self.0.queue(8);
            }
        }

        let ((frames, driver, mut task), wakes) = (connect(), Arc::new(Count::default()));
        assert!(wakes.poll(&mut task).is_pending());
        driver.release(Stream(Arc::clone(&frames)));
        assert_eq!((wakes.take(), &*frames.written.lock()), (0, &vec![8]), "a reset is sent");
        drop(Stream(Arc::clone(&frames)));
        assert_eq!(wakes.take(), 1, "otherwise it would be woken");
    }

    #[test]
    fn while_another_thread_drives_the_connection_the_task_is_woken() {
        let ((frames, driver, mut task), wakes) = (connect(), Arc::new(Count::default()));
        assert!(wakes.poll(&mut task).is_pending());
        let driving = driver.0.state.lock();
        driver.send_now(|| frames.queue(7));
        drop(driving);
        assert_eq!((wakes.take(), frames.written.lock().len()), (1, 0));
        assert!(wakes.poll(&mut task).is_pending());
        assert_eq!(*frames.written.lock(), [7]);
    }

    #[test]
    fn a_wake_while_a_caller_drives_the_connection_reaches_the_task() {
        let ((frames, driver, mut task), wakes) = (connect(), Arc::new(Count::default()));
        assert!(wakes.poll(&mut task).is_pending());
        frames.wakes_itself.store(true, Ordering::Relaxed);
        driver.send_now(|| frames.queue(1));
        assert_eq!(wakes.take(), 1);
    }

    #[test]
    fn the_task_returns_an_end_that_a_caller_came_upon() {
        let ((frames, driver, mut task), wakes) = (connect(), Arc::new(Count::default()));
        assert!(wakes.poll(&mut task).is_pending());
        frames.has_ended.store(true, Ordering::Relaxed);
        driver.send_now(|| frames.queue(1));
        assert_eq!((wakes.take(), wakes.poll(&mut task).is_ready()), (1, true));
        driver.send_now(|| frames.queue(2));
        assert_eq!(*frames.written.lock(), [1], "it is over");
    }

    #[test]
    fn the_connection_goes_with_its_task() {
        let (frames, driver, task) = connect();
        let connection: Weak<Frames> = Arc::downgrade(&frames);
        drop(frames);
        assert!(connection.upgrade().is_some());
        drop(task);
        assert!(connection.upgrade().is_none());
        driver.send_now(|| ());
    }

    #[test]
    fn no_frame_is_left_behind_when_many_threads_send() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let (frames, driver, task) = connect();
        runtime.spawn(task);
        for round in 1..=200 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..10).for_each(|i| driver.send_now(|| frames.queue(i))));
                }
            });
            let all_written = async {
                while frames.written.lock().len() < 40 * round {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let limit = Duration::from_secs(20);
            runtime.block_on(async { tokio::time::timeout(limit, all_written).await.unwrap() });
        }
    }
}
