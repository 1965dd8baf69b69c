// SPDX-License-Identifier: Apache-2.0
//! Waiting for the room of what will be made for a reader.

use std::pin::pin;

use futures_util::FutureExt;
use reverb_data::{Error, Result};
use reverb_rpc::server::{CallType, PASS_BYTES, Responder, Room, stopping};

use crate::service::Service;
use crate::streams::{Stream, WaitsFor};

/// Waits for the room of a stream. Meanwhile the stream waits for its reader.
pub(crate) async fn wait_for_room(
    service: &Service,
    stream: &Stream,
    responder: &mut Responder,
    room: impl Future<Output = Room>,
) -> Result<Room> {
    let mut room = pin!(room);
    // Nearly always there is room.
    if let Some(room) = room.as_mut().now_or_never() {
        return Ok(room);
    }
    let room = wait_for_answer_room(service, responder, room);
    stream.waiting(WaitsFor::Peer, room).await
}

/// Likewise, for a call that is not listed among the streams.
pub(crate) async fn wait_for_answer_room(
    service: &Service,
    responder: &mut Responder,
    room: impl Future<Output = Room>,
) -> Result<Room> {
    tokio::select! {
        biased;
        room = room => Ok(room),
        () = service.stop.stopped() => Err(stopping()),
        () = responder.closed() => Err(Error::cancelled("The reader cancelled the call.")),
    }
}

/// Room for an answer of `bytes`. A small one does not wait for others.
pub(crate) async fn room_for_answer(
    service: &Service,
    responder: &mut Responder,
    bytes: usize,
) -> Result<Room> {
    let outbox = responder.outbox();
    if bytes <= PASS_BYTES {
        let room = outbox.room_or_pass(CallType::Unary, bytes);
        return wait_for_answer_room(service, responder, room).await;
    }
    wait_for_answer_room(service, responder, outbox.room(CallType::Unary, bytes)).await
}
