// SPDX-License-Identifier: Apache-2.0
//! A fake server for tests of writers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use reverb_base::{Error, Result};
use reverb_data::{ChunkBuilder, NewItem, SequenceRange, TensorData, TrajectoryBuilder};
use reverb_wire::calls::{Call, SmallCall};
use reverb_wire::generated::{ServerInfoRequest, ServerInfoResponse, TableInfo};
use reverb_wire::transport::{
    BoxFuture, InsertBatch, InsertSink, InsertStream, SampleStream, Transport, WaitHere,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use crate::client::Client;
use crate::session::{Connector, Signatures};

/// An item as a server would store it: table, priority, the bytes of its columns.
pub(crate) type Stored = (String, f64, Vec<Vec<u8>>);

/// An item of one chunk.
pub(crate) fn item(key: u64) -> NewItem {
    let mut builder = TrajectoryBuilder::new();
    builder.slice(&ChunkBuilder::new(false).finish(key, SequenceRange::default()), 0, 0, 1);
    builder.end_column(false);
    NewItem::new(key, "table", 1.0, builder.finish().unwrap())
}

/// A server that accepts items; it confirms them only if the test says so.
#[derive(Clone)]
pub(crate) struct FakeServer {
    pub(crate) confirms: bool,
    /// Time that the server takes for a message.
    pub(crate) pause: Duration,
    /// Error with which every stream fails.
    pub(crate) refuses: Option<Error>,
    /// Makes the next stream fail after it has confirmed a message.
    pub(crate) fails_next: Arc<AtomicBool>,
    pub(crate) stored: Arc<Mutex<Vec<Stored>>>,
    pub(crate) arrivals: Arc<Notify>,
}

impl FakeServer {
    pub(crate) fn new(confirms: bool) -> Self {
        let (pause, fails_next, stored, arrivals) = Default::default();
        Self { confirms, pause, refuses: None, fails_next, stored, arrivals }
    }

    pub(crate) fn client(&self) -> Client {
        let timeout = Duration::from_secs(10);
        Client::new("fake:1", Box::new(self.clone()), timeout, Handle::current())
    }

    /// Tables without signatures.
    pub(crate) fn tables(names: &[&str]) -> Signatures {
        names.iter().map(|name| ((*name).to_owned(), None)).collect::<HashMap<_, _>>()
    }

    pub(crate) async fn wait_for(&self, items: usize) {
        let waiting = async {
            while self.stored.lock().len() < items {
                self.arrivals.notified().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("items never came");
    }
}

impl Connector for FakeServer {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(self.clone()))
    }
}

struct FakeSink(FakeServer, mpsc::UnboundedSender<Result<Vec<u64>>>);

impl InsertSink for FakeSink {
    fn limit_wait(&mut self, max_wait: Option<Duration>) {
        assert_eq!(max_wait, None, "no test needs it");
    }

    fn wait_here(&self) -> Option<WaitHere> {
        None
    }

    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Some(error) = &self.0.refuses {
                return Err(error.clone());
            }
            if !self.0.pause.is_zero() {
                tokio::time::sleep(self.0.pause).await;
            }
            let keys = batch.items.iter().map(|item| item.key).collect();
            for item in batch.items {
                let columns =
                    item.trajectory.decode()?.into_iter().map(|tensor| match tensor.data {
                        TensorData::Bytes(bytes) => bytes,
                        TensorData::Strings(_) => panic!("no test writes strings"),
                    });
                let item = (item.table.to_string(), item.priority, columns.collect());
                self.0.stored.lock().push(item);
            }
            if self.0.confirms {
                let _ = self.1.send(Ok(keys));
            }
            self.0.arrivals.notify_one();
            if self.0.fails_next.swap(false, Ordering::Relaxed) {
                return Err(Error::unavailable("The server is draining."));
            }
            Ok(())
        })
    }
}

/// Result of a call that neither a writer nor a sampler makes.
pub(crate) fn unexpected<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T>> {
    Box::pin(async { Err(Error::internal("unexpected call in a test")) })
}

/// Answer to `ServerInfo`, the only small call that a writer makes: tables `a` and `b`.
pub(crate) fn answer_to<'a>(call: &SmallCall) -> BoxFuture<'a, Result<Bytes>> {
    if call.row.path != ServerInfoRequest::PATH {
        return unexpected();
    }
    let table = |name: &str| TableInfo { name: name.to_owned(), ..TableInfo::default() };
    let table_info = vec![table("a"), table("b")];
    let answer = ServerInfoResponse { table_info, ..ServerInfoResponse::default() };
    Box::pin(async move { Ok(answer.encode_to_vec().into()) })
}

/// The calls of a `Transport` about items that a test server never gets.
macro_rules! unexpected_item_calls {
    () => {
        fn open_scan<'a>(
            &'a self,
            _: &'a str,
            _: reverb_wire::transport::ScanOptions<'a>,
        ) -> BoxFuture<'a, Result<Box<dyn reverb_wire::transport::ScanStream>>> {
            unexpected()
        }

        fn mutate_priorities<'a>(
            &'a self,
            _: &'a str,
            _: &'a [(u64, f64)],
            _: &'a [u64],
        ) -> BoxFuture<'a, Result<()>> {
            unexpected()
        }
    };
}
pub(crate) use unexpected_item_calls;

/// The calls of a `Transport` that a test server never gets, except for `ServerInfo`, and its
/// address.
macro_rules! unexpected_calls {
    ($address:literal) => {
        crate::writer::testing::unexpected_item_calls!();

        fn small_call(
            &self,
            call: &'static reverb_wire::calls::SmallCall,
            _: bytes::Bytes,
        ) -> BoxFuture<'_, Result<bytes::Bytes>> {
            crate::writer::testing::answer_to(call)
        }

        fn hold(
            &self,
            _: reverb_wire::transport::HoldRequest,
        ) -> BoxFuture<'_, Result<Box<dyn reverb_wire::transport::Hold>>> {
            unexpected()
        }

        fn address(&self) -> &'static str {
            $address
        }

        fn is_local(&self) -> bool {
            true
        }
    };
}
pub(crate) use unexpected_calls;

impl Transport for FakeServer {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        let (sender, confirmations) = mpsc::unbounded_channel();
        let sink = Box::new(FakeSink(self.clone(), sender));
        Box::pin(async {
            Ok(InsertStream {
                sink,
                confirmations,
                refused: Arc::default(),
                shard: None,
                server: None,
            })
        })
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        unexpected()
    }

    unexpected_calls!("fake:1");
}
