// SPDX-License-Identifier: Apache-2.0
//! The sending half of a call's stream.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::framing::{ACCEPTED_COMPRESSION, MessageSender, stream_error};
use crate::keepalive::{CLIENT_NAME, MAX_CLIENT_NAME_BYTES, OpenCall, PRODUCT};
use crate::message::Message;
use crate::status::{Code, Status};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use reverb_base::{Error, ErrorKind, Result};

use super::outgoing::Outbox;
use super::peer::Peer;
use super::traffic::CallCounters;

/// Sends messages and, once, a status. Headers are sent with the first of them, or by `announce`.
pub struct Responder {
    state: State,
    call: OpenCall,
    peer: Arc<Peer>,
    client: String,
    unread_timeout: Duration,
    outbox: Outbox,
    counters: CallCounters,
    /// True if requests are counted as they are answered.
    counts_each: bool,
    is_settled: bool,
}

enum State {
    BeforeHeaders(SendResponse<Message>),
    AfterHeaders(MessageSender),
    Done,
}

fn client_name(request: &HeaderMap) -> String {
    let name = request.get(CLIENT_NAME).or_else(|| request.get(header::USER_AGENT));
    // A header that is a string is printable ASCII.
    let name = name.and_then(|name| name.to_str().ok()).unwrap_or_default();
    name[..name.len().min(MAX_CLIENT_NAME_BYTES)].to_owned()
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responder").field("peer", &self.peer.name()).finish_non_exhaustive()
    }
}

impl Responder {
    pub(super) fn new(
        response: SendResponse<Message>,
        call: OpenCall,
        counters: CallCounters,
        peer: &Arc<Peer>,
        request: &HeaderMap,
        unread_timeout: Duration,
        outbox: Outbox,
    ) -> Self {
        let state = State::BeforeHeaders(response);
        let peer = Arc::clone(peer);
        let client = client_name(request);
        Self {
            state,
            call,
            peer,
            client,
            unread_timeout,
            outbox,
            counters,
            counts_each: false,
            is_settled: false,
        }
    }

    /// Name that the client sent, cut to 256 bytes; else its user agent; else empty.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The other end of the connection.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Memory for answers to this call.
    pub fn outbox(&self) -> Outbox {
        self.outbox.clone()
    }

    /// Records whether all requests received so far were answered. If they were, the call counts as
    /// successful however it ends: a stream that is kept for the next request ends when its peer
    /// leaves, or the server does.
    pub fn settle(&mut self, is_settled: bool) {
        self.is_settled = is_settled;
    }

    /// Counts requests of a stream that were answered; the stream no longer counts as one request.
    pub fn count_answered(&mut self, requests: usize) {
        self.counts_each = true;
        self.counters.count_requests(Code::Ok, requests);
    }

    /// Counts the end of a call with `code`, or with an error and its code, and the request that it
    /// has answered or failed.
    pub(super) fn count_end(&mut self, code: Code, error: Option<&Error>) {
        let is_leaving = matches!(code, Code::Cancelled | Code::Unavailable);
        let code = if self.is_settled && is_leaving { Code::Ok } else { code };
        self.counters.count_end(code, error.and_then(Error::limit));
        match code {
            Code::Ok if self.counts_each => {}
            Code::Ok => self.counters.count_requests(Code::Ok, 1),
            // The peer got the answer that it asked for: there was nothing in that time.
            _ if error.is_some_and(|error| error.kind() == ErrorKind::RateLimiterTimeout) => {
                self.counters.count_requests(Code::Ok, 1);
            }
            // No request fails because its peer has left.
            _ if code == Code::Cancelled || self.has_peer_left() => {}
            code => self.counters.count_requests(code, 1),
        }
    }

    fn has_peer_left(&mut self) -> bool {
        let mut left = pin!(self.cancelled_or_lost());
        left.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Returns true if the peer has not answered a PING. It will not receive the result of the
    /// call.
    pub fn is_peer_gone(&self) -> bool {
        self.call.liveness().is_gone()
    }

    /// Sends the headers now to a client of this package. They identify this server, so the client
    /// sends pings while it waits. Should be called before a long wait.
    pub fn announce(&mut self) {
        if matches!(self.state, State::BeforeHeaders(_)) && self.call.liveness().is_ours() {
            // This fails only if the stream is over. The call detects that by itself.
            let _ = self.open_sender();
        }
    }

    /// Sends a message as soon as the peer has room for a part of it.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` if the peer reads nothing for the time that the limits allow.
    pub async fn send(&mut self, message: Message) -> Result<()> {
        let limit = self.unread_timeout;
        let sent = {
            let mut sending = pin!(self.open_sender()?.send(message));
            // Nearly always there is room, and no timer is needed.
            let first = std::future::poll_fn(|context| Poll::Ready(sending.as_mut().poll(context)));
            if let Poll::Ready(sent) = first.await {
                return sent;
            }
            tokio::time::timeout(limit, sending).await
        };
        sent.unwrap_or_else(|_| Err(self.cut_off()))
    }

    /// Ends the call of a reader that does not read.
    fn cut_off(&self) -> Error {
        let limit = self.unread_timeout.as_secs_f64();
        let peer = self.peer.name().trim_start_matches("client ");
        let client = &self.client;
        tracing::warn!(
            peer,
            client,
            "cut off a reader: it took nothing for {limit} s while samples were waiting for it \
             (Limits.unread_timeout_s)"
        );
        Error::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "The reader took nothing for {limit} s while samples were waiting for it, which is \
                 the limit (Limits.unread_timeout_s)."
            ),
        )
        .over_limit("unread_timeout_s")
    }

    /// Sends a message without waiting.
    pub fn send_now(&mut self, message: Message) -> Result<()> {
        self.open_sender()?.send_now(message)
    }

    /// Ends the stream with a status.
    pub fn finish(&mut self, status: &Status) {
        match std::mem::replace(&mut self.state, State::Done) {
            State::BeforeHeaders(response) => end_with(response, status),
            State::AfterHeaders(mut sender) => {
                let mut trailers = HeaderMap::new();
                status.put_headers(&mut trailers);
                sender.finish_with(trailers);
            }
            State::Done => {}
        }
    }

    /// Ends the stream of a peer that does not speak gRPC.
    pub(super) fn refuse(&mut self, status: StatusCode) {
        if let State::BeforeHeaders(mut response) = std::mem::replace(&mut self.state, State::Done)
        {
            let mut head = Response::new(());
            *head.status_mut() = status;
            let _ = response.send_response(head, true);
        }
    }

    /// Resolves when the peer has cancelled the stream or is gone.
    pub async fn closed(&mut self) {
        self.cancelled_or_lost().await;
    }

    /// Like `closed`; returns whether the connection is lost. Otherwise the peer has cancelled the
    /// stream.
    pub async fn cancelled_or_lost(&mut self) -> bool {
        std::future::poll_fn(|context| match &mut self.state {
            State::BeforeHeaders(response) => {
                response.poll_reset(context).map(|reset| reset.is_err())
            }
            State::AfterHeaders(sender) => sender.poll_closed(context).map(|body| body.is_none()),
            State::Done => Poll::Ready(false),
        })
        .await
    }

    /// True if the peer has cancelled the stream, or is gone, before anything was sent.
    pub(super) fn is_cancelled(&mut self) -> bool {
        let State::BeforeHeaders(response) = &mut self.state else { return false };
        response.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn open_sender(&mut self) -> Result<&mut MessageSender> {
        if let State::BeforeHeaders(response) = &mut self.state {
            let stream = response
                .send_response(response_head(), false)
                .map_err(|error| stream_error(&error, self.peer.name()))?;
            self.state = State::AfterHeaders(MessageSender::new(stream, self.peer.name()));
        }
        match &mut self.state {
            State::AfterHeaders(sender) => Ok(sender),
            _ => Err(Error::cancelled("The stream has been ended.")),
        }
    }
}

/// Ends a stream on which nothing was sent yet.
pub(super) fn end_with(mut response: SendResponse<Message>, status: &Status) {
    let mut head = response_head();
    status.put_headers(head.headers_mut());
    // This fails only if the peer is gone and needs no status.
    let _ = response.send_response(head, true);
}

fn response_head() -> Response<()> {
    let mut head = Response::new(());
    let headers = head.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // Clients of this package send pings only to servers that identify themselves.
    headers.insert(header::SERVER, HeaderValue::from_static(PRODUCT));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static(ACCEPTED_COMPRESSION));
    head
}
