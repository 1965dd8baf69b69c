// SPDX-License-Identifier: Apache-2.0
//! Shared by the server's tests: tables, items, and a client that can send arbitrary messages.

pub(crate) mod callers;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Method, Request, Version};
use reverb_base::{ErrorKind, Result};
use reverb_data::{
    Chunk, ChunkBuilder, DType, NewItem, RateLimiterConfig, Sampled, SequenceRange, Shape,
    TableConfig, Tensor, TensorData, TrajectoryBuilder,
};
use reverb_engine::{Confirm, Table};
use reverb_rpc::framing::{Compression, MessageReader, MessageSender};
use reverb_rpc::message::Message;
use reverb_rpc::status::Status;
use reverb_server::{Server, ServerOptions};
pub(crate) use reverb_wire::Calls as _;
pub(crate) use reverb_wire::calls::Call as _;
use reverb_wire::codec::insert::decode_confirmation;
use reverb_wire::transport::{Confirmations, InsertBatch, SampleStream};
use reverb_wire::{GrpcTransport, generated as proto};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Longer than any call that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("this took too long")
}

pub(crate) fn unlimited() -> RateLimiterConfig {
    RateLimiterConfig {
        samples_per_insert: 1.0,
        min_size_to_sample: 1,
        min_diff: f64::MIN,
        max_diff: f64::MAX,
    }
}

pub(crate) fn config(name: &str) -> TableConfig {
    TableConfig { rate_limiter: unlimited(), seed: Some(1), ..TableConfig::fifo(name, 1000) }
}

pub(crate) fn queue(name: &str, size: i64) -> TableConfig {
    let rate_limiter = RateLimiterConfig { min_diff: 0.0, max_diff: size as f64, ..unlimited() };
    TableConfig { max_size: size, max_times_sampled: 1, rate_limiter, ..config(name) }
}

pub(crate) fn table(config: TableConfig) -> Arc<Table> {
    Table::new(config).unwrap()
}

pub(crate) fn start(tables: Vec<Arc<Table>>) -> Server {
    start_on(tables, 0)
}

pub(crate) fn start_on(tables: Vec<Arc<Table>>, port: u16) -> Server {
    Server::start(tables, &ServerOptions { port, ..ServerOptions::default() }, &Handle::current())
        .unwrap()
}

pub(crate) fn reset(table: &str) -> proto::ResetRequest {
    proto::ResetRequest { table: table.to_owned(), not_after_ns: 0 }
}

pub(crate) fn client(server: &Server) -> GrpcTransport {
    GrpcTransport::new(&format!("localhost:{}", server.port())).unwrap()
}

/// A chunk of one column of `int32`.
pub(crate) fn chunk(key: u64, values: &[i32]) -> Chunk {
    let mut builder = ChunkBuilder::new(false);
    builder.push(&Tensor {
        dtype: DType::Int32,
        shape: Shape::from_slice(&[values.len()]),
        data: TensorData::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    });
    builder.finish(key, SequenceRange { episode_id: 7, start: 0, end: 0, sparse: false })
}

/// A chunk whose payload does not compress, with one step of `bytes` bytes.
pub(crate) fn large_chunk(key: u64, bytes: usize) -> Chunk {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let mut builder = ChunkBuilder::new(false);
    builder.push(&Tensor {
        dtype: DType::UInt8,
        shape: Shape::from_slice(&[1, bytes]),
        data: TensorData::Bytes((0..bytes).map(|_| next()).collect()),
    });
    builder.finish(key, SequenceRange::default())
}

/// An item with one column: the first step of each of `chunks`.
pub(crate) fn item(key: u64, table: &str, priority: f64, chunks: &[Chunk]) -> NewItem {
    let mut builder = TrajectoryBuilder::new();
    for chunk in chunks {
        builder.slice(chunk, 0, 0, 1);
    }
    builder.end_column(false);
    let trajectory = builder.finish().unwrap();
    NewItem::new(key, table, priority, trajectory)
}

/// A batch of chunks, each with one item of the same key.
pub(crate) fn batch(table: &str, chunks: Vec<Chunk>) -> InsertBatch {
    let items = chunks.iter().map(|it| item(it.key(), table, 1.0, std::slice::from_ref(it)));
    InsertBatch { items: items.collect(), chunks, keep_chunk_keys: Vec::new() }
}

/// Waits until `count` items are confirmed.
pub(crate) async fn confirmed(confirmations: &mut Confirmations, count: usize) -> Vec<u64> {
    let mut keys = Vec::new();
    while keys.len() < count {
        keys.extend(soon(confirmations.recv()).await.expect("the stream ended").unwrap());
    }
    keys.sort_unstable();
    keys
}

pub(crate) async fn received(stream: &mut dyn SampleStream, count: usize) -> Result<Vec<Sampled>> {
    let mut samples = Vec::new();
    while samples.len() < count {
        samples.extend(soon(stream.receive()).await?);
    }
    Ok(samples)
}

/// Checks the kind of an error, and a part of its text.
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, text: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(text), "{error}");
}

/// Ignores the confirmations of a table.
pub(crate) fn quiet() -> Arc<dyn Confirm> {
    #[derive(Debug)]
    struct Quiet;
    impl Confirm for Quiet {
        fn confirmed(&self, _: &[u64]) {}
        fn failed(&self, _: reverb_base::Error) {}
    }
    Arc::new(Quiet)
}

/// Waits for a condition that becomes true soon, without a notification.
pub(crate) async fn eventually(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A connection that can send arbitrary messages.
pub(crate) struct RawClient {
    handle: SendRequest<Message>,
}

/// A stream that can send arbitrary messages.
pub(crate) struct RawStream {
    pub(crate) sender: MessageSender,
    response: Option<ResponseFuture>,
    reader: Option<MessageReader>,
}

impl RawClient {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self::connect_to(server.port()).await
    }

    pub(crate) async fn connect_to(port: u16) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (handle, connection) =
            h2::client::Builder::new().handshake::<_, Message>(socket).await.unwrap();
        tokio::spawn(connection);
        Self { handle }
    }

    pub(crate) async fn open(&self, method: &str) -> RawStream {
        self.open_with(method, HeaderMap::new()).await
    }

    /// Opens a method that dm-reverb does not have.
    pub(crate) async fn open_own(&self, method: &str) -> RawStream {
        self.open_path(&format!("/reverb.ReplayService/{method}"), HeaderMap::new()).await
    }

    pub(crate) async fn open_with(&self, method: &str, headers: HeaderMap) -> RawStream {
        self.open_path(&format!("/deepmind.reverb.ReverbService/{method}"), headers).await
    }

    /// Opens a method of any service.
    pub(crate) async fn open_path(&self, path: &str, headers: HeaderMap) -> RawStream {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = format!("http://test{path}").parse().unwrap();
        request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        request.headers_mut().extend(headers);
        let mut handle = self.handle.clone().ready().await.unwrap();
        let (response, stream) = handle.send_request(request, false).unwrap();
        RawStream {
            sender: MessageSender::new(stream, "server"),
            response: Some(response),
            reader: None,
        }
    }
}

impl RawStream {
    pub(crate) async fn send(&mut self, message: &impl prost::Message) {
        self.sender.send(Message::encode(message)).await.unwrap();
    }

    /// The next message, or the status.
    pub(crate) async fn next(&mut self) -> std::result::Result<Bytes, Status> {
        soon(async {
            if let Some(response) = self.response.take() {
                let response = response.await.unwrap();
                if let Some(status) = Status::from_headers(response.headers()) {
                    return Err(status);
                }
                assert!(response.status().is_success(), "HTTP status {}", response.status());
                self.reader =
                    Some(MessageReader::new(response.into_body(), Compression::Identity, "server"));
            }
            let reader = self.reader.as_mut().unwrap();
            if let Some(message) = reader.next().await.unwrap() {
                return Ok(message);
            }
            let trailers = reader.trailers().await.unwrap().expect("no trailers");
            Err(Status::from_headers(&trailers).expect("no status"))
        })
        .await
    }

    pub(crate) async fn keys(&mut self, count: usize) -> Vec<u64> {
        let mut keys = Vec::new();
        while keys.len() < count {
            keys.extend(decode_confirmation(&self.next().await.unwrap()).unwrap().0);
        }
        keys.sort_unstable();
        keys
    }

    /// The final status; skips messages before it.
    pub(crate) async fn status(&mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}

pub(crate) fn raw_chunk(chunk: &Chunk) -> proto::ChunkData {
    proto::ChunkData {
        chunk_key: chunk.key(),
        data: Bytes::copy_from_slice(&chunk.payload()),
        ..Default::default()
    }
}

pub(crate) fn raw_slice(
    chunk_key: u64,
    offset: i32,
    length: i32,
) -> proto::flat_trajectory::ChunkSlice {
    proto::flat_trajectory::ChunkSlice { chunk_key, offset, length, index: 0, times: 0 }
}

pub(crate) fn raw_item(
    key: u64,
    table: &str,
    slices: Vec<proto::flat_trajectory::ChunkSlice>,
) -> proto::PrioritizedItem {
    let column = proto::flat_trajectory::Column { chunk_slices: slices, squeeze: false };
    proto::PrioritizedItem {
        key,
        table: table.into(),
        priority: 1.0,
        flat_trajectory: Some(proto::FlatTrajectory { columns: vec![column] }),
        ..Default::default()
    }
}
