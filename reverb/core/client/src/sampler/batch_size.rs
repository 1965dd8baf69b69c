// SPDX-License-Identifier: Apache-2.0
//! Size limits of a batch, and the error for a batch that is too large.

use reverb_base::{Error, ErrorKind, Result};

use crate::sampler::ragged::RaggedForm;

/// Limits of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchBounds {
    /// Number of requested items.
    pub(crate) batch_size: usize,
    /// Largest number of bytes of all columns, except in memory of the caller.
    pub(crate) max_bytes: usize,
}

/// Bytes of a string in a batch, besides its contents.
pub(crate) const STRING_BYTES: usize = size_of::<Vec<u8>>();

/// Longest item of a batch, and the bytes of the batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TakenBytes {
    pub(crate) num_items: usize,
    /// Key of the longest item, and its number of steps.
    pub(crate) longest: (u64, usize),
    /// Bytes of all columns, without the contents of strings that are not read yet.
    pub(crate) num_bytes: Option<usize>,
    /// True if more items may come.
    pub(crate) may_grow: bool,
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

/// Error for a failed allocation; `explain` adds the sizes.
pub(crate) fn no_room() -> Error {
    Error::resource_exhausted("there is no room for the batch")
}

#[cold]
fn too_large(bounds: BatchBounds, form: RaggedForm, taken: TakenBytes) -> Error {
    let TakenBytes { num_items, longest: (key, num_steps), num_bytes, may_grow } = taken;
    let max_bytes = bounds.max_bytes;
    let what = match num_bytes {
        Some(num_bytes) if num_bytes > max_bytes => {
            let least = if may_grow { "at least " } else { "" };
            format!("takes {least}{num_bytes} bytes, more than max_batch_bytes, {max_bytes}")
        }
        _ => format!("does not fit into memory, or not into max_batch_bytes, {max_bytes}"),
    };
    let advice = match form {
        RaggedForm::Padded(_) => "Sample with ragged=\"packed\", which pads nothing, fewer items",
        _ => "Sample fewer items",
    };
    Error::resource_exhausted(format!(
        "A batch of {num_items} items {what}: the longest item, {key}, has {num_steps} steps. \
         {advice}, or with a larger max_batch_bytes."
    ))
}
