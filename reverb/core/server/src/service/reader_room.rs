// SPDX-License-Identifier: Apache-2.0
//! Waits for room in the memory of prepared messages.

use std::pin::pin;

use reverb_base::{Error, Result};
use reverb_rpc::server::{Content, PASS_BYTES, Responder, Room};

use crate::observe::streams::{Stream, WaitsFor};
use crate::service::Service;

/// Waits for room for a stream's message. The stream counts as waiting for its reader meanwhile.
pub(crate) async fn wait_for_room(
    service: &Service,
    stream: &Stream,
    responder: &mut Responder,
    room: impl Future<Output = Room>,
) -> Result<Room> {
    let room = pin!(wait_for_answer_room(service, responder, room));
    stream.waiting(WaitsFor::Peer, room).await
}

/// Waits for room for the answer of a call, which is not listed among the streams.
pub(crate) async fn wait_for_answer_room<R>(
    service: &Service,
    responder: &mut Responder,
    room: impl Future<Output = R>,
) -> Result<R> {
    tokio::select! {
        biased;
        room = room => Ok(room),
        () = service.stop.stopped() => Err(service.stop.error()),
        () = responder.closed() => Err(Error::cancelled("The reader cancelled the call.")),
    }
}

/// Waits for room for an answer of `bytes`; a small answer does not wait.
pub(crate) async fn room_for_answer(
    service: &Service,
    responder: &mut Responder,
    bytes: usize,
) -> Result<Room> {
    let outbox = responder.outbox();
    if bytes <= PASS_BYTES {
        let room = outbox.room_or_pass(Content::Answer, bytes);
        return wait_for_answer_room(service, responder, room).await;
    }
    wait_for_answer_room(service, responder, outbox.room(Content::Answer, bytes)).await
}
