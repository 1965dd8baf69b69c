// SPDX-License-Identifier: Apache-2.0
//! Sequence writers of Python for use by ops.

use std::sync::{Arc, Weak};

use reverb_client::SequenceWriter;

use crate::failure::{Code, Failure, Outcome};
use crate::handles::Handles;

/// Writers by handle. The references are weak, so a graph does not keep a writer open.
static WRITERS: Handles<Weak<SequenceWriter>> = Handles::new("sequence writer");

/// Assigns a handle to a writer for the ops, until [`unregister`].
pub fn register(writer: &Arc<SequenceWriter>) -> i64 {
    WRITERS.add(Arc::new(Arc::downgrade(writer)))
}

/// Removes the handle of a writer that is closed.
pub fn unregister(handle: i64) {
    WRITERS.remove(handle);
}

/// The writer of a handle.
pub(crate) fn get(handle: i64) -> Outcome<Arc<SequenceWriter>> {
    WRITERS.get(handle)?.upgrade().ok_or_else(|| {
        Failure::new(Code::FailedPrecondition, "the sequence writer was closed while the op began")
    })
}
