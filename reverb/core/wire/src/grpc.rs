// SPDX-License-Identifier: Apache-2.0
//! A server over the network.

mod connection;
mod insert;
mod pool;
mod sample;
mod scan;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use parking_lot::Mutex;
use reverb_data::{Error, ErrorKind, Result};

use crate::generated::reverb::{CheckpointStatusRequest, CheckpointStatusResponse};
use crate::generated::{
    CheckpointRequest, CheckpointResponse, KeyWithPriority, MutatePrioritiesRequest,
    MutatePrioritiesResponse, ResetRequest, ResetResponse, ServerInfoRequest, ServerInfoResponse,
};
use crate::grpc::connection::Connection;
use crate::grpc::pool::Pool;
use crate::keepalive::{Keepalive, OpenCall, PRODUCT};
use crate::message::Message;
use crate::status::Status;
use crate::stream::{
    ACCEPTED_COMPRESSION, Compression, MessageReader, MessageSender, stream_error,
};
use crate::target::Target;
use crate::transport::{BoxFuture, InsertStream, SampleStream, ScanStream, ServerInfo, Transport};
use crate::{OWN_SERVICE_PATH, SERVICE_PATH};

/// A server, or several, reached over gRPC. Connects when it is used; a lost connection is made
/// anew by the next call.
///
/// Every stream and every other call goes to the next server in turn, past those that cannot be
/// reached. All futures must be polled on a tokio runtime with I/O and time.
pub struct GrpcTransport {
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

impl GrpcTransport {
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

    /// Says when the servers are asked whether they are still there. To be called before anything is
    /// connected.
    #[must_use]
    pub fn with_keepalive(mut self, keepalive: Keepalive) -> Self {
        self.pool = Pool::new(self.pool.target().clone(), keepalive);
        self
    }

    /// Sends one message and waits for the one that answers it.
    async fn unary<Response: prost::Message + Default>(
        &self,
        method: &str,
        request: &impl prost::Message,
    ) -> Result<Response> {
        let call = self.open(method).await?;
        answer_of(call, method, request).await
    }

    /// The same for calls that a user may expect to reach every server.
    async fn unary_of_one<Response: prost::Message + Default>(
        &self,
        path: &str,
        request: &impl prost::Message,
    ) -> Result<Response> {
        let method = path.rsplit('/').next().unwrap_or_default();
        let call = self.open_path(path).await?;
        let num_servers = self.pool.num_servers();
        if num_servers > 1 && self.warned_of.lock().insert(path.to_owned()) {
            log::warn!(
                "{method} reaches one server, {}, of the {num_servers} behind {}. Make a client for \
                 each address to reach them all.",
                call.answer.peer(),
                self.target
            );
        }
        answer_of(call, method, request).await
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

    /// Opens a stream. It does not wait for the server, which may answer only after it was sent
    /// something.
    async fn open(&self, method: &str) -> Result<Call> {
        self.open_path(&format!("{SERVICE_PATH}{method}")).await
    }

    async fn open_path(&self, path: &str) -> Result<Call> {
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
            answer: Answer {
                state: AnswerState::Waiting(response),
                open: Some(open),
                peer,
                ping_timeout: self.pool.keepalive().timeout,
            },
        })
    }
}

/// Sends the only message of a call and waits for the one that answers it.
async fn answer_of<Response: prost::Message + Default>(
    mut call: Call,
    method: &str,
    request: &impl prost::Message,
) -> Result<Response> {
    // If the stream is over already, the answer says why.
    let _ = call.sender.send_last(Message::encode(request));
    let mut answer = call.answer;
    let message = answer.next().await?;
    let Some(message) = message else {
        return Err(Error::internal(format!(
            "The server at {} answered {method} without a message.",
            answer.peer()
        )));
    };
    answer.expect_end().await?;
    Response::decode(message).map_err(|error| {
        Error::internal(format!(
            "The answer of the server at {} to {method} is damaged: {error}.",
            answer.peer()
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
struct Call {
    sender: MessageSender,
    answer: Answer,
}

/// What comes back on a stream: headers, messages and, at the end, a status.
struct Answer {
    state: AnswerState,
    /// Until the stream has ended.
    open: Option<OpenCall>,
    peer: String,
    ping_timeout: Duration,
}

enum AnswerState {
    Waiting(h2::client::ResponseFuture),
    Open(MessageReader),
    Ended(Option<Error>),
}

impl Answer {
    fn peer(&self) -> &str {
        &self.peer
    }

    /// The next message; `None` if the server ended the stream in order. Nothing is lost if the
    /// future is dropped.
    async fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        loop {
            match &mut self.state {
                AnswerState::Waiting(response) => {
                    let response = response.await;
                    match self.begin(response) {
                        Ok(reader) => self.state = AnswerState::Open(reader),
                        Err(status) => self.end(status),
                    }
                }
                AnswerState::Open(reader) => {
                    let status = match reader.next().await {
                        Ok(Some(message)) => return Ok(Some(message)),
                        Ok(None) => {
                            reader.trailers().await.map(|it| status_of_trailers(it.as_ref()))
                        }
                        Err(error) => Err(error),
                    };
                    self.end(status.unwrap_or_else(Some));
                }
                AnswerState::Ended(error) => return error.clone().map_or(Ok(None), Err),
            }
        }
    }

    /// Cancels the stream for our part; `error` is what it gives from now on.
    fn abandon(&mut self, error: Error) {
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
        self.state = AnswerState::Ended(status);
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

impl Transport for GrpcTransport {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        Box::pin(async { Ok(insert::stream(self.open("InsertStream").await?)) })
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        Box::pin(async {
            let stream = sample::GrpcSampleStream::new(self.open("SampleStream").await?);
            Ok(Box::new(stream) as Box<dyn SampleStream>)
        })
    }

    fn open_scan<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        Box::pin(async {
            let call = self.open_path(&format!("{OWN_SERVICE_PATH}Scan")).await?;
            Ok(Box::new(scan::GrpcScanStream::new(call, table)) as Box<dyn ScanStream>)
        })
    }

    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: Vec<(u64, f64)>,
        deletes: Vec<u64>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let updates =
                updates.into_iter().map(|(key, priority)| KeyWithPriority { key, priority });
            let request = MutatePrioritiesRequest {
                table: table.to_owned(),
                updates: updates.collect(),
                delete_keys: deletes,
            };
            let MutatePrioritiesResponse {} = self.unary("MutatePriorities", &request).await?;
            Ok(())
        })
    }

    fn reset<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = ResetRequest { table: table.to_owned() };
            let path = format!("{SERVICE_PATH}Reset");
            let ResetResponse {} = self.unary_of_one(&path, &request).await?;
            Ok(())
        })
    }

    fn server_info(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(async {
            let response: ServerInfoResponse =
                self.unary("ServerInfo", &ServerInfoRequest {}).await?;
            let id = response.tables_state_id.unwrap_or_default();
            Ok(ServerInfo { tables_state_id: (id.high, id.low), tables: response.table_info })
        })
    }

    fn checkpoint(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async {
            let path = format!("{SERVICE_PATH}Checkpoint");
            let response: CheckpointResponse =
                self.unary_of_one(&path, &CheckpointRequest {}).await?;
            Ok(response.checkpoint_path)
        })
    }

    fn checkpoint_status(&self) -> BoxFuture<'_, Result<CheckpointStatusResponse>> {
        Box::pin(async {
            let path = format!("{OWN_SERVICE_PATH}CheckpointStatus");
            let answer = self.unary_of_one(&path, &CheckpointStatusRequest {}).await;
            answer.map_err(|error| match error.kind() {
                ErrorKind::Unimplemented => Error::unimplemented(format!(
                    "The server at {} does not tell about its checkpoints: it is a server of \
                     dm-reverb, or of an older release of this package.",
                    self.target
                )),
                _ => error,
            })
        })
    }

    fn address(&self) -> &str {
        &self.target
    }

    fn is_local(&self) -> bool {
        false
    }

    fn has_several_servers(&self) -> bool {
        self.pool.num_servers() > 1
    }
}

impl std::fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcTransport").field("target", &self.target).finish_non_exhaustive()
    }
}
