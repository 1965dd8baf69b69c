// SPDX-License-Identifier: Apache-2.0
//! Callers that read their own answers: in each state of a connection, with what may happen then.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Waker};
use std::time::Duration;

use reverb_base::{ErrorKind, Result};
use reverb_rpc::client::poll_for;
use reverb_server::{Server, ServerOptions};
use reverb_wire::GrpcTransport;
use reverb_wire::generated::reverb::StatusRequest;
use reverb_wire::transport::{InsertStream, SampleRequest, Transport as _};
use tokio::runtime::{Builder, Runtime};

use crate::support::*;

/// More calls than a caller makes before it reads its own answers.
const MANY: usize = 20;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A server, and a client with a runtime of its own.
struct Pair {
    /// Declared first: its tasks use the server.
    client_runtime: Arc<Runtime>,
    transport: Arc<GrpcTransport>,
    server: Option<Server>,
    server_runtime: Runtime,
}

impl Pair {
    fn new() -> Self {
        let server_runtime = runtime();
        let server = server_runtime
            .block_on(async { start(vec![table(config("table")), table(queue("empty", 9))]) });
        let client_runtime = Arc::new(runtime());
        let transport = Arc::new(client(&server));
        Self { client_runtime, transport, server: Some(server), server_runtime }
    }

    /// Waits in this thread, as a call of Python does.
    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        wait_on(&self.client_runtime, work)
    }

    fn call(&self) -> Result<()> {
        self.wait(self.transport.call(StatusRequest::default())).map(drop)
    }

    /// Makes so many calls that the caller has read the last answer itself.
    fn drive(&self) {
        for _ in 0..MANY {
            self.call().unwrap();
        }
    }

    /// Blocks the only thread of the client's runtime until the result is dropped.
    fn without_runtime(&self) -> Sender<()> {
        let (blocked, is_blocked) = mpsc::channel();
        let (end, ended): (Sender<()>, Receiver<()>) = mpsc::channel();
        self.client_runtime.spawn(async move {
            blocked.send(()).unwrap();
            let _ = ended.recv();
        });
        is_blocked.recv().unwrap();
        end
    }

    /// Waits for an item of the table "empty", in a thread of its own.
    fn sample_in_thread(&self) -> std::thread::JoinHandle<Result<usize>> {
        let transport = Arc::clone(&self.transport);
        let runtime = Arc::clone(&self.client_runtime);
        std::thread::spawn(move || {
            let mut stream = wait_on(&runtime, transport.open_sample())?;
            stream.request(&SampleRequest::new("empty", 1, None))?;
            wait_on(&runtime, stream.receive()).map(|items| items.len())
        })
    }

    fn open_insert(&self) -> InsertStream {
        self.wait(self.transport.open_insert()).unwrap()
    }

    fn insert(&self, stream: &mut InsertStream, table: &str, key: u64, bytes: usize) {
        let confirmed = self.wait(async {
            stream.sink.send(batch(table, vec![large_chunk(key, bytes)])).await.unwrap();
            stream.confirmations.recv().await
        });
        assert_eq!(confirmed.unwrap().unwrap(), [key]);
    }

    fn stop_server(&mut self) -> u16 {
        let server = self.server.take().unwrap();
        let port = server.port();
        server.stop();
        self.server_runtime.block_on(soon(server.wait()));
        port
    }
}

fn wait_on<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    poll_for(runtime.handle(), PATIENCE, pin!(work)).expect("this took too long")
}

#[test]
fn a_caller_that_is_alone_needs_no_thread_of_the_runtime() {
    let pair = Pair::new();
    let mut inserts = pair.open_insert();
    pair.insert(&mut inserts, "table", 1, 10);
    let mut samples = pair.wait(pair.transport.open_sample()).unwrap();
    pair.drive();
    let blocked = pair.without_runtime();
    for key in 2..10 {
        pair.call().unwrap();
        pair.insert(&mut inserts, "table", key, 1000);
        let sampled = pair.wait(async {
            samples.request(&SampleRequest::new("table", 3, None)).unwrap();
            received(&mut *samples, 3).await
        });
        assert_eq!(sampled.unwrap().len(), 3);
    }
    drop(blocked);
    pair.call().unwrap();
}

#[test]
fn another_thread_and_a_task_are_served_while_a_caller_waits() {
    let pair = Pair::new();
    for drives_before in [false, true] {
        if drives_before {
            pair.drive();
        }
        let sampled = pair.sample_in_thread();
        let task = pair.client_runtime.spawn({
            let transport = Arc::clone(&pair.transport);
            async move {
                for _ in 0..MANY {
                    transport.call(StatusRequest::default()).await.unwrap();
                }
            }
        });
        pair.drive();
        pair.client_runtime.block_on(soon(task)).unwrap();
        assert!(!sampled.is_finished());
        let mut inserts = pair.open_insert();
        pair.insert(&mut inserts, "empty", 1 + u64::from(drives_before), 10);
        assert_eq!(sampled.join().unwrap().unwrap(), 1);
    }
}

#[test]
fn a_task_of_the_runtime_is_served_when_nobody_drives() {
    let pair = Pair::new();
    for _ in 0..MANY {
        pair.drive();
        let call = pair.transport.call(StatusRequest::default());
        pair.client_runtime.block_on(soon(call)).unwrap();
    }
}

#[test]
fn many_threads_that_begin_and_end_at_any_time_are_all_served() {
    let pair = Pair::new();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let pair = &pair;
            scope.spawn(move || {
                for round in 0..30 {
                    for _ in 0..=(7 * thread + 5 * round) % 23 {
                        pair.call().unwrap();
                    }
                    std::thread::sleep(Duration::from_millis((11 * thread + 3 * round) % 17));
                }
            });
        }
    });
}

#[test]
fn a_wait_that_is_given_up_leaves_a_connection_that_works() {
    let pair = Pair::new();
    for drives_before in [false, true] {
        if drives_before {
            pair.drive();
        }
        let mut stream = pair.wait(pair.transport.open_sample()).unwrap();
        stream.request(&SampleRequest::new("empty", 1, None)).unwrap();
        let handle = pair.client_runtime.handle();
        let given_up = poll_for(handle, Duration::from_millis(120), pin!(stream.receive()));
        assert!(given_up.is_none());
        pair.call().unwrap();
        drop(stream);
        pair.drive();
    }
}

#[test]
fn a_caller_that_drives_hears_that_the_server_is_gone() {
    let mut pair = Pair::new();
    pair.drive();
    let sampled = pair.sample_in_thread();
    std::thread::sleep(Duration::from_millis(20));
    pair.stop_server();
    assert_eq!(sampled.join().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn a_server_that_is_replaced_while_nobody_drives_gets_the_next_call() {
    let mut pair = Pair::new();
    pair.drive();
    let port = pair.stop_server();
    let options = ServerOptions { port, ..ServerOptions::default() };
    let handle = pair.server_runtime.handle();
    let server = Server::start(vec![table(config("table"))], &options, handle).unwrap();
    pair.call().unwrap();
    pair.server_runtime.block_on(async { drop(server) });
}

#[test]
fn what_one_call_leaves_to_the_next_is_read() {
    let pair = Pair::new();
    let mut inserts = pair.open_insert();
    for key in 1..=2 * MANY as u64 {
        let sent = inserts.sink.send(batch("table", vec![large_chunk(key, 10)]));
        pair.wait(sent).unwrap();
        pair.drive();
        assert_eq!(pair.wait(inserts.confirmations.recv()).unwrap().unwrap(), [key]);
    }
}

#[test]
fn a_write_that_waits_for_the_runtime_is_made_by_a_caller_that_drives() {
    let pair = Pair::new();
    pair.drive();
    let blocked = pair.without_runtime();
    {
        // Gives the socket back to the runtime, which does not find out that it has room.
        let _runtime = pair.client_runtime.enter();
        let mut call = pin!(pair.transport.call(StatusRequest::default()));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    pair.call().unwrap();
    drop(blocked);
}

#[test]
fn messages_larger_than_the_socket_are_sent_by_a_caller_that_drives() {
    let pair = Pair::new();
    let mut inserts = pair.open_insert();
    for key in 1..=2 {
        for small in 0..MANY as u64 {
            pair.insert(&mut inserts, "table", 100 * key + small, 10);
        }
        pair.insert(&mut inserts, "table", key, 16 << 20);
    }
}
