// SPDX-License-Identifier: Apache-2.0
//! Shared tasks: a task of the runtime that callers can run too, in their own threads.
//!
//! Design: `docs/design/rpc.md`.
//!
//! A caller that sends a request and waits for the answer would wake the task and wait for it. It
//! takes a turn instead: the request leaves without a second thread, and without the two switches
//! of threads that waking one costs. Connections and the send queues of writers are such tasks.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Number of polls in one turn. An insert takes three; the rest of longer work is the runtime's.
const MAX_POLLS: usize = 16;

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future and its place: with the runtime's task, which polls it when it is woken, or in a turn
/// of a caller. Its wakers reach whichever has it.
#[derive(Default)]
pub struct SharedTask(Mutex<State>);

#[derive(Default)]
struct State {
    /// Absent while it is polled or a caller has its turn, before the start, and after the end.
    future: Option<Running>,
    /// Set if it was woken after its last poll began.
    is_woken: bool,
    has_ended: bool,
    runtime: Option<Waker>,
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

    /// Takes the future for a turn; `None` if another thread polls it, and after its end. Until the
    /// turn is over, wakes do not reach the runtime.
    pub fn take_turn(self: &Arc<Self>) -> Option<Turn<'_>> {
        let future = self.0.lock().future.take()?;
        Some(Turn { task: self, future: Some(future) })
    }

    /// Calls `work`, which wakes the future, and then does what that left to do, both in one turn.
    /// If another thread has the turn, that one does it. `work` must not block.
    pub fn run_after<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let turn = self.take_turn();
        let done = work();
        if let Some(turn) = turn {
            turn.run();
        }
        done
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
            if std::mem::replace(&mut state.is_woken, true) || state.future.is_none() {
                return;
            }
            state.runtime.clone()
        };
        if let Some(runtime) = runtime {
            runtime.wake();
        }
    }
}

/// A caller's turn: nobody else polls the future. It goes back to the runtime's task in the end,
/// which is woken if there is work left.
pub struct Turn<'a> {
    task: &'a Arc<SharedTask>,
    /// Absent after its end.
    future: Option<Running>,
}

impl Turn<'_> {
    /// Polls in this thread until there is no work left, or enough was done.
    pub fn run(mut self) {
        for _ in 0..MAX_POLLS {
            if !self.task.0.lock().is_woken {
                return;
            }
            self.poll();
        }
    }

    fn poll(&mut self) {
        // One that panics is not polled again.
        self.future = self.future.take().and_then(|future| self.task.poll(future));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (runtime, abandoned) = {
            let mut state = self.task.0.lock();
            state.has_ended |= self.future.is_none();
            let abandoned = if state.has_ended {
                self.future.take()
            } else {
                state.future = self.future.take();
                None
            };
            let wakes = state.is_woken || state.has_ended;
            (state.runtime.clone().filter(|_| wakes), abandoned)
        };
        // Without the lock: both may call this task.
        drop(abandoned);
        if let Some(runtime) = runtime {
            runtime.wake();
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
            // If the future ends, or was woken meanwhile, the end of the turn wakes this task.
            Turn { task: &self.0, future: Some(future) }.poll();
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
    async fn a_turn_keeps_wakes_from_the_runtime() {
        let news = Arc::new(Notify::new());
        let (polls, future) = counting(&news, usize::MAX);
        let task = Arc::<SharedTask>::default();
        let _running = tokio::spawn(task.start(future));
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        let turn = task.take_turn().unwrap();
        assert!(task.take_turn().is_none(), "one at a time");
        news.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::Relaxed), 1, "the runtime was not woken");
        turn.run();
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        // A turn that is not used gives its wakes back.
        let turn = task.take_turn().unwrap();
        news.notify_one();
        drop(turn);
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::Relaxed), 3);
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
        for number in 0..3 {
            assert_eq!(task.run_after(|| work.add(number)), ());
        }
        assert_eq!(*work.done.lock(), [0, 1, 2]);
        drop(running);
        task.run_after(|| work.add(3));
        assert_eq!(work.done.lock().len(), 3, "it is over");
    }

    #[test]
    fn who_has_the_turn_does_what_others_add() {
        let (task, work) = (Arc::<SharedTask>::default(), Arc::<Work>::default());
        let _running = task.start(Arc::clone(&work).run());
        let turn = task.take_turn().unwrap();
        task.run_after(|| work.add(1));
        assert!(work.done.lock().is_empty());
        turn.run();
        assert_eq!(*work.done.lock(), [1]);
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
                    scope.spawn(|| (0..10).for_each(|i| task.run_after(|| work.add(i))));
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
    async fn the_end_in_a_turn_is_the_end_of_the_task() {
        let news = Arc::new(Notify::new());
        let (_, future) = counting(&news, 2);
        let task = Arc::<SharedTask>::default();
        let running = tokio::spawn(task.start(future));
        tokio::task::yield_now().await;
        let turn = task.take_turn().unwrap();
        news.notify_one();
        turn.run();
        running.await.unwrap();
        assert!(task.take_turn().is_none());
    }

    #[tokio::test]
    async fn a_turn_ends_though_the_future_always_wakes_itself() {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let future = poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let task = Arc::<SharedTask>::default();
        let running = task.start(future);
        task.take_turn().unwrap().run();
        assert_eq!(polls.load(Ordering::Relaxed), MAX_POLLS);
        drop(running);
    }

    #[tokio::test]
    async fn the_end_of_the_runtime_drops_the_future() {
        let kept = Arc::new(());
        let task = Arc::<SharedTask>::default();
        for in_turn in [false, true] {
            let task = if in_turn { Arc::default() } else { Arc::clone(&task) };
            let owned = Arc::clone(&kept);
            let running = task.start(async move {
                std::future::pending::<()>().await;
                drop(owned);
            });
            let turn = if in_turn { task.take_turn() } else { None };
            drop(running);
            drop(turn);
            assert_eq!(Arc::strong_count(&kept), 1);
        }
    }
}
