// SPDX-License-Identifier: Apache-2.0
//! Calls to a server, or to several in turn.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use parking_lot::Mutex;
use reverb_data::{Error, ErrorKind, Result};

use super::connection::Connection;
use super::pool::Pool;
use crate::frames::{
    ACCEPTED_COMPRESSION, Compression, MessageReader, MessageSender, stream_error,
};
use crate::keepalive::{Keepalive, OpenCall, PRODUCT};
use crate::message::Message;
use crate::status::Status;
use crate::target::Target;

/// The connections to the servers of a target. Connects when it is used; the next call reconnects.
///
/// Calls and streams go to the servers in turn, past those that cannot be reached. All futures
/// must be polled on a tokio runtime with I/O and time.
pub struct Channel {
    target: String,
    pool: Arc<Pool>,
    connect_timeout: Duration,
    /// Calls that have warned that they reach one server of several. Once will do.
    warned_of: Mutex<HashSet<String>>,
}

/// How long to look for a server that answers, unless the caller says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Shorter ones would not even let a server across the street answer.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

impl Channel {
    /// Checks the address; see `Target::parse` for its forms.
    pub fn new(target: &str) -> Result<Self> {
        Ok(Self {
            target: target.to_owned(),
            pool: Pool::new(Target::parse(target)?, Keepalive::default()),
            connect_timeout: CONNECT_TIMEOUT,
            warned_of: Mutex::default(),
        })
    }

    /// Bounds how long a call looks for a server that answers.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.max(MIN_CONNECT_TIMEOUT);
        self
    }

    /// Says when the servers are asked whether they are still there. To be called before anything
    /// is connected.
    #[must_use]
    pub fn with_keepalive(mut self, keepalive: Keepalive) -> Self {
        self.pool = Pool::new(self.pool.target().clone(), keepalive);
        self
    }

    /// The target as it was given.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// How many servers the target means, as far as is known by now.
    pub fn num_servers(&self) -> usize {
        self.pool.num_servers()
    }

    /// Sends one message and waits for the reply.
    pub async fn unary<Response: prost::Message + Default>(
        &self,
        path: &str,
        request: &impl prost::Message,
    ) -> Result<Response> {
        let call = self.open(path).await?;
        single_reply(call, method_name(path), request).await
    }

    /// As `unary`, for calls that a user may expect to reach every server: warns once if there are
    /// several.
    pub async fn unary_to_one<Response: prost::Message + Default>(
        &self,
        path: &str,
        request: &impl prost::Message,
    ) -> Result<Response> {
        let method = method_name(path);
        let call = self.open(path).await?;
        let num_servers = self.pool.num_servers();
        if num_servers > 1 && self.warned_of.lock().insert(path.to_owned()) {
            log::warn!(
                "{method} reaches one server, {}, of the {num_servers} behind {}. Make a client for \
                 each address to reach them all.",
                call.reply.peer(),
                self.target
            );
        }
        single_reply(call, method, request).await
    }

    /// A connection to a server that has answered.
    async fn connection(&self) -> Result<Connection> {
        let limit = self.connect_timeout;
        match tokio::time::timeout(limit, self.pool.connection(limit)).await {
            Ok(connection) => connection,
            Err(_) => Err(Error::unavailable(format!(
                "No server could be reached at {} within {} s.",
                self.target,
                limit.as_secs_f64()
            ))),
        }
    }

    /// Opens a stream. Waits for a connection, and not for the server's answer, which may come only
    /// after a message was sent.
    pub async fn open(&self, path: &str) -> Result<Call> {
        let connection = self.connection().await?;
        let request = request(&connection, path)?;
        let peer = connection.peer;
        let mut handle =
            connection.handle.ready().await.map_err(|error| stream_error(&error, &peer))?;
        let (response, stream) =
            handle.send_request(request, false).map_err(|error| stream_error(&error, &peer))?;
        let open = connection.liveness.open_call();
        Ok(Call {
            sender: MessageSender::new(stream, peer.as_str()),
            reply: Reply {
                state: ReplyState::Waiting(response),
                open: Some(open),
                peer,
                ping_timeout: self.pool.keepalive().timeout,
            },
        })
    }
}

fn method_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Sends the only message of a call and waits for the reply.
async fn single_reply<Response: prost::Message + Default>(
    mut call: Call,
    method: &str,
    request: &impl prost::Message,
) -> Result<Response> {
    // If the stream is over already, the answer says why.
    let _ = call.sender.send_last(Message::encode(request));
    let mut reply = call.reply;
    let message = reply.next().await?;
    let Some(message) = message else {
        return Err(Error::internal(format!(
            "The server at {} answered {method} without a message.",
            reply.peer()
        )));
    };
    reply.expect_end().await?;
    Response::decode(message).map_err(|error| {
        Error::internal(format!(
            "The answer of the server at {} to {method} is damaged: {error}.",
            reply.peer()
        ))
    })
}

fn request(connection: &Connection, path: &str) -> Result<Request<()>> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(connection.authority.as_str())
        .path_and_query(path)
        .build();
    let uri = uri.map_err(|error| {
        Error::invalid_argument(format!(
            "{} is no address of a server: {error}.",
            connection.authority
        ))
    })?;
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // Tells a server of ours that it may send pings.
    headers.insert(header::USER_AGENT, HeaderValue::from_static(PRODUCT));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static(ACCEPTED_COMPRESSION));
    Ok(request)
}

/// A stream that was opened.
#[derive(Debug)]
pub struct Call {
    /// Where messages go.
    pub sender: MessageSender,
    /// Where they come from.
    pub reply: Reply,
}

/// What comes back on a stream: headers, messages and, at the end, a status.
pub struct Reply {
    state: ReplyState,
    /// Until the stream has ended.
    open: Option<OpenCall>,
    peer: String,
    ping_timeout: Duration,
}

enum ReplyState {
    Waiting(h2::client::ResponseFuture),
    Open(MessageReader),
    Ended(Option<Error>),
}

impl Reply {
    /// The server, for error texts.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The next message; `None` if the server ended the stream in order. Nothing is lost if the
    /// future is dropped.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        loop {
            match &mut self.state {
                ReplyState::Waiting(response) => {
                    let response = response.await;
                    match self.begin(response) {
                        Ok(reader) => self.state = ReplyState::Open(reader),
                        Err(status) => self.end(status),
                    }
                }
                ReplyState::Open(reader) => {
                    let status = match reader.next().await {
                        Ok(Some(message)) => return Ok(Some(message)),
                        Ok(None) => {
                            reader.trailers().await.map(|it| status_of_trailers(it.as_ref()))
                        }
                        Err(error) => Err(error),
                    };
                    self.end(status.unwrap_or_else(Some));
                }
                ReplyState::Ended(error) => return error.clone().map_or(Ok(None), Err),
            }
        }
    }

    /// Cancels the stream for our part; `error` is what it gives from now on.
    pub fn abandon(&mut self, error: Error) {
        self.end(Some(error));
    }

    fn end(&mut self, mut status: Option<Error>) {
        let open = self.open.take();
        if open.is_some_and(|open| open.liveness().is_gone()) {
            status = status.map(|error| match error.kind() {
                ErrorKind::Unavailable => Error::unavailable(format!(
                    "The server at {} did not answer a ping within {} s (keepalive_timeout_s).",
                    self.peer,
                    self.ping_timeout.as_secs_f64()
                )),
                _ => error,
            });
        }
        self.state = ReplyState::Ended(status);
    }

    /// The status of a call that has had its message.
    async fn expect_end(&mut self) -> Result<()> {
        match self.next().await? {
            None => Ok(()),
            Some(_) => Err(Error::internal(format!(
                "The server at {} sent more than one answer.",
                self.peer
            ))),
        }
    }

    /// What reads the messages, or how the stream has ended.
    fn begin(
        &self,
        response: std::result::Result<http::Response<h2::RecvStream>, h2::Error>,
    ) -> std::result::Result<MessageReader, Option<Error>> {
        let response = response.map_err(|error| Some(stream_error(&error, &self.peer)))?;
        if let Some(open) = &self.open {
            open.liveness().meet(response.headers().get(header::SERVER));
        }
        // A call that fails at once has its status where a stream has its headers.
        if let Some(status) = Status::from_headers(response.headers()) {
            return Err(status.into_error());
        }
        if !response.status().is_success() {
            let error = Status::from_http(response.status()).into_error();
            let place = format!("No server of ours is at {}", self.peer);
            return Err(error.map(|error| error.context(&place)));
        }
        let compression = Compression::from_headers(response.headers()).map_err(Some)?;
        Ok(MessageReader::new(response.into_body(), compression, self.peer.as_str()))
    }
}

fn status_of_trailers(trailers: Option<&HeaderMap>) -> Option<Error> {
    match trailers.and_then(Status::from_headers) {
        Some(status) => status.into_error(),
        None => Some(Error::internal("The server ended the stream without a status.")),
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("target", &self.target).finish_non_exhaustive()
    }
}
