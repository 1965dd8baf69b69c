// SPDX-License-Identifier: Apache-2.0
//! Samples as messages of a server whose reader takes everything at once.

use bytes::Buf;
use reverb_data::Sampled;
use reverb_rpc::message::{Message, PREFIX_BYTES};
use reverb_wire::codec::sample::{MAX_MESSAGE_BYTES, SampleEncoder};

/// Adds a sample of `table`. Passes full messages to `emit`.
pub(crate) fn push(
    encoder: &mut SampleEncoder,
    table: &str,
    sample: &Sampled,
    mut emit: impl FnMut(Message),
) {
    if encoder.is_over(MAX_MESSAGE_BYTES) {
        emit(encoder.take(&[]));
    }
    while !encoder.write(table, sample, &sample.trajectory, MAX_MESSAGE_BYTES) {
        emit(encoder.take(&[]));
    }
}

/// The last message, if it is not empty.
pub(crate) fn finish(encoder: &mut SampleEncoder) -> Option<Message> {
    let message = encoder.take(&[]);
    (message.remaining() > PREFIX_BYTES).then_some(message)
}
