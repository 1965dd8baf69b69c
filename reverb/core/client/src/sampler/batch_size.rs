// SPDX-License-Identifier: Apache-2.0
//! How large a batch may be, and the error for one that is larger.

use reverb_data::{Error, ErrorKind, Result};

use crate::sampler::ragged::RaggedForm;

/// What bounds a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchBounds {
    /// Number of items that are wanted.
    pub(crate) batch_size: usize,
    /// Bytes that all columns may take which are not in memory of the caller.
    pub(crate) max_bytes: usize,
}

/// A string in a batch takes so many bytes and its own.
pub(crate) const STRING_BYTES: usize = size_of::<Vec<u8>>();

/// The longest item of a batch, and what the batch takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TakenBytes {
    pub(crate) num_items: usize,
    /// The key of the longest item, and its number of steps.
    pub(crate) longest: (u64, usize),
    /// Bytes of all columns, as far as they are known before strings are read.
    pub(crate) num_bytes: Option<usize>,
}

/// The error for a batch without memory; any other error stays as it is.
pub(crate) fn explain<T>(
    result: Result<T>,
    bounds: BatchBounds,
    form: RaggedForm,
    taken: impl FnOnce() -> TakenBytes,
) -> Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
            Err(too_large(bounds, form, taken()))
        }
        result => result,
    }
}

/// No memory, until `explain` says what for.
pub(crate) fn no_room() -> Error {
    Error::resource_exhausted("there is no room for the batch")
}

#[cold]
fn too_large(bounds: BatchBounds, form: RaggedForm, taken: TakenBytes) -> Error {
    let TakenBytes { num_items, longest: (key, num_steps), num_bytes } = taken;
    let max_bytes = bounds.max_bytes;
    let what = match num_bytes {
        Some(num_bytes) if num_bytes > max_bytes => {
            format!("takes {num_bytes} bytes, more than max_batch_bytes, {max_bytes}")
        }
        _ => format!("does not fit into memory, or not into max_batch_bytes, {max_bytes}"),
    };
    let advice = match form {
        RaggedForm::Padded(_) => "Sample with ragged=\"packed\", which pads nothing, fewer items",
        RaggedForm::Packed | RaggedForm::Refuse => "Sample fewer items",
    };
    Error::resource_exhausted(format!(
        "A batch of {num_items} items {what}: the longest item, {key}, has {num_steps} steps. \
         {advice}, or with a larger max_batch_bytes."
    ))
}
