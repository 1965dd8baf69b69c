// SPDX-License-Identifier: Apache-2.0
//! Takes that fail, whose answers are lost, or that their caller gives up, at a server that answers
//! as the test says.

use std::collections::VecDeque;

use parking_lot::Mutex;
use reverb_wire::calls::SmallCall;
use reverb_wire::generated::reverb::{SettleResponse, TakeResponse};
use reverb_wire::generated::{ServerInfoRequest, ServerInfoResponse};
use reverb_wire::transport::{BoxFuture, InsertStream, SampleStream, Transport};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::*;
use crate::session::Connector;
use crate::writer::testing::{unexpected, unexpected_item_calls};

/// No server answers for so long that a call ends.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(50);

/// What the server does with a take or a settle; `None`: it stands still.
type Answers = VecDeque<Option<Result<()>>>;

#[derive(Clone)]
struct FakeServer {
    answers: Arc<Mutex<Answers>>,
    settled: mpsc::UnboundedSender<SettleRequest>,
    num_streams: Arc<AtomicU64>,
    streams_are_lost: Arc<Notify>,
}

struct FakeHold(Arc<Notify>);

impl Hold for FakeHold {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn lost(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.0.notified().await })
    }
}

impl Connector for FakeServer {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(self.clone()))
    }
}

impl FakeServer {
    /// A server with these answers, a client of it, and the requests to settle that it gets.
    fn new(
        answers: impl IntoIterator<Item = Option<Result<()>>>,
    ) -> (Self, Client, mpsc::UnboundedReceiver<SettleRequest>) {
        let (settled, requests) = mpsc::unbounded_channel();
        let server = Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            settled,
            num_streams: Arc::default(),
            streams_are_lost: Arc::default(),
        };
        let connector = Box::new(server.clone());
        let client = Client::new("fake:1", connector, CONNECT_TIMEOUT, Handle::current());
        (server, client, requests)
    }

    /// The next answer; the last one stays.
    async fn answer(&self) -> Result<()> {
        let next = {
            let mut answers = self.answers.lock();
            if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
        };
        match next.flatten() {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

impl Transport for FakeServer {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        unexpected()
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        unexpected()
    }

    unexpected_item_calls!();

    fn small_call(&self, call: &'static SmallCall, request: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            if call.row.path == ServerInfoRequest::PATH {
                let capabilities = vec!["rollouts".to_owned()];
                let answer = ServerInfoResponse { capabilities, ..ServerInfoResponse::default() };
                return Ok(answer.encode_to_vec().into());
            }
            if call.row.path == SettleRequest::PATH {
                let _ = self.settled.send(SettleRequest::decode(request).unwrap());
                self.answer().await?;
                return Ok(SettleResponse::default().encode_to_vec().into());
            }
            assert_eq!(call.row.path, TakeRequest::PATH);
            self.answer().await?;
            Ok(TakeResponse::default().encode_to_vec().into())
        })
    }

    fn hold(&self, _: HoldRequest) -> BoxFuture<'_, Result<Box<dyn Hold>>> {
        self.num_streams.fetch_add(1, Ordering::Relaxed);
        let hold = FakeHold(Arc::clone(&self.streams_are_lost));
        Box::pin(async { Ok(Box::new(hold) as Box<dyn Hold>) })
    }

    fn address(&self) -> &'static str {
        "fake:1"
    }

    fn is_local(&self) -> bool {
        false
    }
}

fn request() -> TakeRequest {
    TakeRequest { table: "train".into(), num_items: 1, ..TakeRequest::default() }
}

fn gone() -> Result<()> {
    Err(Error::unavailable("gone"))
}

#[tokio::test(start_paused = true)]
async fn a_take_that_is_dropped_releases_its_lease() {
    let (_server, client, mut settled) = FakeServer::new([None, Some(Ok(()))]);
    let number = client.new_lease();
    let taking = client.take(request(), number);
    assert!(tokio::time::timeout(Duration::from_secs(1), taking).await.is_err());
    let request = settled.recv().await.unwrap();
    let lease = Some(Lease { holder: client.holder(), number });
    assert_eq!(
        (&*request.table, request.lease, request.all, request.ack),
        ("train", lease, true, false)
    );
}

#[tokio::test(start_paused = true)]
async fn a_take_whose_answer_may_be_lost_releases_its_lease() {
    let (server, client, mut settled) = FakeServer::new([Some(gone())]);
    let error = client.take(request(), client.new_lease()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The server is not there yet, and is asked until it is.
    settled.recv().await.unwrap();
    settled.recv().await.unwrap();
    *server.answers.lock() = [Some(Ok(()))].into();
    tokio::time::sleep(2 * LAST_PAUSE + CONNECT_TIMEOUT).await;
    while settled.try_recv().is_ok() {}
    tokio::time::sleep(100 * LAST_PAUSE).await;
    assert!(settled.try_recv().is_err(), "it has answered");
}

#[tokio::test(start_paused = true)]
async fn a_take_that_was_answered_keeps_its_lease() {
    let refused = Error::invalid_argument("It never has 9 items at once.");
    for answer in [Ok(()), Err(refused)] {
        let (_server, client, mut settled) = FakeServer::new([Some(answer.clone())]);
        let taken = client.take(request(), client.new_lease()).await;
        assert_eq!(taken.is_ok(), answer.is_ok());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(settled.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_asks_no_more() {
    let (_server, client, mut settled) = FakeServer::new([Some(gone())]);
    client.take(request(), client.new_lease()).await.unwrap_err();
    drop(client);
    tokio::time::sleep(2 * LAST_PAUSE + CONNECT_TIMEOUT).await;
    while settled.try_recv().is_ok() {}
    tokio::time::sleep(100 * LAST_PAUSE).await;
    assert!(settled.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_take_without_a_stream_opens_one_and_asks_again() {
    let refused = Error::failed_precondition("This client holds no stream for its leases.");
    let (server, client, _settled) = FakeServer::new([Some(Err(refused)), Some(Ok(()))]);
    client.take(request(), client.new_lease()).await.unwrap();
    assert_eq!(server.num_streams.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_is_opened_again() {
    let (server, client, _settled) = FakeServer::new([Some(Ok(()))]);
    client.take(request(), client.new_lease()).await.unwrap();
    assert_eq!(server.num_streams.load(Ordering::Relaxed), 1);
    server.streams_are_lost.notify_one();
    // Also by a client that takes nothing.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.num_streams.load(Ordering::Relaxed), 2);
    client.take(request(), client.new_lease()).await.unwrap();
    assert_eq!(server.num_streams.load(Ordering::Relaxed), 2);
}
