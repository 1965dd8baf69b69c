// SPDX-License-Identifier: Apache-2.0
//! Rules for messages on an insert stream.

use std::io::Write;
use std::sync::Arc;

use crate::support::*;
use http::HeaderMap;
use reverb_rpc::message::Message;
use reverb_rpc::status::Code;
use reverb_wire::generated as proto;

fn insert(
    chunks: &[reverb_data::Chunk],
    items: Vec<proto::PrioritizedItem>,
    keep: &[u64],
) -> proto::InsertStreamRequest {
    proto::InsertStreamRequest {
        chunks: chunks.iter().map(raw_chunk).collect(),
        items,
        keep_chunk_keys: keep.to_vec(),
        max_wait_ms: None,
    }
}

fn simple_item(key: u64, table: &str, chunk_key: u64) -> proto::PrioritizedItem {
    raw_item(key, table, vec![raw_slice(chunk_key, 0, 1)])
}

#[tokio::test]
async fn refused_messages_end_the_stream_with_the_right_status() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    let c = chunk(1, &[10, 11]);
    let good = || simple_item(1, "t", 1);
    let mut no_columns = good();
    no_columns.flat_trajectory = None;
    let all = std::slice::from_ref(&c);
    for (messages, code, text) in [
        (vec![insert(&[], vec![], &[])], Code::InvalidArgument, "lacks both chunks and item"),
        (vec![insert(&[], vec![], &[1])], Code::InvalidArgument, "lacks both chunks and item"),
        (
            vec![insert(&[], vec![simple_item(1, "t", 77)], &[])],
            Code::Internal,
            "Could not find sequence chunk 77.",
        ),
        // The chunk is looked up before the table.
        (
            vec![insert(&[], vec![simple_item(1, "x", 77)], &[])],
            Code::Internal,
            "Could not find sequence chunk 77.",
        ),
        (
            vec![insert(all, vec![simple_item(1, "x", 1)], &[])],
            Code::NotFound,
            "Priority table x was not found",
        ),
        (
            vec![insert(all, vec![no_columns], &[])],
            Code::InvalidArgument,
            "Item trajectory must not be empty.",
        ),
        (
            vec![insert(all, vec![raw_item(1, "t", vec![])], &[])],
            Code::InvalidArgument,
            "Item trajectory must not be empty.",
        ),
        (
            vec![insert(all, vec![good()], &[1, 2])],
            Code::FailedPrecondition,
            "chunks_.size() == 1 != keep_keys.size() == 2",
        ),
        (
            vec![insert(all, vec![good()], &[1, 1])],
            Code::FailedPrecondition,
            "chunks_.size() == 1 != keep_keys.size() == 2",
        ),
        // Released chunks are gone.
        (
            vec![insert(all, vec![good()], &[]), insert(&[], vec![simple_item(2, "t", 1)], &[])],
            Code::Internal,
            "Could not find sequence chunk 1.",
        ),
        (
            vec![insert(all, vec![raw_item(1, "t", vec![raw_slice(1, 1, 2)])], &[])],
            Code::InvalidArgument,
            "Item 1 of table t: Cannot slice steps [1, 1 + 2) from a chunk of 2 steps.",
        ),
        (
            vec![insert(all, vec![raw_item(1, "t", vec![raw_slice(1, -1, 1)])], &[])],
            Code::InvalidArgument,
            "must not be negative, got -1",
        ),
    ] {
        let mut stream = raw.open("InsertStream").await;
        for message in &messages {
            stream.send(message).await;
        }
        let status = stream.status().await;
        assert_eq!(status.code, code, "{}", status.message);
        assert!(status.message.contains(text), "{}", status.message);
    }
    // Connection and table still work.
    let mut stream = raw.open("InsertStream").await;
    stream.send(&insert(all, vec![good()], &[1])).await;
    assert_eq!(stream.keys(1).await, [1]);
}

#[tokio::test]
async fn items_before_a_refused_one_stay_and_are_confirmed() {
    let tables = [table(config("a")), table(config("b"))];
    let server = start(tables.to_vec());
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("InsertStream").await;
    let items = vec![
        simple_item(1, "a", 1),
        simple_item(2, "b", 1),
        simple_item(3, "b", 1),
        simple_item(4, "a", 99),
        simple_item(5, "a", 1),
    ];
    stream.send(&insert(&[chunk(1, &[10])], items, &[])).await;
    assert_eq!(stream.keys(3).await, [1, 2, 3]);
    assert_eq!(stream.status().await.code, Code::Internal);
    assert_eq!(tables[0].info().current_size, 1);
    assert_eq!(tables[1].info().current_size, 2);
}

#[tokio::test]
async fn keep_keys_of_a_message_without_items_are_ignored() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("InsertStream").await;
    stream.send(&insert(&[chunk(1, &[10])], vec![], &[5, 5])).await;
    stream.send(&insert(&[], vec![simple_item(1, "t", 1)], &[1])).await;
    stream.send(&insert(&[], vec![simple_item(2, "t", 1)], &[])).await;
    assert_eq!(stream.keys(2).await, [1, 2]);
}

#[tokio::test]
async fn the_first_bytes_of_a_chunk_key_win_on_each_stream() {
    let items = table(config("t"));
    let server = start(vec![Arc::clone(&items)]);
    let raw = RawClient::connect(&server).await;
    let mut first = raw.open("InsertStream").await;
    let twice = [chunk(1, &[10]), chunk(1, &[20])];
    first.send(&insert(&twice, vec![simple_item(1, "t", 1)], &[1])).await;
    first.send(&insert(&twice[1..], vec![simple_item(2, "t", 1)], &[1])).await;
    assert_eq!(first.keys(2).await, [1, 2]);
    let mut second = raw.open("InsertStream").await;
    second.send(&insert(&twice[1..], vec![simple_item(3, "t", 1)], &[])).await;
    assert_eq!(second.keys(1).await, [3]);
    let sampled = |key: u64| {
        let others: Vec<u64> = (1..key).collect();
        items.mutate(&[], &others).unwrap();
        let sample = items.try_sample(1).unwrap().remove(0);
        assert_eq!(sample.key, key);
        sample.trajectory.chunks()[0].payload().into_owned()
    };
    assert_eq!(sampled(1), *twice[0].payload());
    assert_eq!(sampled(2), *twice[0].payload());
    assert_eq!(sampled(3), *twice[1].payload());
}

#[tokio::test]
async fn an_item_that_is_sent_again_only_changes_its_priority() {
    let items = table(config("t"));
    let server = start(vec![Arc::clone(&items)]);
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("InsertStream").await;
    let mut item = simple_item(1, "t", 1);
    item.times_sampled = 41;
    item.inserted_at = Some(proto::google::protobuf::Timestamp { seconds: 5, nanos: 0 });
    stream.send(&insert(&[chunk(1, &[10])], vec![item], &[])).await;
    let mut again = simple_item(1, "t", 2);
    again.priority = 5.5;
    stream.send(&insert(&[chunk(2, &[20])], vec![again], &[])).await;
    assert_eq!(stream.keys(2).await, [1, 1]);
    let sample = items.try_sample(1).unwrap().remove(0);
    assert_eq!((sample.priority, sample.times_sampled), (5.5, 42));
    assert!(sample.inserted_at_ns > 1_600_000_000_000_000_000);
    assert_eq!(sample.trajectory.chunks()[0].key(), 1);
    assert_eq!(items.info().num_inserts, 1);
}

#[tokio::test]
async fn captured_writers_are_understood() {
    let server = start(vec![
        table(config("t")),
        table(config("lifo")),
        table(config("fifo")),
        table(config("uni")),
        table(config("uni2")),
        table(config("dt")),
        table(config("prio")),
    ]);
    let raw = RawClient::connect(&server).await;
    for (messages, count) in [
        (
            vec![
                &include_bytes!("../../../wire/tests/captures/insert_req_traj_seq0.bin")[..],
                include_bytes!("../../../wire/tests/captures/insert_req_traj_seq1.bin"),
                include_bytes!("../../../wire/tests/captures/insert_req_traj_seq2.bin"),
            ],
            4,
        ),
        (vec![&include_bytes!("../../../wire/tests/captures/insert_req_traj_batch4.bin")[..]], 4),
        (vec![&include_bytes!("../../../wire/tests/captures/insert_req_all_dtypes.bin")[..]], 1),
    ] {
        let mut stream = raw.open("InsertStream").await;
        for message in messages {
            stream.sender.send(Message::from_body(message)).await.unwrap();
        }
        assert_eq!(stream.keys(count).await.len(), count);
        stream.sender.finish();
        assert_eq!(stream.status().await.code, Code::Ok);
    }
}

#[tokio::test]
async fn compressed_messages_are_taken() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    let message = insert(&[chunk(1, &[10])], vec![simple_item(1, "t", 1)], &[]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&prost::Message::encode_to_vec(&message)).unwrap();
    let headers = |name: &str| {
        HeaderMap::from_iter([("grpc-encoding".parse().unwrap(), name.parse().unwrap())])
    };
    let mut stream = raw.open_with("InsertStream", headers("gzip")).await;
    stream.sender.send(Message::from_compressed_body(&gzip.finish().unwrap())).await.unwrap();
    assert_eq!(stream.keys(1).await, [1]);
    let mut stream = raw.open_with("InsertStream", headers("br")).await;
    let status = stream.status().await;
    assert_eq!(status.code, Code::Unimplemented);
    assert!(status.message.contains("identity,deflate,gzip"), "{}", status.message);
}

#[tokio::test]
async fn malformed_messages_are_refused_and_the_connection_stays() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    for method in ["InsertStream", "SampleStream", "MutatePriorities", "Reset", "ServerInfo"] {
        for body in [&[0x0a, 0x50, 1][..], &[0xff; 12], &[0x0a, 0x03, 0x12, 0x7f, 0x01]] {
            let mut stream = raw.open(method).await;
            stream.sender.send(Message::from_body(body)).await.unwrap();
            stream.sender.finish();
            let status = stream.status().await;
            // The last one is well-formed where its first field is a name or unknown.
            assert_ne!(status.code, Code::Internal, "{method} {body:?}: {}", status.message);
            if body.len() != 5 {
                assert_eq!(status.code, Code::InvalidArgument, "{method} {}", status.message);
            }
        }
    }
    let mut stream = raw.open("Nope").await;
    stream.sender.finish();
    assert_eq!(stream.status().await.code, Code::Unimplemented);
    let mut stream = raw.open("InitializeConnection").await;
    let request = proto::InitializeConnectionRequest {
        pid: i64::from(std::process::id()),
        table_name: "t".into(),
        ownership_transferred: false,
    };
    stream.send(&request).await;
    assert!(stream.next().await.unwrap().is_empty());
    assert_eq!(stream.status().await.code, Code::Ok);
}
