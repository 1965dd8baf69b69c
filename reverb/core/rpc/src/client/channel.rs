// SPDX-License-Identifier: Apache-2.0
//! Calls to one server, or to several in turn.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use parking_lot::Mutex;
use reverb_base::process::host_name;
use reverb_base::{Error, ErrorKind, Result};

use super::connection::{Connection, ConnectionOptions};
use super::credentials::Security;
use super::driver::Driver;
use super::servers::Servers;
use crate::framing::{
    ACCEPTED_COMPRESSION, Compression, MessageCheck, MessageLimit, MessageReader, MessageSender,
    stream_error,
};
use crate::keepalive::{CLIENT_NAME, MAX_CLIENT_NAME_BYTES, OpenCall, PRODUCT};
use crate::message::Message;
use crate::status::Status;
use crate::target::Target;

/// The connections to the servers of a target. It connects at the first call, and reconnects at the
/// next call after a connection was lost.
///
/// Calls of each path go to the servers in turn, and unreachable servers are skipped.
/// All futures must be polled on a tokio runtime with I/O and time.
pub struct Channel {
    target: String,
    servers: Arc<Servers>,
    answer_rules: fn(&str) -> AnswerRules,
    /// Paths of calls for which the warning "reaches one server of several" was logged.
    warned_of: Mutex<HashSet<String>>,
}

/// Limits on the answers that a client accepts. The default accepts any message.
#[derive(Debug, Default)]
pub struct AnswerRules {
    /// Size limit.
    pub limit: Option<MessageLimit>,
    /// Check of a message before it is decoded.
    pub check: Option<Box<dyn MessageCheck>>,
}

/// Minimum time limit: with a shorter one even a nearby server could not answer.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

impl Channel {
    /// Creates a channel, with rules for answers by the path of the call. The address is checked;
    /// see `Target::parse` for its forms.
    pub fn new(
        target: &str,
        options: ConnectionOptions,
        answer_rules: fn(&str) -> AnswerRules,
    ) -> Result<Self> {
        Ok(Self {
            target: target.to_owned(),
            servers: Servers::new(Target::parse(target)?, options),
            answer_rules,
            warned_of: Mutex::default(),
        })
    }

    /// Target, as the caller wrote it.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Target, parsed.
    pub fn servers(&self) -> &Target {
        self.servers.target()
    }

    /// Number of servers of the target, as far as known by now.
    pub fn num_servers(&self) -> usize {
        self.servers.num_servers()
    }

    /// True if no server is going to answer any more: all are down, as far as is known, and one of
    /// them has said that it has stopped for good.
    pub fn have_ended(&self) -> bool {
        self.servers.have_ended()
    }

    /// Sends one message and waits for the only answer; returns it with the server that gave it.
    ///
    /// With `reaches_one`, a user may expect the call to reach every server: one warning per path
    /// is logged if there are several.
    pub async fn ask_one(
        &self,
        path: &str,
        request: Message,
        reaches_one: bool,
    ) -> Result<(Bytes, String)> {
        let mut reply = self.ask(path, request).await?;
        if reaches_one {
            self.warn_of_several_servers(path, reply.peer());
        }
        let Some(answer) = reply.next().await? else {
            return Err(Error::internal(format!(
                "The server at {} answered {} without a message.",
                reply.peer(),
                method_name(path)
            )));
        };
        reply.expect_end().await?;
        Ok((answer, reply.peer().to_owned()))
    }

    /// Like `open`, for calls that a user may expect to reach every server.
    pub async fn open_to_one(&self, path: &str) -> Result<Call> {
        let call = self.open(path).await?;
        self.warn_of_several_servers(path, call.reply.peer());
        Ok(call)
    }

    fn warn_of_several_servers(&self, path: &str, peer: &str) {
        let method = method_name(path);
        let num_servers = self.servers.num_servers();
        if num_servers > 1 && self.warned_of.lock().insert(path.to_owned()) {
            tracing::warn!(
                "{method} reaches one server, {}, of the {num_servers} behind {}. Make a client for \
                 each address to reach them all.",
                peer,
                self.target
            );
        }
    }

    /// A connection to a server that has answered, with room for one more stream.
    async fn connection(&self, path: &str) -> Result<Connection> {
        let limit = self.servers.options().connect_timeout.max(MIN_CONNECT_TIMEOUT);
        let connection =
            match tokio::time::timeout(limit, self.servers.connection(path, limit)).await {
                Ok(connection) => connection?,
                Err(_) => {
                    return Err(Error::unavailable(format!(
                        "No server could be reached at {} within {} s.",
                        self.target,
                        limit.as_secs_f64()
                    )));
                }
            };
        let Connection { handle, driver, liveness, authority, peer } = connection;
        let handle = handle.ready().await.map_err(|error| stream_error(&error, &peer))?;
        Ok(Connection { handle, driver, liveness, authority, peer })
    }

    /// Opens a stream. Waits for a connection, but not for the server's answer: that may come only
    /// after a message was sent.
    pub async fn open(&self, path: &str) -> Result<Call> {
        let connection = self.connection(path).await?;
        self.start(connection, path)
    }

    async fn ask(&self, path: &str, request: Message) -> Result<Reply> {
        let connection = self.connection(path).await?;
        let mut call = self.start(connection, path)?;
        // If this fails, the stream has already ended, and the reply has the reason.
        let _ = call.sender.send_last(request);
        Ok(call.reply)
    }

    fn start(&self, connection: Connection, path: &str) -> Result<Call> {
        let request = request(&connection, path, &self.servers.options().security)?;
        let Connection { mut handle, driver, liveness, peer, .. } = connection;
        let (response, stream) =
            handle.send_request(request, false).map_err(|error| stream_error(&error, &peer))?;
        Ok(Call {
            sender: MessageSender::new(stream, peer.as_str()),
            reply: Reply {
                state: ReplyState::Waiting(response),
                driver,
                open: Some(liveness.open_call()),
                peer,
                rules: (self.answer_rules)(path),
                ping_timeout: self.servers.options().keepalive.timeout,
            },
        })
    }
}

fn method_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn request(connection: &Connection, path: &str, security: &Security) -> Result<Request<()>> {
    let uri = Uri::builder()
        .scheme(if security.tls.is_some() { "https" } else { "http" })
        .authority(connection.authority.as_str())
        .path_and_query(path)
        .build();
    let uri = uri.map_err(|error| {
        Error::invalid_argument(format!(
            "{} is not an address of a server: {error}.",
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
    // Servers of this package send pings only to clients that identify themselves.
    headers.insert(header::USER_AGENT, HeaderValue::from_static(PRODUCT));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static(ACCEPTED_COMPRESSION));
    headers.insert(CLIENT_NAME, HeaderValue::from_static(own_name()));
    if let Some(token) = &security.token {
        headers.insert(header::AUTHORIZATION, token.header());
    }
    Ok(request)
}

/// Name of this process for servers: `REVERB_CLIENT_NAME`, or its host, process and program.
pub fn own_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let text = std::env::var("REVERB_CLIENT_NAME").unwrap_or_else(|_| {
            let program =
                std::env::args().find(|argument| !argument.starts_with('-')).unwrap_or_default();
            let program = program.rsplit('/').next().unwrap_or_default();
            format!("{}:{}:{program}", host_name(), std::process::id())
        });
        let printable = |it: &char| it.is_ascii_graphic() || *it == ' ';
        let text: String = text.chars().filter(printable).take(MAX_CLIENT_NAME_BYTES).collect();
        text.trim().to_owned()
    })
}

/// An open stream.
#[derive(Debug)]
pub struct Call {
    /// Sends messages to the server.
    pub sender: MessageSender,
    /// Receives messages from the server.
    pub reply: Reply,
}

/// Receiving half of a stream: headers, messages and, at the end, a status.
pub struct Reply {
    state: ReplyState,
    driver: Arc<Driver>,
    /// Present until the stream has ended.
    open: Option<OpenCall>,
    peer: String,
    rules: AnswerRules,
    ping_timeout: Duration,
}

enum ReplyState {
    Waiting(h2::client::ResponseFuture),
    Open(MessageReader),
    Ended(Option<Error>),
}

impl Reply {
    /// Name of the server, for error texts.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The next message; `None` if the server ended the stream without an error. Cancel safe: no
    /// message is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        let driver = Arc::clone(&self.driver);
        let mut next = pin!(self.next_in_background());
        let mut waiting = None;
        poll_fn(|context| {
            let polled = next.as_mut().poll(context);
            if polled.is_pending() {
                waiting.get_or_insert_with(|| driver.wait());
            }
            polled
        })
        .await
    }

    /// The driver of the connection.
    pub fn driver(&self) -> Arc<Driver> {
        Arc::clone(&self.driver)
    }

    /// Like `next`, for a task that reads what others wait for with `Driver::wait`. While nobody
    /// does, it may get a message, or the end, up to 100 ms later.
    pub async fn next_in_background(&mut self) -> Result<Option<bytes::Bytes>> {
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
                            reader.trailers().await.map(|map| status_from_trailers(map.as_ref()))
                        }
                        Err(error) => Err(error),
                    };
                    self.end(status.unwrap_or_else(Some));
                }
                ReplyState::Ended(error) => return error.clone().map_or(Ok(None), Err),
            }
        }
    }

    /// Received bytes of a message that is still incomplete.
    pub fn partial_bytes(&self) -> usize {
        match &self.state {
            ReplyState::Open(reader) => reader.partial_bytes(),
            _ => 0,
        }
    }

    /// Cancels the stream. From now on `next` returns `error`.
    pub fn abandon(&mut self, error: Error) {
        self.end(Some(error));
    }

    fn end(&mut self, mut status: Option<Error>) {
        let open = self.open.take();
        if let Some(open) = &open
            && status.as_ref().is_some_and(Error::is_final)
        {
            open.liveness().note_stop();
        }
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

    /// Waits for the status of a call whose only message was received.
    ///
    /// # Errors
    ///
    /// The status if it is an error; `Internal` if there are more messages.
    pub async fn expect_end(&mut self) -> Result<()> {
        match self.next().await? {
            None => Ok(()),
            Some(_) => Err(Error::internal(format!(
                "The server at {} sent more than one answer.",
                self.peer
            ))),
        }
    }

    /// Returns a reader of the messages, or the status if the stream has ended already.
    fn begin(
        &mut self,
        response: std::result::Result<http::Response<h2::RecvStream>, h2::Error>,
    ) -> std::result::Result<MessageReader, Option<Error>> {
        let response = response.map_err(|error| Some(stream_error(&error, &self.peer)))?;
        if let Some(open) = &self.open {
            open.liveness().identify(response.headers().get(header::SERVER));
        }
        // A call that fails at once has its status in the headers.
        if let Some(status) = Status::from_headers(response.headers()) {
            return Err(status.into_error());
        }
        if !response.status().is_success() {
            let error = Status::from_http(response.status()).into_error();
            let context = format!("There is no gRPC server at {}", self.peer);
            return Err(error.map(|error| error.context(&context)));
        }
        let compression = Compression::from_headers(response.headers()).map_err(Some)?;
        let peer = self.peer.as_str();
        let mut reader = MessageReader::new(response.into_body(), compression, peer);
        let AnswerRules { limit, check } = std::mem::take(&mut self.rules);
        if let Some(limit) = limit {
            reader.limit_messages(limit);
        }
        if let Some(check) = check {
            reader.check_messages(check);
        }
        Ok(reader)
    }
}

fn status_from_trailers(trailers: Option<&HeaderMap>) -> Option<Error> {
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
