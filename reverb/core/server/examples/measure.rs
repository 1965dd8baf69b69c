// SPDX-License-Identifier: Apache-2.0
//! Measures latency and throughput between a client and a server, over loopback and in process:
//! `cargo run --release -p reverb-server --example measure [-- host:port]`. With an address it
//! measures against a server in another process (`--example serve`).
//!
//! `MAX_SIZE` bounds the table, `ONLY` selects one throughput case: small, Atari or "400 kB".

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_data::{
    Chunk, ChunkBuilder, DType, NewItem, SelectorConfig, SequenceRange, Shape, TableConfig, Tensor,
    TensorData,
};
use reverb_data::{KeyGenerator, TrajectoryBuilder};
use reverb_engine::Table;
use reverb_rpc::target::Loopback;
use reverb_server::{Server, ServerOptions, local_shard};
use reverb_wire::Calls as _;
use reverb_wire::GrpcTransport;
use reverb_wire::generated::ResetRequest;
use reverb_wire::transport::{InsertBatch, SampleRequest, Transport};
use tokio::runtime::Runtime;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let runtime = Runtime::new()?;
    if let Some(address) = std::env::args().nth(1) {
        let _context = runtime.enter();
        let transport = GrpcTransport::new(&address)?;
        return runtime.block_on(measure("another process", &transport));
    }
    let table = Table::new(TableConfig {
        sampler: SelectorConfig::Uniform,
        ..TableConfig::fifo(
            "fifo",
            std::env::var("MAX_SIZE").map_or(Ok(1_000_000), |text| text.parse())?,
        )
    })?;
    let server = Server::start(vec![table], &ServerOptions::default(), runtime.handle())?;
    let grpc: Arc<dyn Transport> =
        Arc::new(GrpcTransport::new(&format!("localhost:{}", server.port()))?);
    let local = local_shard(Loopback::localhost(server.port())).ok_or("the server does not run")?;
    for (name, transport) in [("loopback", grpc), ("in process", local)] {
        runtime.block_on(measure(name, &*transport))?;
    }
    Ok(())
}

async fn measure(name: &str, transport: &dyn Transport) -> Outcome<()> {
    transport.call(ResetRequest { table: "fifo".into(), not_after_ns: 0 }).await?;
    let mut keys = KeyGenerator::new();
    println!("{name}");

    let mut times = Vec::new();
    for _ in 0..3000 {
        let start = Instant::now();
        transport.mutate_priorities("fifo", &[(1, 1.0)], &[]).await?;
        times.push(start.elapsed());
    }
    println!("  unary call                 {}", percentiles(&mut times));

    let mut insert = transport.open_insert().await?;
    for _ in 0..3000 {
        let start = Instant::now();
        insert.sink.send(batch(&mut keys, 1, 25)).await?;
        insert.confirmations.recv().await.ok_or("the stream ended")??;
        times.push(start.elapsed());
    }
    println!("  insert one and wait        {}", percentiles(&mut times));

    let mut samples = transport.open_sample().await?;
    for _ in 0..3000 {
        let start = Instant::now();
        samples.request(&SampleRequest::new("fifo", 1, None))?;
        samples.receive().await?;
        times.push(start.elapsed());
    }
    println!("  sample one, open stream    {}", percentiles(&mut times));
    for _ in 0..3000 {
        let start = Instant::now();
        let mut samples = transport.open_sample().await?;
        samples.request(&SampleRequest::new("fifo", 1, None))?;
        samples.receive().await?;
        times.push(start.elapsed());
    }
    println!("  sample one, new stream     {}", percentiles(&mut times));

    for (what, per_batch, bytes, batches, repeats) in
        [("small", 64, 25, 500, 10), ("Atari", 32, 7056, 50, 20), ("400 kB", 1, 400_000, 50, 200)]
    {
        if std::env::var("ONLY").is_ok_and(|only| only != what) {
            continue;
        }
        transport.call(ResetRequest { table: "fifo".into(), not_after_ns: 0 }).await?;
        let mut confirmed = 0;
        let batches = batches * repeats;
        // Each batch is sent several times under new keys. Preparing the batches is not measured.
        let prepared: Vec<InsertBatch> =
            (0..batches / repeats).map(|_| batch(&mut keys, per_batch, bytes)).collect();
        let start = Instant::now();
        for at in 0..batches {
            insert.sink.send(with_new_keys(&prepared[at % prepared.len()], &mut keys)).await?;
            while let Ok(keys) = insert.confirmations.try_recv() {
                confirmed += keys?.len();
            }
        }
        while confirmed < per_batch * batches {
            confirmed += insert.confirmations.recv().await.ok_or("the stream ended")??.len();
        }
        report("insert", what, per_batch * batches, bytes, start.elapsed());
        let count = if bytes > 100_000 { 4000 } else { 200_000 };
        let start = Instant::now();
        samples.request(&SampleRequest::new("fifo", count, None))?;
        let mut received = 0;
        while received < count {
            received += samples.receive().await?.len();
        }
        report("sample", what, count, bytes, start.elapsed());
    }
    transport.call(ResetRequest { table: "fifo".into(), not_after_ns: 0 }).await?;
    Ok(())
}

fn report(verb: &str, what: &str, items: usize, bytes: usize, time: Duration) {
    let seconds = time.as_secs_f64();
    println!(
        "  {verb} {what:<8} {:>10.0} items/s {:>8.1} MB/s",
        items as f64 / seconds,
        (items * bytes) as f64 / seconds / 1e6
    );
}

fn percentiles(times: &mut Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
    let text = format!("p50 {:.0} us, p90 {:.0} us, p99 {:.0} us", at(0.5), at(0.9), at(0.99));
    times.clear();
    text
}

/// The same chunks in new items.
fn with_new_keys(batch: &InsertBatch, keys: &mut KeyGenerator) -> InsertBatch {
    let items = batch.items.iter().map(|item| NewItem { key: keys.next_key(), ..item.clone() });
    InsertBatch { chunks: batch.chunks.clone(), items: items.collect(), keep_chunk_keys: vec![] }
}

/// Items of one chunk of one step each.
fn batch(keys: &mut KeyGenerator, items: usize, bytes: usize) -> InsertBatch {
    let mut batch = InsertBatch::default();
    for _ in 0..items {
        let chunk = chunk(keys.next_key(), bytes);
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&chunk, 0, 0, 1);
        builder.end_column(true);
        let trajectory = builder.finish().expect("it has a column");
        let key = keys.next_key();
        batch.items.push(NewItem::new(key, "fifo", 1.0, trajectory));
        batch.chunks.push(chunk);
    }
    batch
}

fn chunk(key: u64, bytes: usize) -> Chunk {
    let mut state = key | 1;
    let noise = (0..bytes.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut builder = ChunkBuilder::new(false);
    builder.push(&Tensor {
        dtype: DType::UInt8,
        shape: Shape::from_slice(&[1, bytes]),
        data: TensorData::Bytes(noise.take(bytes).collect()),
    });
    builder.finish(key, SequenceRange::default())
}
