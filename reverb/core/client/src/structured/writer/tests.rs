// SPDX-License-Identifier: Apache-2.0

use std::time::Instant;

use prost::Message;
use reverb_data::{Error, ErrorKind, TensorData};
use reverb_wire::transport::{
    BoxFuture, InsertBatch, InsertSink, InsertStream, SampleStream, ServerInfo, Transport,
};
use tokio::sync::mpsc;

use super::*;
use crate::client::Connector;
use crate::structured::testing::{at, config, int32, is_end_episode, last};

/// An item as a server would store it: table, priority, the bytes of its columns.
type Stored = (String, f64, Vec<Vec<u8>>);

/// A server that takes items in; it confirms them only if it is told to.
#[derive(Clone)]
struct FakeServer {
    confirms: bool,
    /// Fails every stream with this.
    refuses: Option<Error>,
    stored: Arc<Mutex<Vec<Stored>>>,
    arrivals: Arc<tokio::sync::Notify>,
}

impl FakeServer {
    fn new(confirms: bool) -> Self {
        let (stored, arrivals) = Default::default();
        Self { confirms, refuses: None, stored, arrivals }
    }

    fn writer(
        &self,
        configs: &[reverb_wire::generated::StructuredWriterConfig],
    ) -> StructuredWriter {
        let timeout = Duration::from_secs(10);
        let client = Client::new("fake:1", Box::new(self.clone()), timeout, Handle::current());
        let configs: Vec<Vec<u8>> = configs.iter().map(Message::encode_to_vec).collect();
        StructuredWriter::new(&client, &configs).unwrap()
    }

    async fn wait_for(&self, items: usize) {
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
    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Some(error) = &self.0.refuses {
                return Err(error.clone());
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
            Ok(())
        })
    }
}

fn unexpected<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T>> {
    Box::pin(async { Err(Error::internal("a writer has no business with this call")) })
}

impl Transport for FakeServer {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        let (sender, confirmations) = mpsc::unbounded_channel();
        let sink = Box::new(FakeSink(self.clone(), sender));
        Box::pin(async { Ok(InsertStream { sink, confirmations }) })
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        unexpected()
    }

    fn mutate_priorities<'a>(
        &'a self,
        _: &'a str,
        _: Vec<(u64, f64)>,
        _: Vec<u64>,
    ) -> BoxFuture<'a, Result<()>> {
        unexpected()
    }

    fn reset<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<()>> {
        unexpected()
    }

    fn server_info(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        unexpected()
    }

    fn checkpoint(&self) -> BoxFuture<'_, Result<String>> {
        unexpected()
    }

    fn address(&self) -> &'static str {
        "fake:1"
    }

    fn is_local(&self) -> bool {
        true
    }
}

fn append(writer: &StructuredWriter, value: i32) -> Result<()> {
    writer.append(vec![Some(int32(&value.to_le_bytes()))], false)
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[tokio::test]
async fn items_of_all_patterns_arrive_in_order() {
    let server = FakeServer::new(true);
    let writer = server.writer(&[
        config("pairs", vec![last(0, -2)], vec![]),
        config("ends", vec![at(0, -1)], vec![is_end_episode()]),
    ]);
    (0..3).for_each(|value| append(&writer, value).unwrap());
    writer.end_episode(true, None).await.unwrap();
    append(&writer, 9).unwrap();
    writer.flush(0, Some(Duration::ZERO)).await.expect("nothing is pending");
    let pair = |a, b| ("pairs".to_owned(), 1.0, vec![bytes(&[a, b])]);
    assert_eq!(
        *server.stored.lock(),
        [pair(0, 1), pair(1, 2), ("ends".to_owned(), 1.0, vec![bytes(&[2])])]
    );
}

#[tokio::test]
async fn flushing_nothing_does_not_touch_the_server() {
    let refuses = Some(Error::internal("must not be asked"));
    let writer = FakeServer { refuses, ..FakeServer::new(true) }.writer(&[config(
        "t",
        vec![last(0, -5)],
        vec![],
    )]);
    append(&writer, 1).unwrap();
    writer.flush(0, None).await.unwrap();
    writer.end_episode(true, None).await.unwrap();
}

#[tokio::test]
async fn an_episode_that_cannot_be_flushed_goes_on() {
    let server = FakeServer::new(false);
    let writer = server.writer(&[
        config("t", vec![last(0, -2)], vec![]),
        config("ends", vec![at(0, -1)], vec![is_end_episode()]),
    ]);
    append(&writer, 0).unwrap();
    for _ in 0..2 {
        let error = writer.end_episode(true, Some(Duration::ZERO)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    }
    append(&writer, 1).unwrap();
    server.wait_for(2).await;
    assert_eq!(
        *server.stored.lock(),
        [("ends".to_owned(), 1.0, vec![bytes(&[0])]), ("t".to_owned(), 1.0, vec![bytes(&[0, 1])])],
        "the end made one item although it was tried twice, and the history is still there"
    );
}

#[tokio::test]
async fn what_the_server_refuses_fails_later_calls() {
    let refuses = Some(Error::table_not_found("t", &[]));
    let writer = FakeServer { refuses, ..FakeServer::new(true) }.writer(&[config(
        "t",
        vec![at(0, -1)],
        vec![],
    )]);
    append(&writer, 0).unwrap();
    let error = writer.flush(0, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
    assert_eq!(append(&writer, 1).unwrap_err().kind(), ErrorKind::TableNotFound);
    let error = writer.end_episode(true, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
}

#[tokio::test]
async fn a_closed_writer_says_so() {
    let writer = FakeServer::new(true).writer(&[config("t", vec![at(0, -1)], vec![])]);
    writer.close();
    assert_eq!(append(&writer, 0).unwrap_err().kind(), ErrorKind::FailedPrecondition);
    let error = writer.end_episode(true, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(!writer.step_is_open());
}

#[tokio::test]
async fn a_dropped_writer_inserts_what_it_holds() {
    let server = FakeServer::new(true);
    let writer = server.writer(&[config("t", vec![at(0, -1)], vec![])]);
    (0..100).for_each(|value| append(&writer, value).unwrap());
    drop(writer);
    server.wait_for(100).await;
}

#[tokio::test]
async fn dropping_a_blocked_writer_does_not_wait() {
    let server = FakeServer::new(false);
    let writer = server.writer(&[config("t", vec![at(0, -1)], vec![])]);
    append(&writer, 0).unwrap();
    server.wait_for(1).await;
    let sender = Arc::clone(writer.queue.sender());
    let dropped = Instant::now();
    drop(writer);
    assert!(dropped.elapsed() < Duration::from_secs(1));
    assert_eq!(sender.num_pending(), 1, "it is still being tried");
    flush_and_close(Arc::clone(&sender), Duration::from_millis(20)).await;
    assert_eq!(sender.num_pending(), 0, "and given up after a while");
    assert_eq!(sender.check().unwrap_err().kind(), ErrorKind::FailedPrecondition);
}

#[tokio::test]
async fn an_idle_writer_ends_its_task_when_it_is_dropped() {
    let writer = FakeServer::new(true).writer(&[config("t", vec![at(0, -1)], vec![])]);
    let sender = Arc::clone(writer.queue.sender());
    drop(writer);
    assert_eq!(sender.check().unwrap_err().kind(), ErrorKind::FailedPrecondition);
}
