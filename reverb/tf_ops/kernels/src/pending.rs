// SPDX-License-Identifier: Apache-2.0
//! Pending calls: calls to a server that take longer than an op may block.
//!
//! The thread of the op drives a call for a short time, which is enough for most calls. An
//! unfinished call continues in the background under a handle. The caller polls the handle for the
//! result.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::Sampled;
use reverb_wire::poll_for;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::failure::{Failure, Outcome};
use crate::handles::Handles;
use crate::waiting::Notifier;

/// A call that is not finished.
pub(crate) type Call = Pin<Box<dyn Future<Output = Outcome<Reply>> + Send>>;

/// The result of a call.
pub(crate) enum Reply {
    /// The call is complete and returns nothing.
    Done,
    /// An item was sampled.
    Sampled(Box<Sampled>),
}

/// The state of a call.
pub(crate) enum Progress {
    Finished(Reply),
    /// Not finished; the handle refers to it.
    Pending(i64),
}

static PENDING: Handles<Pending> = Handles::new("call");

#[derive(Default)]
struct Pending {
    reply: Mutex<Option<Outcome<Reply>>>,
    /// Notified when there is a result.
    notifier: Notifier,
    task: Mutex<Option<AbortHandle>>,
}

/// Starts a call, and waits for about `limit`.
pub(crate) fn start(runtime: &Handle, mut call: Call, limit: Duration) -> Outcome<Progress> {
    if let Some(reply) = poll_for(runtime, limit, Pin::new(&mut call)) {
        return Ok(Progress::Finished(reply?));
    }
    let pending = Arc::new(Pending::default());
    let handle = PENDING.add(Arc::clone(&pending));
    let shared = Arc::clone(&pending);
    let task = runtime.spawn(async move {
        let reply = call.await;
        *shared.reply.lock() = Some(reply);
        shared.notifier.notify();
    });
    *pending.task.lock() = Some(task.abort_handle());
    Ok(Progress::Pending(handle))
}

/// Waits about `limit` longer for the result of a pending call.
pub(crate) fn resume(handle: i64, limit: Duration) -> Outcome<Progress> {
    let pending = PENDING.get(handle)?;
    match pending.notifier.wait(limit, || pending.reply.lock().take()) {
        None => Ok(Progress::Pending(handle)),
        Some(reply) => {
            PENDING.remove(handle);
            Ok(Progress::Finished(reply?))
        }
    }
}

/// Cancels a call; returns true if it existed. Drops its result.
pub(crate) fn abandon(handle: i64) -> bool {
    let Some(pending) = PENDING.remove(handle) else { return false };
    if let Some(task) = pending.task.lock().take() {
        task.abort();
    }
    true
}

impl Progress {
    /// The handle for the op's output: 0 once the call is finished.
    pub(crate) fn handle(&self) -> i64 {
        match self {
            Self::Finished(_) => 0,
            Self::Pending(handle) => *handle,
        }
    }

    /// The sampled item of a finished call.
    pub(crate) fn into_sampled(self) -> Outcome<Option<Sampled>> {
        match self {
            Self::Pending(_) => Ok(None),
            Self::Finished(Reply::Sampled(sampled)) => Ok(Some(*sampled)),
            Self::Finished(Reply::Done) => {
                Err(Failure::invalid_argument("the handle belongs to a call that samples nothing"))
            }
        }
    }
}
