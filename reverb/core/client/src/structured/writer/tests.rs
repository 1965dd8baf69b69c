// SPDX-License-Identifier: Apache-2.0

use std::time::Instant;

use reverb_base::{Error, ErrorKind};
use reverb_wire::generated::StructuredWriterConfig;

use super::*;
use crate::structured::testing::{at, config, int32, is_end_episode, last};
use crate::writer::testing::FakeServer;

impl FakeServer {
    fn writer(&self, configs: &[StructuredWriterConfig]) -> StructuredWriter {
        StructuredWriter::new(&self.client(), Configs::new(configs).unwrap())
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
    writer.queue().flush(0, Some(Duration::ZERO)).await.expect("nothing is pending");
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
    writer.queue().flush(0, None).await.unwrap();
    writer.end_episode(true, None).await.unwrap();
}

#[tokio::test]
async fn an_episode_that_cannot_be_flushed_continues() {
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
    let error = writer.queue().flush(0, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
    assert_eq!(append(&writer, 1).unwrap_err().kind(), ErrorKind::TableNotFound);
    let error = writer.end_episode(true, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
}

#[tokio::test]
async fn a_closed_writer_says_so() {
    let writer = FakeServer::new(true).writer(&[config("t", vec![at(0, -1)], vec![])]);
    writer.queue().close();
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
    let queue = Arc::clone(&writer.queue);
    let dropped = Instant::now();
    drop(writer);
    assert!(dropped.elapsed() < Duration::from_secs(1));
    assert_eq!(queue.num_pending(), 1, "it is still being tried");
    flush_and_close(Arc::clone(&queue), Duration::from_millis(20)).await;
    assert_eq!(queue.num_pending(), 0, "and it is dropped after a while");
    assert_eq!(queue.check().unwrap_err().kind(), ErrorKind::FailedPrecondition);
}

#[tokio::test]
async fn an_idle_writer_ends_its_task_when_it_is_dropped() {
    let writer = FakeServer::new(true).writer(&[config("t", vec![at(0, -1)], vec![])]);
    let queue = Arc::clone(&writer.queue);
    drop(writer);
    assert_eq!(queue.check().unwrap_err().kind(), ErrorKind::FailedPrecondition);
}
