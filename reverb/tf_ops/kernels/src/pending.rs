// SPDX-License-Identifier: Apache-2.0
//! Calls to a server that may take longer than an op may wait.
//!
//! A call is driven by the thread of the op for a short while, which is all that most need. What
//! then is not done goes on in the background, under a handle with which the caller comes back for
//! the result.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::Sampled;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::failure::{Failure, Outcome};
use crate::handles::Handles;
use crate::waiting::Bell;

/// A call in the making.
pub(crate) type Call = Pin<Box<dyn Future<Output = Outcome<Answer>> + Send>>;

/// What a call gives.
pub(crate) enum Answer {
    /// It was done.
    Done,
    /// An item was sampled.
    Sampled(Box<Sampled>),
}

/// How far a call is.
pub(crate) enum Progress {
    Finished(Answer),
    /// Not done yet; the handle stands for it.
    Pending(i64),
}

static PENDING: Handles<Pending> = Handles::new("call");

#[derive(Default)]
struct Pending {
    answer: Mutex<Option<Outcome<Answer>>>,
    /// Rings when the answer is there.
    bell: Bell,
    task: Mutex<Option<AbortHandle>>,
}

/// Makes a call, and waits for about `limit`.
pub(crate) fn start(runtime: &Handle, mut call: Call, limit: Duration) -> Outcome<Progress> {
    let answered = runtime.block_on(async { tokio::time::timeout(limit, &mut call).await });
    if let Ok(answer) = answered {
        return Ok(Progress::Finished(answer?));
    }
    let pending = Arc::new(Pending::default());
    let handle = PENDING.add(Arc::clone(&pending));
    let answered = Arc::clone(&pending);
    let task = runtime.spawn(async move {
        let answer = call.await;
        *answered.answer.lock() = Some(answer);
        answered.bell.ring();
    });
    *pending.task.lock() = Some(task.abort_handle());
    Ok(Progress::Pending(handle))
}

/// Waits for a call for about `limit` more.
pub(crate) fn resume(handle: i64, limit: Duration) -> Outcome<Progress> {
    let pending = PENDING.get(handle)?;
    match pending.bell.wait(limit, || pending.answer.lock().take()) {
        None => Ok(Progress::Pending(handle)),
        Some(answer) => {
            PENDING.remove(handle);
            Ok(Progress::Finished(answer?))
        }
    }
}

/// Gives a call up that nobody waits for any more; says whether it was still to be done.
pub(crate) fn abandon(handle: i64) -> bool {
    let Some(pending) = PENDING.remove(handle) else { return false };
    if let Some(task) = pending.task.lock().take() {
        task.abort();
    }
    true
}

impl Progress {
    /// The handle that outputs carry: 0 once the call is done.
    pub(crate) fn handle(&self) -> i64 {
        match self {
            Self::Finished(_) => 0,
            Self::Pending(handle) => *handle,
        }
    }

    /// The item of a call that samples.
    pub(crate) fn into_sampled(self) -> Outcome<Option<Sampled>> {
        match self {
            Self::Pending(_) => Ok(None),
            Self::Finished(Answer::Sampled(sampled)) => Ok(Some(*sampled)),
            Self::Finished(Answer::Done) => {
                Err(Failure::invalid_argument("the handle stands for a call that samples nothing"))
            }
        }
    }
}
