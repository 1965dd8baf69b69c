// SPDX-License-Identifier: Apache-2.0
//! An insert stream over the network.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::tasks::SharedTask;
use reverb_base::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, watch};

use crate::codec::insert::{decode_confirmation, encode_request};
use crate::codec::trajectory_template::TrajectoryTemplates;
use crate::transport::{
    BoxFuture, InsertBatch, InsertSink, InsertStream, Refusals, WaitHere, stream_ended,
};
use reverb_rpc::client::{Call, Driver, Reply, Waiting};
use reverb_rpc::framing::MessageSender;

/// Creates an insert stream from an open call to the only server, or to one of several. A separate
/// task reads the confirmations.
pub(super) fn stream(call: Call, is_one_of_several: bool) -> InsertStream {
    let server = is_one_of_several.then(|| call.reply.peer().to_owned());
    let (confirmations, receiver) = mpsc::unbounded_channel();
    let (ended, end) = watch::channel(None);
    let driver = call.reply.driver();
    let in_flight = Arc::new(InFlight::default());
    let task = Arc::<SharedTask>::default();
    let refused = Refusals::default();
    let sides = (confirmations, Arc::clone(&refused));
    let reading = read_confirmations(call.reply, sides, ended, Arc::clone(&in_flight));
    tokio::spawn(task.start(reading));
    InsertStream {
        sink: Box::new(GrpcInsertSink {
            sender: call.sender,
            driver,
            in_flight,
            end,
            templates: TrajectoryTemplates::default(),
            max_wait: None,
        }),
        confirmations: receiver,
        refused,
        shard: None,
        server,
    }
}

/// Reads confirmations until their receiver is dropped. Then drops its half of the stream, which
/// cancels the call.
async fn read_confirmations(
    mut reply: Reply,
    (confirmations, all_refused): (mpsc::UnboundedSender<Result<Vec<u64>>>, Refusals),
    ended: watch::Sender<Option<Error>>,
    in_flight: Arc<InFlight>,
) {
    loop {
        let keys = tokio::select! {
            message = reply.next_in_background() => message,
            () = confirmations.closed() => return,
        };
        let keys =
            keys.and_then(|message| message.map(|bytes| decode_confirmation(&bytes)).transpose());
        match keys {
            Ok(Some((keys, refused))) => {
                if !refused.is_empty() {
                    all_refused.lock().extend(refused);
                }
                in_flight.confirm(keys.len());
                if !keys.is_empty() && confirmations.send(Ok(keys)).is_err() {
                    return;
                }
            }
            Ok(None) => {
                in_flight.end();
                ended.send_replace(Some(stream_ended(reply.peer())));
                return;
            }
            Err(error) => {
                in_flight.end();
                ended.send_replace(Some(error.clone()));
                let _ = confirmations.send(Err(error));
                return;
            }
        }
    }
}

/// The wait for the confirmations of items that were sent. The task that reads them waits for
/// nothing, because the stream stays open while it is idle.
#[derive(Default)]
struct InFlight(Mutex<Unconfirmed>);

#[derive(Default)]
struct Unconfirmed {
    num_items: usize,
    /// Present while there are any.
    wait: Option<Waiting>,
}

impl InFlight {
    fn begin(&self, items: usize, driver: &Arc<Driver>) {
        let mut state = self.0.lock();
        state.num_items += items;
        state.wait.get_or_insert_with(|| driver.wait_for_caller());
    }

    /// Moves the wait to this thread.
    fn wait_here(&self, driver: &Arc<Driver>) {
        let mut state = self.0.lock();
        if state.wait.take().is_some() {
            state.wait = Some(driver.wait_for_caller());
        }
    }

    fn confirm(&self, items: usize) {
        let mut state = self.0.lock();
        state.num_items = state.num_items.saturating_sub(items);
        if state.num_items == 0 {
            state.wait = None;
        }
    }

    fn end(&self) {
        self.confirm(usize::MAX);
    }
}

struct GrpcInsertSink {
    sender: MessageSender,
    driver: Arc<Driver>,
    in_flight: Arc<InFlight>,
    /// Reason for which the server ended the stream, once it has.
    end: watch::Receiver<Option<Error>>,
    templates: TrajectoryTemplates,
    max_wait: Option<Duration>,
}

impl InsertSink for GrpcInsertSink {
    fn limit_wait(&mut self, max_wait: Option<Duration>) {
        self.max_wait = max_wait;
    }

    fn wait_here(&self) -> Option<WaitHere> {
        let (in_flight, driver) = (Arc::clone(&self.in_flight), Arc::clone(&self.driver));
        Some(Arc::new(move || in_flight.wait_here(&driver)))
    }

    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Some(error) = self.end.borrow().clone() {
                return Err(error);
            }
            let message = encode_request(&batch, &mut self.templates, self.max_wait);
            self.in_flight.begin(batch.items.len(), &self.driver);
            let sent = self.sender.send(message).await;
            drop(batch);
            let Err(error) = sent else { return Ok(()) };
            if error.kind() == ErrorKind::ResourceExhausted {
                return Err(error);
            }
            // The stream is over. Wait for its status, which is a better error than a failed write.
            match self.end.wait_for(Option::is_some).await {
                Ok(end) => Err(end.clone().unwrap_or(error)),
                Err(_) => Err(error),
            }
        })
    }
}

impl Drop for GrpcInsertSink {
    fn drop(&mut self) {
        self.sender.finish();
    }
}
