// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use reverb_base::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::super::{
    ConnectionLimits, Handler, Listeners, Outgoing, Peer, PortOptions, Responder, Traffic, bind,
    serve, stop_signal,
};
use super::*;
use crate::framing::MessageReader;
use crate::keepalive::Keepalive;
use crate::status::Status;

/// Lets others go on.
async fn pause() {
    let mut was_polled = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut was_polled, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn rest(turns: &Turns) -> (usize, usize) {
    let queue = turns.queue.lock();
    (queue.free, queue.waiting.len())
}

#[tokio::test]
async fn a_thousand_busy_calls_delay_other_connections_by_one_step() {
    let (crowded, other) = (Turns::new(), Turns::new());
    let steps = Arc::new(AtomicUsize::new(0));
    for _ in 0..1000 {
        let steps = Arc::clone(&steps);
        crowded.spawn(async move {
            loop {
                steps.fetch_add(1, Relaxed);
                pause().await;
            }
        });
    }
    for _ in 0..20 {
        let (sender, receiver) = oneshot::channel();
        let (steps, before) = (Arc::clone(&steps), steps.load(Relaxed));
        other.spawn(async move { sender.send(steps.load(Relaxed)).unwrap() });
        let delay = receiver.await.unwrap() - before;
        assert!(delay <= 2, "{delay} steps of the others came first");
    }
}

#[tokio::test]
async fn calls_of_a_connection_take_steps_one_after_the_other() {
    let (turns, (sender, mut receiver)) = (Turns::new(), mpsc::unbounded_channel());
    for call in 0..3 {
        let sender = sender.clone();
        turns.spawn(async move {
            for step in 0..3 {
                sender.send((step, call)).unwrap();
                pause().await;
            }
        });
    }
    drop(sender);
    for step in 0..3 {
        for call in 0..3 {
            assert_eq!(receiver.recv().await, Some((step, call)));
        }
    }
    assert_eq!(receiver.recv().await, None);
    assert_eq!(rest(&turns), (1, 0));
}

#[tokio::test]
async fn a_call_that_panics_passes_its_turn_on() {
    let (turns, (sender, receiver)) = (Turns::new(), oneshot::channel());
    turns.spawn(async { panic!("the call panics") });
    turns.spawn(async { sender.send(()).unwrap() });
    receiver.await.unwrap();
    pause().await;
    assert_eq!(rest(&turns), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wakeup_is_lost() {
    const CALLS: usize = 50;
    const ROUNDS: usize = 500;
    let turns = Turns::new();
    let (mut senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..CALLS).map(|_| mpsc::channel::<usize>(1)).unzip();
    // A ring: each call passes on what it receives, some while others are busy.
    let first = senders[0].clone();
    senders.rotate_left(1);
    let (done, mut all_done) = mpsc::channel(CALLS);
    for (next, mut own) in senders.into_iter().zip(receivers.drain(..)) {
        let done = done.clone();
        turns.spawn(async move {
            for _ in 0..ROUNDS {
                let hops = own.recv().await.unwrap();
                pause().await;
                let _ = next.send(hops + 1).await;
            }
            done.send(()).await.unwrap();
        });
    }
    for _ in 0..CALLS / 2 {
        first.send(0).await.unwrap();
    }
    for _ in 0..CALLS {
        all_done.recv().await.unwrap();
    }
}

/// Answers `/busy` never, taking one step after the other, and `/count` after ten steps of its own,
/// with the number of steps of the busy calls meanwhile.
struct Counter {
    busy: AtomicUsize,
    counted: AtomicUsize,
}

const OWN_STEPS: usize = 10;

impl Handler for Counter {
    type Caller = ();
    type Admission = ();

    fn identify(&self, _: &str, _: &Peer, _: Option<&str>) -> ((), Option<()>) {
        ((), None)
    }

    fn still_admits(&self, (): &()) -> bool {
        true
    }

    async fn answer(
        self: &Arc<Self>,
        path: &str,
        (): (),
        _: MessageReader,
        _: &mut Responder,
    ) -> Result<Status> {
        if path == "/count" {
            let before = self.busy.load(Relaxed);
            for _ in 0..OWN_STEPS {
                pause().await;
            }
            self.counted.store(self.busy.load(Relaxed) - before, Relaxed);
            return Ok(Status::ok());
        }
        loop {
            self.busy.fetch_add(1, Relaxed);
            pause().await;
        }
    }
}

async fn connect(port: u16) -> h2::client::SendRequest<bytes::Bytes> {
    let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (calls, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    calls.ready().await.unwrap()
}

async fn call(
    calls: &mut h2::client::SendRequest<bytes::Bytes>,
    path: &str,
) -> h2::client::ResponseFuture {
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    *calls = calls.clone().ready().await.unwrap();
    calls.send_request(request, true).unwrap().0
}

#[tokio::test]
async fn busy_calls_of_a_connection_leave_the_server_to_others() {
    const BUSY_CALLS: usize = 200;
    let listener = bind(Some("127.0.0.1"), 0).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let listeners = Listeners::new(TcpListener::from_std(listener).unwrap());
    let counter = Arc::new(Counter { busy: 0.into(), counted: usize::MAX.into() });
    let (_sender, stop) = stop_signal();
    let limits = ConnectionLimits {
        connections: 10,
        streams: 1000,
        streams_per_connection: 1000,
        stream_window_bytes: 65_535,
        unread_timeout: Duration::from_secs(300),
    };
    let options = PortOptions {
        keepalive: Keepalive::default(),
        limits,
        traffic: Arc::new(Traffic::new(Vec::new())),
        outgoing: Outgoing::new(1 << 20),
        hint: String::new(),
        tls: None,
        wants_tokens: false,
    };
    tokio::spawn(serve(listeners, Arc::clone(&counter), stop, options));
    let mut busy = connect(port).await;
    let mut busy_calls = Vec::new();
    for _ in 0..BUSY_CALLS {
        busy_calls.push(call(&mut busy, "/busy").await);
    }
    // All of them have begun once each has taken a step.
    while counter.busy.load(Relaxed) < 10 * BUSY_CALLS {
        tokio::task::yield_now().await;
    }
    let mut other = connect(port).await;
    call(&mut other, "/count").await.await.unwrap();
    let steps = counter.counted.load(Relaxed);
    assert!(steps <= 2 * OWN_STEPS, "{steps} steps of the others came first");
}
