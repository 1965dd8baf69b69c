// SPDX-License-Identifier: Apache-2.0
//! Sequence writers that Python has made and lends to the ops.

use std::sync::{Arc, Weak};

use reverb_client::SequenceWriter;

use crate::failure::{Code, Failure, Outcome};
use crate::handles::Handles;

/// Only lent: a graph that names a writer does not keep it open.
static WRITERS: Handles<Weak<SequenceWriter>> = Handles::new("sequence writer");

/// Gives a writer a handle that ops know it by, until [`take_back`].
pub fn lend(writer: &Arc<SequenceWriter>) -> i64 {
    WRITERS.add(Arc::new(Arc::downgrade(writer)))
}

/// Forgets the handle of a writer that goes away.
pub fn take_back(handle: i64) {
    WRITERS.remove(handle);
}

/// The writer with a handle.
pub(crate) fn get(handle: i64) -> Outcome<Arc<SequenceWriter>> {
    WRITERS.get(handle)?.upgrade().ok_or_else(|| {
        Failure::new(Code::FailedPrecondition, "the sequence writer was closed while the op began")
    })
}
