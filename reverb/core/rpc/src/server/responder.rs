// SPDX-License-Identifier: Apache-2.0
//! The answering half of a stream.

use crate::frames::{ACCEPTED_COMPRESSION, MessageSender, stream_error};
use crate::keepalive::{OpenCall, PRODUCT};
use crate::message::Message;
use crate::status::Status;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use reverb_data::{Error, Result};

/// Sends messages and, once, a status. Headers go out with the first of either, or before a wait.
pub struct Responder {
    state: State,
    call: OpenCall,
    peer: String,
}

enum State {
    Silent(SendResponse<Message>),
    Speaking(MessageSender),
    Done,
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responder").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Responder {
    pub(super) fn new(response: SendResponse<Message>, call: OpenCall, peer: &str) -> Self {
        Self { state: State::Silent(response), call, peer: peer.to_owned() }
    }

    /// Whether the peer has left a ping without an answer. It will not learn what becomes of the
    /// call.
    pub fn is_peer_gone(&self) -> bool {
        self.call.liveness().is_gone()
    }

    /// Lets a client of ours know whom it waits for, so that it may send pings meanwhile. To be
    /// called before a long wait.
    pub fn announce(&mut self) {
        if matches!(self.state, State::Silent(_)) && self.call.liveness().is_ours() {
            // It fails only if the stream is over, which the call notices by itself.
            let _ = self.speaking();
        }
    }

    /// Sends a message as soon as the peer has room for a part of it.
    pub async fn send(&mut self, message: Message) -> Result<()> {
        self.speaking()?.send(message).await
    }

    /// Sends a message without waiting.
    pub fn send_now(&mut self, message: Message) -> Result<()> {
        self.speaking()?.send_now(message)
    }

    /// Ends the stream with a status.
    pub fn finish(&mut self, status: &Status) {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Silent(mut response) => {
                let mut head = response_head();
                status.put_headers(head.headers_mut());
                // It fails only if the peer is gone, who need not be told then.
                let _ = response.send_response(head, true);
            }
            State::Speaking(mut sender) => {
                let mut trailers = HeaderMap::new();
                status.put_headers(&mut trailers);
                sender.finish_with(trailers);
            }
            State::Done => {}
        }
    }

    /// Ends the stream for somebody who does not speak gRPC.
    pub(super) fn refuse(&mut self, status: StatusCode) {
        if let State::Silent(mut response) = std::mem::replace(&mut self.state, State::Done) {
            let mut head = Response::new(());
            *head.status_mut() = status;
            let _ = response.send_response(head, true);
        }
    }

    /// Resolves when the peer has cancelled the stream or is gone.
    pub async fn closed(&mut self) {
        std::future::poll_fn(|context| match &mut self.state {
            State::Silent(response) => response.poll_reset(context).map(|_| ()),
            State::Speaking(sender) => sender.poll_closed(context).map(|_| ()),
            State::Done => std::task::Poll::Ready(()),
        })
        .await;
    }

    fn speaking(&mut self) -> Result<&mut MessageSender> {
        if let State::Silent(response) = &mut self.state {
            let stream = response
                .send_response(response_head(), false)
                .map_err(|error| stream_error(&error, &self.peer))?;
            self.state = State::Speaking(MessageSender::new(stream, self.peer.as_str()));
        }
        match &mut self.state {
            State::Speaking(sender) => Ok(sender),
            _ => Err(Error::cancelled("The stream has been ended.")),
        }
    }
}

fn response_head() -> Response<()> {
    let mut head = Response::new(());
    let headers = head.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // Tells a client of ours that it may send pings.
    headers.insert(header::SERVER, HeaderValue::from_static(PRODUCT));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static(ACCEPTED_COMPRESSION));
    head
}
