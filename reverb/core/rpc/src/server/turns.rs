// SPDX-License-Identifier: Apache-2.0
//! Turns: what the calls of one connection take of the runtime at a time.
//!
//! The runtime serves its tasks in the order in which they were woken. So a connection whose calls
//! were all its tasks would delay the others by a step of each. Here a call takes a step only in a
//! turn, and a connection has as many turns as the runtime has threads: its other calls that could
//! go on wait in a queue of the connection.
//!
//! ```text
//! connection ── calls that could go on ──▶ turns ──▶ queue of the runtime ◀── other connections
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::coop;

use crate::BoxFuture;

/// The turns of the calls of one connection.
pub(super) struct Turns {
    runtime: Handle,
    queue: Mutex<Queue>,
}

struct Queue {
    free: usize,
    /// Calls that wait for a turn, while none is free.
    waiting: VecDeque<Waiting>,
}

enum Waiting {
    New(BoxFuture<'static, ()>),
    Woken(Arc<Step>),
}

/// A call as a task.
struct Steps {
    step: Arc<Step>,
    call: BoxFuture<'static, ()>,
}

/// The next step of a call, and the waker that its future gets.
struct Step {
    turns: Arc<Turns>,
    state: AtomicU8,
    /// Waker of the task.
    task: OnceLock<Waker>,
}

/// More than the budget of a task: what the runtime lets it do before other tasks run.
const MAX_BUDGET: usize = 256;

/// The call waits for its waker.
const IDLE: u8 = 0;
/// It waits for a turn.
const WAITING: u8 = 1;
/// It has a turn, and its task is in the queue of the runtime.
const DUE: u8 = 2;
/// The step is being taken.
const RUNNING: u8 = 3;
/// The same, and the call was woken since it began.
const WOKEN: u8 = 4;

impl Turns {
    /// As many turns as the runtime of the caller has threads.
    pub(super) fn new() -> Arc<Self> {
        let runtime = Handle::current();
        let free = runtime.metrics().num_workers();
        Arc::new(Self { runtime, queue: Mutex::new(Queue { free, waiting: VecDeque::new() }) })
    }

    /// Runs a call in a task of its own.
    pub(super) fn spawn(self: &Arc<Self>, call: impl Future<Output = ()> + Send + 'static) {
        let call = Box::pin(call);
        let mut queue = self.queue.lock();
        if queue.free == 0 {
            return queue.waiting.push_back(Waiting::New(call));
        }
        queue.free -= 1;
        drop(queue);
        self.begin(call);
    }

    /// Begins a call that has a turn.
    fn begin(self: &Arc<Self>, call: BoxFuture<'static, ()>) {
        let step = Step { turns: Arc::clone(self), state: DUE.into(), task: OnceLock::new() };
        self.runtime.spawn(Steps { step: Arc::new(step), call });
    }

    /// Gives a turn to a call that was woken, or to none.
    fn wake(&self, step: &Arc<Step>) {
        let mut queue = self.queue.lock();
        if queue.free == 0 {
            return queue.waiting.push_back(Waiting::Woken(Arc::clone(step)));
        }
        queue.free -= 1;
        drop(queue);
        step.wake_task();
    }

    /// Gives a turn that has ended to the next call.
    fn pass_on(self: &Arc<Self>, task: &mut Context<'_>) {
        let mut queue = self.queue.lock();
        let Some(next) = queue.waiting.pop_front() else {
            queue.free += 1;
            return;
        };
        drop(queue);
        // Without it the runtime would run the next call before the tasks in its queue.
        use_up_budget(task);
        match next {
            Waiting::New(call) => self.begin(call),
            Waiting::Woken(step) => step.wake_task(),
        }
    }
}

/// Uses up what the current task may do before other tasks run.
pub(super) fn use_up_budget(task: &mut Context<'_>) {
    for _ in 0..MAX_BUDGET {
        match coop::poll_proceed(task) {
            Poll::Ready(unit) if coop::has_budget_remaining() => unit.made_progress(),
            Poll::Ready(unit) => return unit.made_progress(),
            Poll::Pending => return,
        }
    }
}

/// A turn in use. It is passed on even if the step panics.
struct Turn<'a, 'b>(&'a Arc<Turns>, &'a mut Context<'b>);

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        self.0.pass_on(self.1);
    }
}

impl Future for Steps {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let Self { step, call } = &mut *self;
        step.task.get_or_init(|| task.waker().clone());
        let is_due = step.state.compare_exchange(DUE, RUNNING, AcqRel, Acquire).is_ok();
        if !is_due {
            return Poll::Pending;
        }
        let turn = Turn(&step.turns, task);
        let waker = Waker::from(Arc::clone(step));
        let done = call.as_mut().poll(&mut Context::from_waker(&waker));
        if done.is_pending() {
            step.rest();
        }
        drop(turn);
        done
    }
}

impl Step {
    /// Ends a step after which the call continues, once it is woken.
    fn rest(self: &Arc<Self>) {
        let rests = self.state.compare_exchange(RUNNING, IDLE, AcqRel, Acquire);
        if rests.is_err() {
            // The calls that wait already come first.
            self.state.store(WAITING, Release);
            self.turns.queue.lock().waiting.push_back(Waiting::Woken(Arc::clone(self)));
        }
    }

    /// Puts the task into the queue of the runtime. The call has a turn.
    fn wake_task(&self) {
        self.state.store(DUE, Release);
        self.task.get().expect("its first step began without a waker").wake_by_ref();
    }
}

impl Wake for Step {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // It is written even if it stays, so that the next step sees what the waker did before.
        let woken = self.state.fetch_update(AcqRel, Acquire, |state| match state {
            IDLE => Some(WAITING),
            RUNNING => Some(WOKEN),
            _ => Some(state),
        });
        if woken == Ok(IDLE) {
            self.turns.wake(self);
        }
    }
}

#[cfg(test)]
mod tests;
