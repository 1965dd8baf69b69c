// SPDX-License-Identifier: Apache-2.0
//! Servers whose disk is slow or fails.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use futures_util::FutureExt as _;
use rand::rngs::SmallRng;
use rand::{RngCore as _, SeedableRng as _};
use reverb_base::ErrorKind;
use reverb_data::{
    Chunk, ChunkBuilder, DType, NewItem, RateLimiterConfig, SelectorConfig, SequenceRange, Shape,
    StoredItem, TableConfig, Tensor, TensorData, TrajectoryBuilder,
};
use reverb_engine::Removal;
use reverb_files::{Errno, FailingDisk, Faults};
use reverb_rpc::target::Loopback;
use reverb_wire::GrpcTransport;
use reverb_wire::generated::reverb::{StatusRequest, TableStatus};
use reverb_wire::shard::Shard;
use reverb_wire::transport::{InsertBatch, SampleRequest, SampleStream};
use tempfile::TempDir;

use super::*;
use crate::service::local::local_shard;
use crate::service::server::Server;

/// Bytes of a payload.
const BYTES: usize = 250_000;

const MAX_BYTES: u64 = 64 << 20;

/// Time after which a disk that has failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A server with a store on a disk of the test.
struct Stage {
    server: Server,
    tier: Arc<Tier>,
    disk: FailingDisk,
    directory: TempDir,
}

fn config(name: &str) -> TableConfig {
    let rate_limiter = RateLimiterConfig {
        samples_per_insert: 1.0,
        min_size_to_sample: 1,
        min_diff: f64::MIN,
        max_diff: f64::MAX,
    };
    TableConfig {
        sampler: SelectorConfig::Uniform,
        rate_limiter,
        ..TableConfig::fifo(name, 100_000)
    }
}

/// The payload of the item with this key.
fn payload(key: u64) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    SmallRng::seed_from_u64(key).fill_bytes(&mut bytes);
    bytes
}

fn chunk(key: u64) -> Chunk {
    let mut builder = ChunkBuilder::new(false);
    builder.push(&Tensor {
        dtype: DType::UInt8,
        shape: Shape::from_slice(&[1, BYTES]),
        data: TensorData::Bytes(payload(key)),
    });
    builder.finish(key, SequenceRange::default())
}

fn batch(table: &str, key: u64) -> InsertBatch {
    let chunk = chunk(key);
    let mut builder = TrajectoryBuilder::new();
    builder.slice(&chunk, 0, 0, 1);
    builder.end_column(false);
    let items = vec![NewItem::new(key, table, 1.0, builder.finish().unwrap())];
    InsertBatch { items, chunks: vec![chunk], keep_chunk_keys: Vec::new() }
}

impl Stage {
    fn new(tables: &[&str]) -> Self {
        Self::start(tables, None, RETRY_AFTER, tempfile::tempdir().unwrap())
    }

    /// With a table that survives.
    fn with_journal(directory: TempDir, retry_after: Duration) -> Self {
        let sync_interval = Duration::from_millis(50);
        let journal = JournalOptions { sync_interval, restore_settings: false };
        Self::start(&["replay"], Some(journal), retry_after, directory)
    }

    fn start(
        tables: &[&str],
        journal: Option<JournalOptions>,
        retry_after: Duration,
        directory: TempDir,
    ) -> Self {
        let disk = FailingDisk::default();
        let path = directory.path().to_owned();
        let store = StoreOptions { path, max_bytes: None, journal, forgets_at_once: false };
        let options = ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            max_bytes: Some(MAX_BYTES),
            store: Some(store),
            ..ServerOptions::default()
        };
        let (runtime, never) = (Handle::current(), AtomicBool::new(false));
        let tier = Tier::open_on(&options, Arc::new(disk.clone()), retry_after, &runtime, &never);
        let tier = tier.unwrap().unwrap();
        let tables: Vec<_> = tables.iter().map(|name| Table::new(config(name)).unwrap()).collect();
        let tables = tier.recover(&tables, None, &never).unwrap().unwrap_or(tables);
        let server =
            Server::start_with(tables, &options, Some(Arc::clone(&tier)), &runtime).unwrap();
        Self { server, tier, disk, directory }
    }

    /// Stops the server and starts one with the same directory, on a disk that works.
    fn restart(self) -> Self {
        self.server.stop();
        Self::with_journal(self.directory, RETRY_AFTER)
    }

    /// Inserts items with these keys, and waits while the server is full.
    async fn insert(&self, table: &str, keys: std::ops::Range<u64>) {
        let mut stream = self.transport(true).open_insert().await.unwrap();
        for key in keys {
            stream.sink.send(batch(table, key)).await.unwrap();
        }
    }

    /// The chunks of the first table, in the order of their items.
    fn chunks(&self) -> Vec<Chunk> {
        let (mut chunks, mut lost) = (Vec::new(), Vec::new());
        let mut next = Some(0);
        while let Some(start) = next {
            next = self.table(0).sweep(start, &mut chunks, &mut lost);
        }
        chunks
    }

    /// Damages the payloads of every second item of the first table, which is on the disk.
    fn damage_half(&self) {
        for chunk in self.chunks().iter().step_by(2) {
            let place = chunk.place().expect("it is on the disk");
            let file = std::fs::OpenOptions::new().write(true).open(place.file.path()).unwrap();
            file.write_at(b"damaged", place.offset + 100).unwrap();
        }
    }

    /// The calls of a client in this process, or of another one.
    fn transport(&self, is_local: bool) -> Arc<dyn Shard> {
        if is_local {
            return local_shard(Loopback::localhost(self.server.port())).unwrap();
        }
        let address = format!("127.0.0.1:{}", self.server.port());
        Arc::new(GrpcTransport::new(&address).unwrap())
    }

    fn status(&self, table: usize) -> TableStatus {
        self.server.status(StatusRequest::default()).tables.swap_remove(table)
    }

    fn store_status(&self) -> StoreStatus {
        self.server.status(StatusRequest::default()).store.unwrap()
    }

    fn table(&self, table: usize) -> &Arc<Table> {
        &self.server.tables()[table]
    }

    fn removed(&self, table: usize, removal: Removal) -> u64 {
        self.table(table).status().statistics.removed.of(removal)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_says_so_and_costs_no_item() {
    let stage = Stage::new(&["replay"]);
    stage.disk.set(|faults| faults.bytes_per_second = Some(20_000_000));
    let mut sentences = Vec::new();
    let watch = async {
        loop {
            let status = stage.status(0);
            let diagnosis = status.diagnosis.unwrap_or_default();
            if diagnosis.sentence.contains("the disk") {
                assert_eq!(diagnosis.state, "full");
                assert_eq!(status.inserting.unwrap().reason, diagnosis.sentence);
                sentences.push(diagnosis.sentence);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = stage.insert("replay", 0..400) => {}
        () = watch => {}
    }
    let last = sentences.last().expect("inserts waited for the disk");
    let path = stage.directory.path().display();
    let rest = last.strip_prefix("Inserts wait for the disk: ").unwrap();
    let (bytes, speed) = rest
        .split_once(&format!(" MiB of payloads are not written yet, and {path} takes "))
        .unwrap();
    assert!((50.0..66.0).contains(&bytes.parse::<f64>().unwrap()), "{last}");
    let speed: f64 = speed.strip_suffix(" MB/s.").unwrap().parse().unwrap();
    assert!((10.0..=20.0).contains(&speed), "{last}");
    assert_eq!((stage.table(0).len(), stage.removed(0, Removal::Bytes)), (400, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_disk_fails_the_table_that_fills_the_memory_gives_up_items() {
    let stage = Stage::new(&["large", "small"]);
    stage.insert("large", 0..600).await;
    stage.insert("small", 1000..1180).await;
    let [large, small] = [0, 1].map(|table| stage.table(table).bytes());
    assert!(large > 2 * MAX_BYTES && small < MAX_BYTES, "{large} {small}");
    stage.disk.set(|faults| faults.write_error = Some(Errno::IO));
    stage.insert("small", 2000..2300).await;
    assert_eq!(stage.removed(0, Removal::Bytes), 0, "it has nearly nothing in memory");
    assert!(stage.removed(1, Removal::Bytes) > 0);
}

/// A server with a table of 300 items that are on the disk alone, half of them damaged.
async fn damaged() -> Stage {
    let stage = Stage::new(&["replay", "other"]);
    stage.insert("replay", 1..301).await;
    stage.insert("other", 1001..1401).await;
    while stage.chunks().iter().any(|chunk| chunk.resident().is_some()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.damage_half();
    stage
}

/// Samples until the request is answered or fails, and compares all payloads.
async fn receive(stream: &mut dyn SampleStream, num_samples: usize) -> (Vec<u64>, Option<Error>) {
    let mut keys = Vec::new();
    while keys.len() < num_samples {
        let samples = match stream.receive().await {
            Ok(samples) => samples,
            Err(error) => return (keys, Some(error)),
        };
        for sample in samples {
            let [sent] = sample.trajectory.chunks() else { panic!("one chunk each") };
            assert_eq!(sent.payload(), chunk(sample.key).payload());
            keys.push(sample.key);
        }
    }
    (keys, None)
}

fn request(num_samples: usize, options: SampleOptions) -> SampleRequest<'static> {
    let (table, timeout) = ("replay", None);
    SampleRequest { table, num_samples, timeout, options, columns: &[], spans: &[] }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_item_is_sampled_for_one_that_is_lost() {
    for is_local in [true, false] {
        let stage = damaged().await;
        let mut stream = stage.transport(is_local).open_sample().await.unwrap();
        // Many are read by other threads, one by the thread that asks.
        for num_samples in std::iter::repeat_n(1, 30).chain([400]) {
            stream.request(&request(num_samples, SampleOptions::default())).unwrap();
            let (keys, error) = receive(&mut *stream, num_samples).await;
            assert_eq!(error, None);
            assert!(keys.iter().all(|key| key % 2 == 0), "the others are damaged");
        }
        assert!((1..=150).contains(&stage.removed(0, Removal::Lost)));
        let store = stage.store_status();
        assert!(store.read_errors as u64 >= stage.removed(0, Removal::Lost), "each is counted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_hands_over_all_other_items() {
    for is_local in [true, false] {
        let stage = damaged().await;
        let mut stream = stage.transport(is_local).open_sample().await.unwrap();
        let options = SampleOptions { distinct: true, all_or_nothing: true, ..Default::default() };
        stream.request(&request(100, options)).unwrap();
        let (keys, error) = receive(&mut *stream, 100).await;
        let error = error.expect("half of them are lost");
        assert_eq!(error.kind(), reverb_base::ErrorKind::DataLoss);
        assert!(error.message().contains("of table replay cannot be read back: data-"), "{error}");
        let num_lost = stage.removed(0, Removal::Lost) as usize;
        assert_eq!(keys.len() + num_lost, 100, "each item is handed over, or lost");
        assert!(keys.iter().all(|key| key % 2 == 0) && num_lost > 10);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_withdrawn_while_items_may_be_on_their_way_from_the_disk() {
    let stage = Stage::new(&["replay"]);
    assert!(stage.transport(true).is_local());
    assert!(!stage.transport(true).may_withdraw() && !stage.transport(false).may_withdraw());
}

/// Waits until something is so.
async fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = found() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it comes")
}

/// A disk with a fault: inserts wait, nothing is lost, and the sentence ends in `why`.
async fn a_fault_costs_nothing(fault: fn(&mut Faults), state: &str, why: &str) {
    let stage = Arc::new(Stage::with_journal(tempfile::tempdir().unwrap(), RETRY_AFTER));
    stage.insert("replay", 1..11).await;
    stage.tier.sync("learner", b"step 7".to_vec()).await.unwrap();
    stage.disk.set(fault);
    // These are confirmed, and in memory alone.
    stage.insert("replay", 11..21).await;
    let commit = until(|| {
        let status = stage.store_status();
        (status.state == state).then_some(status.commit)
    })
    .await;
    until(|| (stage.store_status().lag_seconds > 2.0).then_some(())).await;
    let inserting = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move { stage.insert("replay", 21..31).await }
    });
    let sentence = until(|| {
        let status = stage.status(0);
        let diagnosis = status.diagnosis.filter(|it| it.sentence.contains("the disk"))?;
        assert_eq!(
            (&*diagnosis.state, status.inserting?.reason),
            ("full", diagnosis.sentence.clone())
        );
        Some(diagnosis.sentence)
    })
    .await;
    let path = stage.directory.path().display();
    let start = format!("An insert waits for the disk: the journal in {path} is ");
    let (lag, error) = sentence.strip_prefix(&start).unwrap().split_once(" behind").unwrap();
    assert!(lag.ends_with('s') && error.ends_with(why), "{sentence}");
    assert_eq!((stage.table(0).len(), stage.store_status().commit), (20, commit));
    let hidden = stage.tier.journal_facts(false);
    let why = (state == "failing").then(|| "writes fail".to_owned());
    assert_eq!(hidden, JournalFacts { place: None, error: why }, "no path");
    // Everything else goes on.
    assert_eq!(stage.table(0).mutate(&[(1, 2.0)], &[2]).unwrap(), [0; 0]);
    let mut stream = stage.transport(true).open_sample().await.unwrap();
    stream.request(&request(50, SampleOptions::default())).unwrap();
    assert_eq!(receive(&mut *stream, 50).await.1, None);
    stage.disk.set(|faults| *faults = Faults::default());
    inserting.await.unwrap();
    stage.tier.sync("learner", Vec::new()).await.unwrap();
    let status = stage.store_status();
    assert_eq!((&*status.state, &*status.error), ("ok", ""));
    assert_eq!(stage.removed(0, Removal::Bytes), 0);
    drop(stream);
    let stage = Arc::into_inner(stage).expect("nobody else has it").restart();
    let options = SampleOptions { distinct: true, ..SampleOptions::default() };
    let mut stream = stage.transport(true).open_sample().await.unwrap();
    stream.request(&request(29, options)).unwrap();
    let (mut keys, error) = receive(&mut *stream, 29).await;
    keys.sort_unstable();
    assert_eq!((keys, error), ((1..31).filter(|key| *key != 2).collect(), None));
    let recovered = stage.store_status().recovered.unwrap();
    assert_eq!((recovered.items, &*recovered.notes[0].note), (29, &b"step 7"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_on_a_bad_disk_holds_inserts_back_and_loses_nothing() {
    let full = ": No space left on device (os error 28).";
    let broken = ": Input/output error (os error 5).";
    tokio::join!(
        a_fault_costs_nothing(|faults| faults.bytes_per_second = Some(0), "behind", "."),
        a_fault_costs_nothing(|faults| faults.write_error = Some(Errno::NOSPC), "failing", full),
        a_fault_costs_nothing(|faults| faults.room = Some(300_000), "failing", full),
        a_fault_costs_nothing(|faults| faults.sync_error = Some(Errno::IO), "failing", broken),
    );
}

/// Items of another shard go on while the disk is behind, and are answered when it has them.
async fn a_transfer_is_on_disk(is_local: bool) {
    let stage = Stage::with_journal(tempfile::tempdir().unwrap(), RETRY_AFTER);
    stage.disk.set(|faults| faults.write_error = Some(Errno::IO));
    stage.insert("replay", 1..2).await;
    until(|| (stage.store_status().lag_seconds > 2.0).then_some(())).await;
    let mut sink = stage.transport(is_local).open_transfer().await.unwrap();
    let items = (2..12).map(|key| {
        let trajectory = batch("replay", key).items.swap_remove(0).trajectory;
        let (priority, removal_priority) = (1.0, None);
        StoredItem {
            key,
            priority,
            removal_priority,
            times_sampled: 0,
            inserted_at_ns: 1,
            trajectory,
        }
    });
    sink.send(&"replay".into(), items.collect()).await.unwrap();
    let waits = || {
        let state = stage.tier.files.journal().unwrap().state.lock();
        (stage.table(0).len() == 11 && !state.waiting.is_empty()).then_some(())
    };
    let mut answer = sink.finish();
    tokio::select! {
        answer = &mut answer => panic!("nothing is on disk: {answer:?}"),
        () = until(waits) => {}
    }
    stage.disk.set(|faults| *faults = Faults::default());
    assert_eq!(answer.await.unwrap().num_added, 10);
    // What comes to the disk from now on is lost.
    stage.disk.set(|faults| faults.write_error = Some(Errno::IO));
    stage.insert("replay", 12..13).await;
    drop(sink);
    assert_eq!(stage.restart().table(0).len(), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_is_answered_when_it_is_on_disk() {
    tokio::join!(a_transfer_is_on_disk(true), a_transfer_is_on_disk(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_tries_a_disk_again_that_has_failed() {
    let hour = Duration::from_secs(3600);
    let stage = Stage::with_journal(tempfile::tempdir().unwrap(), hour);
    stage.disk.set(|faults| faults.write_error = Some(Errno::NOSPC));
    stage.insert("replay", 1..11).await;
    until(|| (stage.store_status().state == "failing").then_some(())).await;
    stage.disk.set(|faults| *faults = Faults::default());
    let synced = stage.tier.sync("learner", Vec::new());
    tokio::time::timeout(hour / 60, synced).await.expect("it does not wait for an hour").unwrap();
    assert_eq!(stage.store_status().state, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_while_its_disk_hangs() {
    let stage = Arc::new(Stage::with_journal(tempfile::tempdir().unwrap(), RETRY_AFTER));
    stage.insert("replay", 1..11).await;
    stage.tier.sync("learner", Vec::new()).await.unwrap();
    stage.disk.set(|faults| faults.bytes_per_second = Some(0));
    stage.insert("replay", 11..21).await;
    let tier = Arc::clone(&stage.tier);
    let mut synced = Box::pin(tier.sync("learner", Vec::new()));
    assert!(synced.as_mut().now_or_never().is_none());
    let stopping = Arc::clone(&stage);
    let stopped = tokio::task::spawn_blocking(move || stopping.server.stop());
    let ended = tokio::time::timeout(Duration::from_secs(60), stopped).await;
    ended.expect("it does not wait for the disk").unwrap();
    assert_eq!(stage.store_status().state, "behind");
    // A disk that answers after all still gets what was confirmed.
    stage.disk.set(|faults| *faults = Faults::default());
    synced.await.unwrap();
    let stage = Arc::into_inner(stage).expect("nobody else has it").restart();
    assert_eq!(stage.table(0).len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_while_its_disk_fails_leaves_the_last_commit() {
    let stage = Stage::with_journal(tempfile::tempdir().unwrap(), RETRY_AFTER);
    stage.insert("replay", 1..11).await;
    let synced = stage.tier.sync("learner", Vec::new()).await.unwrap();
    stage.disk.set(|faults| faults.write_error = Some(Errno::NOSPC));
    stage.insert("replay", 11..21).await;
    let waiting = tokio::spawn({
        let tier = Arc::clone(&stage.tier);
        async move { tier.sync("learner", Vec::new()).await }
    });
    until(|| (stage.store_status().state == "failing").then_some(())).await;
    let stage = tokio::task::spawn_blocking(move || stage.restart()).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    let recovered = stage.store_status().recovered.unwrap();
    assert_eq!((recovered.commit, recovered.items), (synced.commit as i64, 10));
}
