// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::Ordering;

use reverb_data::DType;
use tokio::time::Instant;

use super::*;
use crate::writer::batched::{BatchedColumn, BatchedValue, BatchedWriter, NewItems, StepIndex};
use crate::writer::cell::CellValue;
use crate::writer::column_orders::Matching;
use crate::writer::item::ColumnRefs;
use crate::writer::lane::ColumnOptions;
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
    let writer = TrajectoryWriter::new(&server.client(), 1, None, Matching::ByPlace);
    let options = ColumnOptions { num_keep_alive_refs: 1, max_chunk_length };
    let column = writer.lane().lock().add_column("data", Some(options));
    let (bytes, shape) = (vec![0; 2 * MIB], [2 * MIB]);
    let mut most = 0;
    for _ in 0..total_bytes / bytes.len() {
        let value = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
        let cell = {
            let mut lane = writer.lane().lock();
            let step = lane.history_len();
            if lane.append(&mut [(column, value)], false).unwrap() {
                writer.queue().blocks_completed();
            }
            lane.cell(column, step).unwrap().to_ref()
        };
        let refs = ColumnRefs { cells: &[cell], squeeze: true };
        writer.queue().create_item("table", 1.0, &[refs]).unwrap();
        most = most.max(writer.queue().send_queue().state.lock().waiting_bytes);
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
        let writer = TrajectoryWriter::new(&server.client(), 1, None, Matching::ByPlace);
        let column = writer.lane().lock().add_column("data", None);
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
    let batch_size = writer.batch_size();
    let (shape, bytes) = ([batch_size], vec![0; batch_size]);
    let value = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
    writer.append(&[BatchedValue { column, value }], false, None).unwrap();
    let items = NewItems {
        constants: Vec::new(),
        columns: vec![BatchedColumn { column, index: StepIndex::At(-1), pads_with_first: false }],
        priorities: vec![1.0; batch_size],
        removal_priorities: None,
        selected: None,
    };
    assert_eq!(writer.create_items("table", &[items]).unwrap(), batch_size);
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
    writer.flush(20, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(num_stored(), 140);
    let start = Instant::now();
    writer.flush(19, None).await.unwrap();
    assert_eq!((num_stored(), start.elapsed()), (160, Duration::ZERO));
}

fn append_items(writer: &TrajectoryWriter, column: usize, count: usize) {
    for _ in 0..count {
        let value = CellValue::Bytes { dtype: DType::UInt8, shape: &[1], bytes: &[1] };
        let cell = {
            let mut lane = writer.lane().lock();
            let step = lane.history_len();
            if lane.append(&mut [(column, value)], false).unwrap() {
                writer.queue().blocks_completed();
            }
            lane.cell(column, step).unwrap().to_ref()
        };
        writer
            .queue()
            .create_item("table", 1.0, &[ColumnRefs { cells: &[cell], squeeze: true }])
            .unwrap();
    }
}
