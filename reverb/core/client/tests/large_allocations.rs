// SPDX-License-Identifier: Apache-2.0
//! Batches that are sampled repeatedly into the same memory allocate no large blocks.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_client::{BatchRequest, Client, Connector, GivenColumn, RaggedForm};
use reverb_data::{
    ChunkBuilder, DType, NewItem, RateLimiterConfig, SelectorConfig, SequenceRange, Shape,
    TableConfig, Tensor, TensorData, TrajectoryBuilder, keep_samples,
};
use reverb_engine::{Confirm, Table};
use reverb_rpc::target::Loopback;
use reverb_server::{Server, ServerOptions, local_shard};
use reverb_wire::transport::Transport;
use tokio::runtime::Runtime;

/// Smallest size of a large block.
const LARGE: usize = 4096;

thread_local! {
    static NUM_LARGE: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// System allocator that counts large blocks of each thread.
struct Counting;

fn count(size: usize) {
    if size >= LARGE {
        NUM_LARGE.set(NUM_LARGE.get() + 1);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller says.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Number of large blocks that this thread allocates during `work`.
fn large_blocks(work: impl FnOnce()) -> u64 {
    let before = NUM_LARGE.get();
    work();
    NUM_LARGE.get() - before
}

struct InProcess(Loopback);

impl Connector for InProcess {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        let shard = local_shard(self.0);
        Ok(shard.ok_or_else(|| Error::unavailable("there is no server"))?)
    }
}

struct Ignore;

impl Confirm for Ignore {
    fn confirmed(&self, _: &[u64]) {}

    fn failed(&self, _: Error) {}
}

const NAME: &str = "table";
const WIDTHS: [usize; 2] = [4, 1];
const NUM_ITEMS: u64 = 3000;
const MAX_LENGTH: usize = 3;

/// A table of items of one step, or of up to three.
fn table(has_one_length: bool) -> Arc<Table> {
    let rate_limiter = RateLimiterConfig {
        samples_per_insert: 1.0,
        min_size_to_sample: 1,
        min_diff: f64::MIN,
        max_diff: f64::MAX,
    };
    let table = Table::new(TableConfig {
        sampler: SelectorConfig::Uniform,
        rate_limiter,
        seed: Some(1),
        ..TableConfig::fifo(NAME, NUM_ITEMS.cast_signed())
    });
    let table = table.unwrap();
    let confirm: Arc<dyn Confirm> = Arc::new(Ignore);
    for key in 0..NUM_ITEMS {
        let length = if has_one_length { 1 } else { 1 + key as usize % MAX_LENGTH };
        let mut chunk = ChunkBuilder::new(false);
        for width in WIDTHS {
            chunk.push(&Tensor {
                dtype: DType::Float64,
                shape: Shape::from_slice(&[length, width]),
                data: TensorData::Bytes(vec![key as u8; length * width * 8]),
            });
        }
        let chunk = chunk.finish(key, SequenceRange::default());
        let mut builder = TrajectoryBuilder::new();
        for tensor in 0..WIDTHS.len() {
            builder.slice(&chunk, tensor, 0, length);
            builder.end_column(false);
        }
        let item = NewItem::new(key, NAME, 1.0, builder.finish().unwrap());
        table.insert(vec![item], &confirm).unwrap();
    }
    table
}

/// Large blocks of a hundred batches into given memory, after some that warm up.
fn blocks_of_batches(batch_size: usize, ragged: RaggedForm) -> u64 {
    let runtime = Runtime::new().unwrap();
    let length = if ragged == RaggedForm::Refuse { 1 } else { MAX_LENGTH };
    let tables = vec![table(length == 1)];
    let server = Server::start(tables, &ServerOptions::default(), runtime.handle()).unwrap();
    let connector = Box::new(InProcess(Loopback::localhost(server.port())));
    let patience = Duration::from_secs(20);
    let client = Client::new("localhost", connector, patience, runtime.handle().clone());
    let request = BatchRequest {
        table: NAME,
        batch_size,
        timeout: None,
        partial: true,
        distinct: false,
        epoch: None,
        window: None,
        spans: &[],
        ragged,
        columns: &[],
        names: None,
        max_bytes: usize::MAX,
    };
    let mut memory = WIDTHS.map(|width| vec![0; batch_size * length * width * 8]);
    let mut sample = |count: usize| {
        for _ in 0..count {
            let given = memory.iter_mut().zip(WIDTHS).map(|(bytes, width)| GivenColumn {
                name: "out",
                dtype: "float64",
                shape: Shape::from_slice(&[batch_size, length, width]),
                bytes,
            });
            let mut taken = Vec::new();
            // The binding drives the call on the thread that makes it too.
            let sampling = client.sample_batch(&request, Some(given.collect()), &mut taken);
            let columns = runtime.block_on(sampling).unwrap();
            assert_eq!((columns.len(), taken.len()), (WIDTHS.len(), batch_size));
            keep_samples(taken);
        }
    };
    sample(20);
    large_blocks(|| sample(100))
}

#[test]
fn the_counter_counts_large_blocks() {
    let large = large_blocks(|| drop(std::hint::black_box(vec![0_u8; LARGE])));
    let grown = large_blocks(|| {
        let mut list = Vec::<u8>::with_capacity(LARGE - 1);
        list.reserve(LARGE);
        drop(std::hint::black_box(list));
    });
    let small = large_blocks(|| drop(std::hint::black_box(vec![0_u8; LARGE - 1])));
    assert_eq!((large, grown, small), (1, 1, 0));
}

#[test]
fn batches_in_the_same_process_ask_for_no_large_blocks() {
    for batch_size in [64, 256, 1024, 5000] {
        for ragged in [RaggedForm::Refuse, RaggedForm::Padded(MAX_LENGTH)] {
            let blocks = blocks_of_batches(batch_size, ragged);
            assert_eq!(blocks, 0, "100 batches of {batch_size}, {ragged:?}");
        }
    }
}
