// SPDX-License-Identifier: Apache-2.0
//! Writers whose back-pressure an event loop awaits.

use std::sync::Arc;

use pyo3::prelude::*;
use reverb_client::SendQueue;

use crate::batched_writer::BatchedTrajectoryWriter;
use crate::process::Local;
use crate::sequence_writer::SequenceWriter;
use crate::trajectory_writer::TrajectoryWriter;

/// A writer of any class.
#[derive(FromPyObject)]
pub(super) enum AnyWriter<'py> {
    Trajectory(Bound<'py, TrajectoryWriter>),
    Batched(Bound<'py, BatchedTrajectoryWriter>),
    Sequence(Bound<'py, SequenceWriter>),
}

impl AnyWriter<'_> {
    /// The writer, for a call that outlives this one.
    pub(super) fn core(&self) -> PyResult<Arc<dyn Queued>> {
        Ok(match self {
            Self::Trajectory(writer) => writer.get().core()?,
            Self::Batched(writer) => writer.get().core()?,
            Self::Sequence(writer) => writer.get().core()?,
        })
    }
}

/// A writer that queues items.
pub(super) trait Queued: Send + Sync {
    fn queue(&self) -> &SendQueue;
}

impl Queued for Local<reverb_client::TrajectoryWriter> {
    fn queue(&self) -> &SendQueue {
        (**self).queue()
    }
}

impl Queued for Local<reverb_client::BatchedWriter> {
    fn queue(&self) -> &SendQueue {
        (**self).queue()
    }
}

impl Queued for reverb_client::SequenceWriter {
    fn queue(&self) -> &SendQueue {
        self.queue()
    }
}
