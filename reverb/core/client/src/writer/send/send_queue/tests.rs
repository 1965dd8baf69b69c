// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::Ordering;
use std::time::Duration;

use reverb_data::DType;
use tokio::time::Instant;

use super::*;
use crate::writer::batched::{BatchedColumn, BatchedValue, BatchedWriter, NewItems, StepIndex};
use crate::writer::capture::cell::CellValue;
use crate::writer::capture::column_orders::Matching;
use crate::writer::capture::history::ColumnOptions;
use crate::writer::capture::item::ColumnRefs;
use crate::writer::send::MESSAGE_BYTES;
use crate::writer::testing::FakeServer;
use crate::writer::trajectory::TrajectoryWriter;

const MIB: usize = 1024 * 1024;

/// Writes items of 2 MiB, waits like callers do, and returns the largest number of unconfirmed
/// bytes.
async fn write(server: FakeServer, total_bytes: usize) -> usize {
    write_chunks(server, total_bytes, None).await
}

async fn write_chunks(
    server: FakeServer,
    total_bytes: usize,
    max_chunk_length: Option<usize>,
) -> usize {
    let writer = TrajectoryWriter::new(&server.client(), 1, None, Matching::ByPosition);
    let options = ColumnOptions { num_keep_alive_refs: 1, max_chunk_length };
    let column = writer.history().lock().add_column("data", Some(options));
    let bytes = vec![0; 2 * MIB];
    let shape = [2 * MIB];
    let mut most = 0;
    for _ in 0..total_bytes / bytes.len() {
        let value = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
        let cell = {
            let mut history = writer.history().lock();
            let step = history.num_steps();
            if history.append(&mut [(column, value)], false).unwrap() {
                writer.queue().blocks_completed();
            }
            history.cell(column, step).unwrap().to_ref()
        };
        let refs = ColumnRefs { cells: &[cell], squeeze: true };
        writer.create_item("table", 1.0, &[refs]).unwrap();
        most = most.max(writer.queue().state.lock().waiting_bytes);
        if writer.queue().is_over_limit() {
            writer.queue().throttle().await.unwrap();
        }
    }
    most
}

#[tokio::test(start_paused = true)]
async fn behind_a_closed_limiter_a_writer_goes_on() {
    let start = Instant::now();
    let most = write(FakeServer::new(false), 300 * MIB).await;
    assert_eq!(most, 300 * MIB);
    // The writer gave up waiting above 32, 64, 128 and 256 MiB.
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(1500), "{waited:?}");
    assert!(waited < Duration::from_millis(2500), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_is_waited_for() {
    // Each confirmation is of some megabytes.
    let pause = Duration::from_millis(300);
    let most = write(FakeServer { pause, ..FakeServer::new(true) }, 400 * MIB).await;
    assert!(most <= 150 * MIB, "{} MiB are unconfirmed", most / MIB);
}

#[tokio::test(start_paused = true)]
async fn a_fast_server_bounds_what_is_in_transit() {
    let most = write(FakeServer::new(true), 200 * MIB).await;
    assert!(most <= 34 * MIB, "{} MiB are unconfirmed", most / MIB);
}

#[tokio::test(start_paused = true)]
async fn every_step_of_a_chunk_counts() {
    let start = Instant::now();
    let pause = Duration::from_millis(100);
    let most =
        write_chunks(FakeServer { pause, ..FakeServer::new(true) }, 200 * MIB, Some(4)).await;
    assert!((33 * MIB..140 * MIB).contains(&most), "{} MiB are unconfirmed", most / MIB);
    assert!(start.elapsed() > Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn an_open_chunk_is_not_waited_for() {
    let start = Instant::now();
    let most = write_chunks(FakeServer::new(true), 100 * MIB, Some(200)).await;
    assert_eq!((most, start.elapsed()), (100 * MIB, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn what_is_confirmed_when_a_stream_fails_is_not_sent_again() {
    // Either the confirmations or the failure may be seen first.
    for _ in 0..20 {
        let server = FakeServer::new(true);
        server.fails_next.store(true, Ordering::Relaxed);
        let writer = TrajectoryWriter::new(&server.client(), 1, None, Matching::ByPosition);
        let column = writer.history().lock().add_column("data", None);
        append_items(&writer, column, 5);
        writer.queue().flush(0, None).await.unwrap();
        assert!(!server.fails_next.load(Ordering::Relaxed));
        append_items(&writer, column, 5);
        writer.queue().flush(0, None).await.unwrap();
        assert_eq!(server.stored.lock().len(), 10);
    }
}

/// Appends a step of each environment, and makes an item of it.
fn step(writer: &BatchedWriter, column: usize) {
    let items = append_step(writer, column);
    assert_eq!(writer.create_items("table", &[items]).unwrap(), writer.batch_size());
}

/// Appends a step of each environment, and returns the items of it.
fn append_step(writer: &BatchedWriter, column: usize) -> NewItems {
    let batch_size = writer.batch_size();
    let shape = [batch_size];
    let bytes = vec![0; batch_size];
    let value = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
    writer.append(&[BatchedValue { column, value }], false, None).unwrap();
    NewItems {
        constants: Vec::new(),
        columns: vec![BatchedColumn { column, index: StepIndex::At(-1), pads_with_first: false }],
        priorities: vec![1.0; batch_size],
        removal_priorities: None,
        selected: None,
    }
}

#[tokio::test(start_paused = true)]
async fn kept_items_wait_for_others_or_a_flush() {
    let server = FakeServer::new(true);
    let writer = BatchedWriter::new(&server.client(), 1, 1, None);
    let column = writer.add_column("data");
    let keep = || writer.keep_items("table", &[append_step(&writer, column)]).unwrap();
    let pause = || tokio::time::sleep(Duration::from_millis(10));
    pause().await;
    keep();
    pause().await;
    assert_eq!(server.stored.lock().len(), 0);
    step(&writer, column);
    pause().await;
    assert_eq!(server.stored.lock().len(), 2);
    keep();
    pause().await;
    assert_eq!(server.stored.lock().len(), 2);
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(server.stored.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn items_of_four_steps_are_sent_together() {
    let server = FakeServer::new(true);
    let writer = BatchedWriter::new(&server.client(), 20, 1, None);
    let column = writer.add_column("data");
    let num_stored = || server.stored.lock().len();
    // Not at once, and not for long.
    (0..3).for_each(|_| step(&writer, column));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(num_stored(), 0);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(num_stored(), 60);
    // The fourth step ends the gathering.
    let start = Instant::now();
    (0..4).for_each(|_| step(&writer, column));
    server.wait_for(140).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    // A caller that waits ends it too, but not one with nothing to wait for.
    tokio::time::sleep(Duration::from_millis(1)).await;
    step(&writer, column);
    writer.queue().flush(20, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(num_stored(), 140);
    let start = Instant::now();
    writer.queue().flush(19, None).await.unwrap();
    assert_eq!((num_stored(), start.elapsed()), (160, Duration::ZERO));
}

fn append_items(writer: &TrajectoryWriter, column: usize, count: usize) {
    for _ in 0..count {
        let value = CellValue::Bytes { dtype: DType::UInt8, shape: &[1], bytes: &[1] };
        // Locked until the item is there: another thread's step would make this one expire.
        let mut history = writer.history().lock();
        let step = history.num_steps();
        if history.append(&mut [(column, value)], false).unwrap() {
            writer.queue().blocks_completed();
        }
        let cell = history.cell(column, step).unwrap().to_ref();
        let refs = ColumnRefs { cells: &[cell], squeeze: true };
        writer.create_item("table", 1.0, &[refs]).unwrap();
    }
}

/// A writer at a server in this process whose stream is open.
async fn writer_with_stream(server: &FakeServer) -> (TrajectoryWriter, usize) {
    let writer = TrajectoryWriter::new(&server.client(), 1, None, Matching::ByPosition);
    let column = writer.history().lock().add_column("data", None);
    append_items(&writer, column, 1);
    server.wait_for(1).await;
    while !writer.queue().is_local.load(Ordering::Relaxed)
        || writer.queue().state.lock().task != Task::Idle
    {
        tokio::task::yield_now().await;
    }
    (writer, column)
}

/// Polls a flush once, so that nothing but this thread can have sent.
fn poll_flush(writer: &TrajectoryWriter) -> Option<Result<()>> {
    let flush = std::pin::pin!(writer.queue().flush(0, None));
    match flush.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_flush_sends_in_its_own_thread() {
    let server = FakeServer::new(true);
    let (writer, column) = writer_with_stream(&server).await;
    for round in 1..=20 {
        append_items(&writer, column, 3);
        // The runtime of this test has no thread but this one.
        poll_flush(&writer).expect("sent and confirmed without the runtime").unwrap();
        assert_eq!(server.stored.lock().len(), 1 + 3 * round, "each item once");
    }
}

#[tokio::test]
async fn a_flush_of_more_than_a_message_is_sent_by_the_runtime() {
    let server = FakeServer::new(true);
    let (writer, _) = writer_with_stream(&server).await;
    let large = writer.history().lock().add_column("large", None);
    let bytes = vec![0; 2 * MESSAGE_BYTES];
    let shape = [2 * MESSAGE_BYTES];
    let value = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
    let cell = {
        let mut history = writer.history().lock();
        let step = history.num_steps();
        history.append(&mut [(large, value)], false).unwrap();
        history.cell(large, step).unwrap().to_ref()
    };
    let refs = ColumnRefs { cells: &[cell], squeeze: true };
    writer.create_item("table", 1.0, &[refs]).unwrap();
    assert!(poll_flush(&writer).is_none(), "this thread would be away for long");
    assert_eq!(server.stored.lock().len(), 1);
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(server.stored.lock().len(), 2);
}

#[tokio::test]
async fn what_a_flush_leaves_is_sent_by_the_runtime() {
    let pause = Duration::from_millis(1);
    let server = FakeServer { pause, ..FakeServer::new(true) };
    let (writer, column) = writer_with_stream(&server).await;
    append_items(&writer, column, 2);
    // Its turn ends in the pause of the server, and the flush is dropped then.
    assert!(poll_flush(&writer).is_none());
    server.wait_for(3).await;
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(server.stored.lock().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_flush_one_writer_send_each_item_once() {
    let server = FakeServer::new(true);
    let (writer, column) = writer_with_stream(&server).await;
    let writer = Arc::new(writer);
    let runtime = tokio::runtime::Handle::current();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let writer = Arc::clone(&writer);
            let runtime = runtime.clone();
            std::thread::spawn(move || {
                for _ in 0..200 {
                    append_items(&writer, column, 1);
                    runtime.block_on(writer.queue().flush(0, None)).unwrap();
                }
            })
        })
        .collect();
    let join_all = || threads.into_iter().try_for_each(std::thread::JoinHandle::join);
    let joined = tokio::task::spawn_blocking(join_all);
    assert!(joined.await.unwrap().is_ok());
    assert_eq!(server.stored.lock().len(), 601);
}

#[tokio::test]
async fn a_writer_that_never_flushes_sends_too() {
    let server = FakeServer::new(true);
    let (writer, column) = writer_with_stream(&server).await;
    append_items(&writer, column, 1);
    poll_flush(&writer).expect("sent here").unwrap();
    // The runtime's task is woken again after a caller's turn.
    append_items(&writer, column, 1);
    server.wait_for(3).await;
}

#[tokio::test]
async fn a_closed_writer_reports_nothing_that_its_task_still_has() {
    for closes in [true, false] {
        let server = FakeServer::new(true);
        let (writer, _) = writer_with_stream(&server).await;
        let queue = Arc::clone(writer.queue());
        queue.state.lock().begin_encoding(&Arc::from("table"));
        if closes {
            queue.close();
        }
        drop(writer);
        queue.delete();
        assert_eq!(queue.has_reported.load(Ordering::Relaxed), !closes);
    }
}
