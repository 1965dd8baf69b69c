// SPDX-License-Identifier: Apache-2.0
//! Shared tasks: tasks of the runtime that callers poll too, in their own threads.
//!
//! Design: `docs/design/rpc.md`.
//!
//! A caller that sends a request and waits for the answer would wake a thread for the task, and
//! wait for that. It polls the task itself instead, which saves two switches of threads.
//! Connections, the send queues of writers and the readers of their confirmations are such tasks.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Number of polls of a task by a caller. An insert takes three; the rest of longer work is the
/// runtime's.
const MAX_POLLS: usize = 16;

/// Number of tasks that a caller polls after its own.
const MAX_TASKS: usize = 16;

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that is polled by the runtime's task when it is woken, or by a caller.
#[derive(Default)]
pub struct SharedTask(Mutex<State>);

#[derive(Default)]
struct State {
    /// Absent while it is polled, before the start, and after the end.
    future: Option<Running>,
    /// Set if it was woken after its last poll began.
    is_woken: bool,
    has_ended: bool,
    runtime: Option<Waker>,
    /// A caller that polls the task next, instead of the runtime.
    next: Option<Waker>,
}

impl SharedTask {
    /// Starts a future; the result is to be spawned, and drops the future when it is dropped.
    pub fn start(
        self: &Arc<Self>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let future: Running = Box::pin(future);
        {
            let mut state = self.0.lock();
            (state.future, state.is_woken) = (Some(future), true);
        }
        OfRuntime(Arc::clone(self))
    }

    /// Polls the task in this thread until it has no work left, or has done enough. Does nothing if
    /// it has none, or another thread polls it.
    pub fn run(self: &Arc<Self>) {
        let Some(future) = self.0.lock().future.take() else { return };
        let mut polled = Polled { task: self, future: Some(future) };
        for _ in 0..MAX_POLLS {
            if !self.0.lock().is_woken {
                return;
            }
            polled.poll();
        }
    }

    /// Waits for `done`, which depends on the task, and polls the task meanwhile in the thread of
    /// this future. If another thread polls it just now, that leaves the rest to this one.
    pub async fn run_until<T>(self: &Arc<Self>, done: impl Future<Output = T>) -> T {
        let mut done = pin!(done);
        let _follows = Follows(self);
        poll_fn(|context| {
            let before = done.as_mut().poll(context);
            if before.is_ready() {
                return before;
            }
            self.0.lock().next = Some(context.waker().clone());
            self.run();
            done.as_mut().poll(context)
        })
        .await
    }

    /// Polls a future once; `None`: it has ended.
    fn poll(self: &Arc<Self>, mut future: Running) -> Option<Running> {
        self.0.lock().is_woken = false;
        let waker = Waker::from(Arc::clone(self));
        future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending().then_some(future)
    }
}

impl fmt::Debug for SharedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTask").finish_non_exhaustive()
    }
}

impl Wake for SharedTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let runtime = {
            let mut state = self.0.lock();
            let was_woken = std::mem::replace(&mut state.is_woken, true);
            if state.future.is_none() {
                return;
            }
            state.runtime.clone().filter(|_| !was_woken)
        };
        // Also if the runtime was woken: this thread is faster.
        let is_inline = WOKEN.with_borrow_mut(|woken| {
            let Some(woken) = woken else { return false };
            if !woken.iter().any(|task| Arc::ptr_eq(task, self)) {
                woken.push(Arc::clone(self));
            }
            true
        });
        if let (false, Some(runtime)) = (is_inline, runtime) {
            runtime.wake();
        }
    }
}

thread_local! {
    /// Tasks that this thread has woken and polls itself; `None` outside of `run_inline`.
    static WOKEN: RefCell<Option<Vec<Arc<SharedTask>>>> = const { RefCell::new(None) };
}

/// Calls `work`, and then polls the shared tasks that it has woken, in this thread instead of the
/// runtime's. For callers that wait; `work` must not block.
pub fn run_inline<T>(work: impl FnOnce() -> T) -> T {
    let _inline = Inline(WOKEN.replace(Some(Vec::new())));
    let done = work();
    for _ in 0..MAX_TASKS {
        let next = WOKEN.with_borrow_mut(|woken| woken.as_mut().and_then(Vec::pop));
        let Some(task) = next else { break };
        task.run();
    }
    done
}

/// True in `run_inline`.
pub fn is_inline() -> bool {
    WOKEN.with_borrow(Option::is_some)
}

/// Ends `run_inline`, with the list of the call around it. The runtime polls what is left.
struct Inline(Option<Vec<Arc<SharedTask>>>);

impl Drop for Inline {
    fn drop(&mut self) {
        for left in WOKEN.replace(self.0.take()).unwrap_or_default() {
            let runtime = left.0.lock().runtime.clone();
            if let Some(runtime) = runtime {
                runtime.wake();
            }
        }
    }
}

/// Ends `run_until`: the runtime polls what is left.
struct Follows<'a>(&'a SharedTask);

impl Drop for Follows<'_> {
    fn drop(&mut self) {
        let runtime = {
            let mut state = self.0.0.lock();
            state.next = None;
            state.runtime.clone().filter(|_| state.is_woken && state.future.is_some())
        };
        if let Some(runtime) = runtime {
            runtime.wake();
        }
    }
}

/// The future while one thread polls it. It goes back in the end, and the runtime's task is woken
/// if there is work left.
struct Polled<'a> {
    task: &'a Arc<SharedTask>,
    /// Absent after its end.
    future: Option<Running>,
}

impl Polled<'_> {
    fn poll(&mut self) {
        // One that panics is not polled again.
        self.future = self.future.take().and_then(|future| self.task.poll(future));
    }
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        let (next, abandoned) = {
            let mut state = self.task.0.lock();
            state.has_ended |= self.future.is_none();
            let abandoned = if state.has_ended {
                self.future.take()
            } else {
                state.future = self.future.take();
                None
            };
            let next = state.next.take().filter(|_| !state.has_ended);
            let wakes = state.is_woken || state.has_ended;
            (next.or_else(|| state.runtime.clone()).filter(|_| wakes), abandoned)
        };
        // Without the lock: both may call this task.
        drop(abandoned);
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// The runtime's task.
struct OfRuntime(Arc<SharedTask>);

impl Future for OfRuntime {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let future = {
            let mut state = self.0.0.lock();
            if state.has_ended {
                return Poll::Ready(());
            }
            let waker = context.waker();
            if !state.runtime.as_ref().is_some_and(|runtime| runtime.will_wake(waker)) {
                state.runtime = Some(waker.clone());
            }
            if state.is_woken { state.future.take() } else { None }
        };
        if let Some(future) = future {
            // If the future ends, or was woken meanwhile, this task is woken.
            Polled { task: &self.0, future: Some(future) }.poll();
        }
        Poll::Pending
    }
}

impl Drop for OfRuntime {
    /// Ends the future, as the end of a runtime does with its tasks.
    fn drop(&mut self) {
        // Dropped after the lock is released: it may wake itself.
        let future = {
            let mut state = self.0.0.lock();
            (state.has_ended, state.runtime) = (true, None);
            state.future.take()
        };
        drop(future);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    /// A future that counts its polls until it is told to end; and the number.
    fn counting(news: &Arc<Notify>, ends_at: usize) -> (Arc<AtomicUsize>, Running) {
        let (polls, news) = (Arc::new(AtomicUsize::new(0)), Arc::clone(news));
        let counted = Arc::clone(&polls);
        let future = async move {
            while counted.fetch_add(1, Ordering::Relaxed) + 1 < ends_at {
                news.notified().await;
            }
        };
        (polls, Box::pin(future))
    }

    #[tokio::test]
    async fn a_task_that_is_woken_inline_is_polled_inline() {
        let news = Arc::new(Notify::new());
        let (polls, future) = counting(&news, usize::MAX);
        let task = Arc::<SharedTask>::default();
        let _running = tokio::spawn(task.start(future));
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        run_inline(|| {
            run_inline(|| news.notify_one());
            assert_eq!(polls.load(Ordering::Relaxed), 2);
            news.notify_one();
            assert_eq!(polls.load(Ordering::Relaxed), 2, "after the work");
        });
        assert_eq!(polls.load(Ordering::Relaxed), 3);
        news.notify_one();
        assert_eq!(polls.load(Ordering::Relaxed), 3, "outside, the runtime polls it");
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn what_is_left_of_inline_work_is_the_runtimes() {
        let news = Arc::new(Notify::new());
        let mut tasks = Vec::new();
        for _ in 0..MAX_TASKS + 3 {
            let (polls, future) = counting(&news, usize::MAX);
            tasks.push((polls, tokio::spawn(Arc::<SharedTask>::default().start(future))));
        }
        tokio::task::yield_now().await;
        let polled = || tasks.iter().filter(|(polls, _)| polls.load(Ordering::Relaxed) > 1).count();
        run_inline(|| news.notify_waiters());
        assert_eq!(polled(), MAX_TASKS);
        let panics = std::panic::catch_unwind(|| {
            run_inline(|| {
                news.notify_waiters();
                panic!("in the work");
            })
        });
        assert!(panics.is_err());
        tokio::task::yield_now().await;
        assert_eq!(polled(), tasks.len());
    }

    /// Work that callers add, and a task does.
    #[derive(Default)]
    struct Work {
        added: Mutex<Vec<u32>>,
        done: Mutex<Vec<u32>>,
        news: Notify,
    }

    impl Work {
        fn add(&self, number: u32) {
            self.added.lock().push(number);
            self.news.notify_one();
        }

        async fn run(self: Arc<Self>) {
            loop {
                self.news.notified().await;
                let added = std::mem::take(&mut *self.added.lock());
                self.done.lock().extend(added);
            }
        }
    }

    #[test]
    fn a_caller_does_the_work_that_it_adds() {
        let (task, work) = (Arc::<SharedTask>::default(), Arc::<Work>::default());
        let running = task.start(Arc::clone(&work).run());
        task.run();
        for number in 0..3 {
            run_inline(|| work.add(number));
        }
        assert_eq!(*work.done.lock(), [0, 1, 2]);
        drop(running);
        run_inline(|| work.add(3));
        task.run();
        assert_eq!(work.done.lock().len(), 3, "it is over");
    }

    #[test]
    fn no_work_is_left_behind_when_many_threads_add_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let (task, work) = (Arc::<SharedTask>::default(), Arc::<Work>::default());
        runtime.spawn(task.start(Arc::clone(&work).run()));
        for round in 1..=200 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..10).for_each(|i| run_inline(|| work.add(i))));
                }
            });
            let all_done = async {
                while work.done.lock().len() < 40 * round {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let limit = Duration::from_secs(20);
            runtime.block_on(async { tokio::time::timeout(limit, all_done).await.unwrap() });
        }
    }

    #[tokio::test]
    async fn the_end_in_a_caller_is_the_end_of_the_task() {
        let news = Arc::new(Notify::new());
        let (_, future) = counting(&news, 2);
        let task = Arc::<SharedTask>::default();
        let running = tokio::spawn(task.start(future));
        tokio::task::yield_now().await;
        run_inline(|| news.notify_one());
        running.await.unwrap();
        assert!(task.0.lock().has_ended);
    }

    #[tokio::test]
    async fn a_caller_stops_though_the_future_always_wakes_itself() {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let future = poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let task = Arc::<SharedTask>::default();
        let running = task.start(future);
        task.run();
        assert_eq!(polls.load(Ordering::Relaxed), MAX_POLLS);
        drop(running);
    }

    #[tokio::test]
    async fn the_end_of_the_runtime_drops_the_future() {
        let kept = Arc::new(());
        for is_polled in [false, true] {
            let task = Arc::<SharedTask>::default();
            let owned = Arc::clone(&kept);
            let running = task.start(async move {
                std::future::pending::<()>().await;
                drop(owned);
            });
            let future = if is_polled { task.0.lock().future.take() } else { None };
            let polled = future.map(|future| Polled { task: &task, future: Some(future) });
            drop(running);
            drop(polled);
            assert_eq!(Arc::strong_count(&kept), 1);
        }
    }
}
