// SPDX-License-Identifier: Apache-2.0

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use reverb_base::ErrorKind;

use super::*;
use crate::account::allocated_bytes;
use crate::chunk::{ChunkBuilder, SequenceRange};
use crate::disk::data_file::{DataFile, ReadAt};
use crate::{
    DType, ItemSpec, ItemValidator, ServerAccount, Shape, TableAccount, Tensor, TensorData,
    Trajectory, TrajectoryBuilder, free_all,
};

/// A file in memory.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl ReadAt for Memory {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.0.lock();
        let found = file.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A data file that chunks are written to.
struct Written {
    memory: Memory,
    file: Arc<DataFile>,
}

impl Written {
    fn new(number: u32) -> Self {
        let memory = Memory::default();
        let path = PathBuf::from(format!("/replay/data-{number:010}.seg"));
        Self { file: DataFile::new(number, path, Box::new(memory.clone())), memory }
    }

    fn write(&self, chunk: &Chunk) {
        let plain = chunk.load().unwrap();
        let payload = plain.payload();
        let mut bytes = self.memory.0.lock();
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(&payload);
        let len = bytes.len().next_multiple_of(8);
        bytes.resize(len, 0xee);
        drop(bytes);
        let crc = crc32c::crc32c(&payload);
        chunk.set_place(Place { file: Arc::clone(&self.file), offset, crc });
    }
}

/// Tensors of values that compress, or of noise.
fn chunk(key: u64, tensors: &[(DType, Vec<usize>)], delta: bool, noise: bool) -> Chunk {
    let mut builder = ChunkBuilder::new(delta);
    let mut state = key as u32;
    let mut value = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if noise { (state >> 24) as u8 } else { 7 }
    };
    for (dtype, shape) in tensors {
        let data = if *dtype == DType::String {
            let count = Tensor::num_elements(shape).unwrap();
            TensorData::Strings((0..count).map(|i| vec![value(); i % 5]).collect())
        } else {
            let len = Tensor::num_bytes(*dtype, shape).unwrap();
            TensorData::Bytes((0..len).map(|_| value()).collect())
        };
        builder.push(&Tensor { dtype: *dtype, shape: Shape::from_slice(shape), data });
    }
    let range = SequenceRange { episode_id: key + 5, start: -3, end: 8, sparse: noise };
    builder.finish(key, range)
}

fn frame(key: u64) -> Chunk {
    chunk(key, &[(DType::UInt8, vec![1, 40, 40])], false, true)
}

fn on_disk(plain: &Chunk) -> Chunk {
    Chunk::on_disk(plain, &mut HeadsCache::default()).unwrap()
}

fn item(chunks: &[&Chunk]) -> Trajectory {
    let mut builder = TrajectoryBuilder::new();
    for chunk in chunks {
        builder.slice(chunk, 0, 0, 1);
    }
    builder.end_column(false);
    builder.finish().unwrap()
}

fn tensors() -> impl Strategy<Value = Vec<(DType, Vec<usize>)>> {
    let dtypes = vec![DType::UInt8, DType::Int32, DType::Float64, DType::String];
    let shape = (0usize..5, prop::collection::vec(0usize..30, 0..3))
        .prop_map(|(rows, rest)| [vec![rows], rest].concat());
    prop::collection::vec((prop::sample::select(dtypes), shape), 0..5)
}

/// What is known of the tensors without values.
fn heads(chunk: &Chunk) -> Vec<Result<(DType, usize, Vec<usize>)>> {
    let head = |index| {
        let head = chunk.head(index)?;
        Ok((head.dtype, head.num_rows()?, head.row_shape().to_vec()))
    };
    (0..=chunk.num_tensors()).map(head).collect()
}

proptest! {
    /// Everything but the values is known without the payload, and the payload comes back.
    #[test]
    fn a_chunk_comes_back_as_it_was(
        chunks in prop::collection::vec((tensors(), any::<bool>(), any::<bool>()), 1..10),
    ) {
        let file = Written::new(1);
        let mut cache = HeadsCache::default();
        for (key, (tensors, delta, noise)) in chunks.iter().enumerate() {
            let plain = chunk(key as u64, tensors, *delta, *noise);
            let Some(disk) = Chunk::on_disk(&plain, &mut cache) else {
                prop_assert!(plain.payload_len() <= 1024);
                continue;
            };
            prop_assert!(plain.payload_len() > 1024);
            file.write(&disk);
            for forgotten in [false, true] {
                prop_assert!(!forgotten || disk.forget());
                prop_assert_eq!(disk.resident().is_none(), forgotten);
                let head = |chunk: &Chunk| {
                    (chunk.key(), chunk.range(), chunk.is_delta_encoded(), chunk.payload_len())
                };
                prop_assert_eq!(head(&disk), head(&plain));
                prop_assert_eq!(heads(&disk), heads(&plain));
                let loaded = disk.load().unwrap();
                prop_assert_eq!(head(&loaded), head(&plain));
                prop_assert_eq!(loaded.payload(), plain.payload());
            }
            prop_assert!(!disk.is_lost());
        }
    }

    /// Items of a disk chunk are valid, and fit into batches, as those of its plain chunk do; also
    /// if the chunk is damaged.
    #[test]
    fn items_are_checked_as_those_of_plain_chunks(
        tensors in tensors(), delta in any::<bool>(), noise in any::<bool>(),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        slices in prop::collection::vec(((0usize..5, 0usize..5, 0usize..5), any::<bool>()), 1..20),
    ) {
        let whole = chunk(1, &tensors, delta, noise);
        let mut payload = whole.payload().into_owned();
        if let (Some((at, byte)), false) = (damage, payload.is_empty()) {
            // Damage matters most in the headers.
            let at = at.index(payload.len().min(60));
            payload[at] = byte;
        }
        let plain = Chunk::from_slice(1, whole.range(), delta, &payload);
        let Some(disk) = Chunk::on_disk(&plain, &mut HeadsCache::default()) else { return Ok(()) };
        Written::new(1).write(&disk);
        prop_assert!(disk.forget());
        let (mut validator, mut spec) = (ItemValidator::default(), None::<ItemSpec>);
        for ((tensor, offset, length), squeeze) in slices {
            let item = |chunk: &Chunk| {
                let mut builder = TrajectoryBuilder::new();
                builder.slice(chunk, tensor, offset, length);
                builder.end_column(squeeze);
                builder.finish().unwrap()
            };
            let (of_disk, of_plain) = (item(&disk), item(&plain));
            let expected = of_plain.validate();
            prop_assert_eq!(validator.validate(&of_disk), expected.clone());
            prop_assert_eq!(of_disk.validate(), expected);
            let specs = [&of_disk, &of_plain].map(ItemSpec::from_trajectory);
            prop_assert_eq!(&specs[0], &specs[1]);
            let ((Some(first), _) | (None, Ok(first))) = (&spec, &specs[0]) else { continue };
            prop_assert_eq!(first.check(&of_disk), first.check(&of_plain));
            spec = Some(first.clone());
        }
    }
}

#[test]
fn a_chunk_on_disk_takes_144_bytes() {
    let mut cache = HeadsCache::default();
    let chunks = [1, 2].map(|key| {
        let plain = frame(key);
        let disk = Chunk::on_disk(&plain, &mut cache).unwrap();
        assert_eq!(disk.payload_bytes(), plain.bytes());
        disk
    });
    let own = chunks.each_ref().map(|chunk| (chunk.bytes() - chunk.payload_bytes()) as usize);
    println!(
        "a disk chunk takes {} bytes beside its payload, the first of them {}",
        own[1], own[0]
    );
    assert_eq!(own[1], 64 + 80, "header and box");
    assert_eq!(allocated_bytes(size_of::<DiskPayload>()), 80);
    assert_eq!(own[0], own[1] + chunks[0].disk().unwrap().heads().0.bytes(), "with the heads");
    assert!(own[0] < own[1] + 200);
}

#[test]
fn lengths_and_values_make_no_new_heads() {
    let mut cache = HeadsCache::default();
    let mut of = |rows: usize, width: usize| {
        let shapes = [(DType::UInt8, vec![rows, width]), (DType::Float32, vec![rows])];
        let plain = chunk((rows + width) as u64, &shapes, false, true);
        Chunk::on_disk(&plain, &mut cache).unwrap()
    };
    let heads_of = |chunk: &Chunk| Arc::clone(chunk.disk().unwrap().heads().0);
    let (one, longer, wider) = (of(1, 2000), of(9, 2000), of(1, 2001));
    assert!(Arc::ptr_eq(&heads_of(&one), &heads_of(&longer)));
    assert!(!Arc::ptr_eq(&heads_of(&one), &heads_of(&wider)));
    assert_eq!(longer.head(1).unwrap().num_rows(), Ok(9));
    let error = one.head(2).map(drop).unwrap_err();
    assert_eq!(error, one.load().unwrap().head(2).map(drop).unwrap_err());
}

#[test]
fn small_chunks_damaged_ones_and_those_with_large_heads_stay_in_memory() {
    let mut cache = HeadsCache::default();
    let mut is_none = |plain: &Chunk| Chunk::on_disk(plain, &mut cache).is_none();
    let bytes = |len: usize| chunk(1, &[(DType::UInt8, vec![1, len])], false, true);
    let head = bytes(1000).payload_len() - 1000;
    assert!(is_none(&bytes(1024 - head)));
    assert!(!is_none(&bytes(1025 - head)));
    let many = |count| chunk(1, &vec![(DType::UInt8, vec![1, 2]); count], false, true);
    assert!(!is_none(&many(1024)));
    assert!(is_none(&many(1025)));
    let deep = |dims: usize| {
        let shape = [vec![2000], vec![1; dims - 1]].concat();
        chunk(1, &[(DType::UInt8, shape)], false, true)
    };
    assert!(!is_none(&deep(255)));
    assert!(is_none(&deep(256)));
    let whole = frame(1);
    let cut = &whole.payload()[..1500];
    assert!(is_none(&Chunk::from_slice(1, whole.range(), false, cut)));
    assert!(is_none(&on_disk(&whole)), "it is a disk chunk already");
}

#[test]
fn a_wrong_byte_is_found_wherever_it_is() {
    let plain = frame(3);
    let file = Written::new(17);
    file.write(&on_disk(&frame(2)));
    for at in 0..plain.payload_len() {
        let disk = on_disk(&plain);
        disk.set_place(Place {
            file: Arc::clone(&file.file),
            offset: file.memory.0.lock().len() as u64,
            crc: crc32c::crc32c(&plain.payload()),
        });
        let start = file.memory.0.lock().len();
        file.memory.0.lock().extend_from_slice(&plain.payload());
        file.memory.0.lock()[start + at] ^= 1 << (at % 8);
        assert!(disk.forget() && !disk.is_lost());
        let error = disk.load().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        let text = format!("data-0000000017.seg at {start}: checksum differs");
        assert_eq!(error.message(), text);
        assert!(disk.is_lost() && disk.resident().is_none());
        file.memory.0.lock().truncate(start);
    }
    let disk = on_disk(&plain);
    file.write(&disk);
    disk.forget();
    let bytes = Bytes::copy_from_slice(&plain.payload());
    assert!(disk.plain_of(bytes.clone()).unwrap().has_payload_of(&plain));
    let text = disk.plain_of(bytes.slice(1..)).unwrap_err().message().to_owned();
    let len = plain.payload_len();
    assert!(text.ends_with(&format!(": {} bytes instead of {len}", len - 1)), "{text}");
    assert!(disk.is_lost());
}

#[test]
fn a_file_that_ends_too_early_is_a_loss() {
    let (disk, file) = (on_disk(&frame(1)), Written::new(2));
    file.write(&disk);
    disk.forget();
    let last = file.memory.0.lock().len() - 100;
    file.memory.0.lock().truncate(last);
    let error = disk.load().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().starts_with("data-0000000002.seg at 0: "), "{error}");
    assert!(disk.is_lost());
}

#[test]
fn a_file_counts_the_payloads_that_are_there() {
    let (one, another) = (Written::new(1), Written::new(2));
    let chunks = [1, 2, 3].map(|key| on_disk(&frame(key)));
    let each = chunks[0].payload_len().next_multiple_of(8) as u64;
    assert!(!chunks[0].forget(), "it is nowhere else");
    for chunk in &chunks {
        assert!(chunk.place().is_none());
        one.write(chunk);
    }
    assert_eq!((one.file.live_bytes(), another.file.live_bytes()), (3 * each, 0));
    // A forgotten one moves, and is read from its new place.
    assert!(chunks[1].forget() && !chunks[1].forget());
    another.write(&chunks[1]);
    one.memory.0.lock().fill(0);
    assert!(chunks[1].load().unwrap().has_payload_of(&frame(2)));
    assert_eq!((one.file.live_bytes(), another.file.live_bytes()), (2 * each, each));
    // The same file again, as after a failed write.
    another.write(&chunks[1]);
    assert_eq!(another.file.live_bytes(), each);
    let place = chunks[1].place().unwrap();
    assert_eq!((place.file.number(), place.offset), (2, each));
    drop(chunks);
    assert_eq!((one.file.live_bytes(), another.file.live_bytes()), (0, 0));
    // A place that a reader holds keeps the file.
    assert_eq!(Arc::strong_count(&another.file), 2);
}

#[test]
fn disk_chunks_have_the_payload_of_no_other() {
    let plain = frame(1);
    let (one, another) = (on_disk(&plain), on_disk(&plain));
    assert!(one.has_payload_of(&one.clone()));
    assert!(!one.has_payload_of(&another) && !one.has_payload_of(&plain));
    assert!(!plain.has_payload_of(&one));
    assert_eq!((one.shared_payload(), one.layout_index()), (None, None));
    assert!(one.resident().unwrap().is_same(&plain));
    assert!(plain.load().unwrap().is_same(&plain) && plain.resident().unwrap().is_same(&plain));
    assert!(!plain.forget() && !plain.is_lost() && plain.place().is_none());
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "a disk chunk has to be loaded"))]
fn a_disk_chunk_that_is_not_loaded_has_no_values() {
    let disk = on_disk(&frame(1));
    assert_eq!(disk.tensor(0).unwrap_err().kind(), ErrorKind::DataLoss);
    assert!(disk.stored().is_empty());
}

/// An operation on one of some chunks, tables and readers.
#[derive(Debug, Clone, Copy)]
enum Step {
    Charge(usize),
    Add(usize, usize, usize),
    RemoveFirst(usize),
    Write(usize),
    Forget(usize),
    Hold(usize),
    EndReader,
    Drop(usize),
    Move(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let chunk = 0usize..CHUNKS;
    let table = 0usize..TABLES;
    prop_oneof![
        1 => chunk.clone().prop_map(Step::Charge),
        3 => (table.clone(), chunk.clone(), chunk.clone()).prop_map(|(t, a, b)| Step::Add(t, a, b)),
        2 => table.clone().prop_map(Step::RemoveFirst),
        2 => chunk.clone().prop_map(Step::Write),
        2 => chunk.clone().prop_map(Step::Forget),
        1 => chunk.clone().prop_map(Step::Hold),
        1 => Just(Step::EndReader),
        1 => chunk.prop_map(Step::Drop),
        1 => table.prop_map(Step::Move),
    ]
}

const CHUNKS: usize = 4;
const TABLES: usize = 2;
const ITEM_BYTES: u64 = 40;

/// A server with tables, and what streams hold.
struct Accounts {
    server: ServerAccount,
    tables: Vec<(TableAccount, Vec<Trajectory>)>,
    /// Each with the plain chunk's identity. Every third is a plain chunk.
    chunks: Vec<Chunk>,
    readers: Vec<Chunk>,
    file: Written,
    next_key: u64,
    cache: HeadsCache,
}

impl Accounts {
    fn new() -> Self {
        let server = ServerAccount::open();
        let tables = (0..TABLES).map(|_| (TableAccount::open(&server), Vec::new())).collect();
        let mut new = Self {
            server,
            tables,
            chunks: Vec::new(),
            readers: Vec::new(),
            file: Written::new(1),
            next_key: 0,
            cache: HeadsCache::default(),
        };
        new.chunks = (0..CHUNKS).map(|_| new.chunk()).collect();
        new
    }

    /// A chunk that the server has seen, as a stream's.
    fn chunk(&mut self) -> Chunk {
        self.next_key += 1;
        let plain = frame(self.next_key);
        let chunk = match self.next_key % 3 {
            0 => plain,
            _ => Chunk::on_disk(&plain, &mut self.cache).unwrap(),
        };
        self.server.charge(&chunk);
        chunk
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Charge(at) => self.server.charge(&self.chunks[at]),
            Step::Add(table, a, b) => {
                let item = item(&[&self.chunks[a], &self.chunks[b]]);
                let (account, items) = &mut self.tables[table];
                let before = account.bytes();
                let expected = account.would_add(&item, ITEM_BYTES);
                account.add(&item, ITEM_BYTES);
                assert_eq!(account.bytes() - before, expected);
                items.push(item);
            }
            Step::RemoveFirst(table) => {
                let (account, items) = &mut self.tables[table];
                if !items.is_empty() {
                    let item = items.remove(0);
                    account.remove(&item, ITEM_BYTES);
                    free_all(vec![item]);
                }
            }
            Step::Write(at) if self.chunks[at].is_disk_chunk() => self.file.write(&self.chunks[at]),
            Step::Write(_) => {}
            Step::Forget(at) => drop(self.chunks[at].forget()),
            Step::Hold(at) => self.readers.extend(self.chunks[at].resident()),
            Step::EndReader => drop(self.readers.pop()),
            Step::Drop(at) => self.chunks[at] = self.chunk(),
            Step::Move(table) => {
                let elsewhere = ServerAccount::open();
                let (account, _) = &mut self.tables[table];
                account.move_to(&elsewhere);
                account.move_to(&self.server);
                assert_eq!(elsewhere.total(), 0);
            }
        }
    }

    /// Checks all sums against the chunks that are there.
    fn check(&mut self) {
        let mut in_memory: Vec<(usize, u64)> = Vec::new();
        let mut count = |chunk: &Chunk| {
            if chunk.is_disk_chunk() {
                in_memory.push((chunk.identity(), chunk.bytes() - chunk.payload_bytes()));
            }
            if let Some(plain) = chunk.resident() {
                in_memory.push((plain.identity(), plain.bytes()));
            }
        };
        self.chunks.iter().chain(&self.readers).for_each(&mut count);
        let mut items = 0;
        for (account, trajectories) in &mut self.tables {
            account.book();
            let mut own: Vec<&Chunk> = trajectories.iter().flat_map(Trajectory::chunks).collect();
            own.iter().copied().for_each(&mut count);
            own.sort_by_key(|chunk| chunk.identity());
            own.dedup_by_key(|chunk| chunk.identity());
            let sum = |of: fn(&Chunk) -> u64| own.iter().map(|chunk| of(chunk)).sum::<u64>();
            let of_items = trajectories.iter().map(|item| item.bytes() + ITEM_BYTES).sum::<u64>()
                + account.secondary_bytes();
            assert_eq!(account.payload_bytes(), sum(Chunk::payload_bytes));
            let of_chunks = sum(Chunk::bytes) - sum(Chunk::heads_bytes);
            assert_eq!(account.bytes(), of_chunks + of_items);
            assert_eq!(account.num_chunks(), own.len() as u64);
            items += of_items;
        }
        in_memory.sort_unstable();
        in_memory.dedup();
        let chunks: u64 = in_memory.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(self.server.total(), chunks + items);
    }

    fn end(mut self) {
        for table in 0..TABLES {
            while !self.tables[table].1.is_empty() {
                self.run(Step::RemoveFirst(table));
            }
        }
        self.check();
        let server = self.server.clone();
        drop(self);
        assert_eq!(server.total(), 0);
    }
}

proptest! {
    /// At each moment the server counts what is in memory, and tables all of their chunks.
    #[test]
    fn accounts_are_right_wherever_payloads_are(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut accounts = Accounts::new();
        for step in steps {
            accounts.run(step);
            accounts.check();
        }
        accounts.end();
    }
}

/// One thread writes and forgets payloads, another reads, while two tables take and lose items.
#[test]
fn accounts_are_right_while_threads_forget_and_read_payloads() {
    for round in 0..20 {
        let mut accounts = Accounts::new();
        let shared = Mutex::new(accounts.chunks.clone());
        let (file, is_over) = (Written::new(9), AtomicBool::new(false));
        let sweep = |reads: bool| {
            let mut held = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let chunks = shared.lock().clone();
                for chunk in chunks.iter().filter(|chunk| chunk.is_disk_chunk()) {
                    if reads {
                        held.push(chunk.load().unwrap());
                    } else if chunk.place().is_none() {
                        file.write(chunk);
                    } else {
                        chunk.forget();
                    }
                }
                held.truncate(held.len().saturating_sub(3));
            }
        };
        std::thread::scope(|scope| {
            let threads = [false, true].map(|reads| scope.spawn(move || sweep(reads)));
            let mut state = round + 1_u32;
            for _ in 0..2000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let random = |shift: u32, below: usize| (state >> shift) as usize % below;
                let (table, a, b) = (random(4, TABLES), random(8, CHUNKS), random(12, CHUNKS));
                match random(24, 8) {
                    0..3 => accounts.run(Step::Add(table, a, b)),
                    3..6 => accounts.run(Step::RemoveFirst(table)),
                    6 => {
                        // Not charged yet, as from a writer of this process.
                        accounts.next_key += 1;
                        let plain = frame(accounts.next_key);
                        let chunk = Chunk::on_disk(&plain, &mut accounts.cache).unwrap();
                        shared.lock()[a] = chunk.clone();
                        accounts.chunks[a] = chunk;
                        accounts.run(Step::Add(table, a, b));
                    }
                    _ => accounts.run(Step::Move(table)),
                }
            }
            is_over.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap();
            }
        });
        for chunk in &accounts.chunks {
            accounts.server.charge(chunk);
        }
        drop(shared);
        accounts.check();
        accounts.end();
        assert_eq!(file.file.live_bytes(), 0);
    }
}

#[test]
fn a_chunk_is_made_of_its_place_again() {
    let mut cache = HeadsCache::default();
    let shapes = [(DType::UInt8, vec![4, 999]), (DType::Float32, vec![7]), (DType::Bool, vec![0])];
    let plain = chunk(5, &shapes, true, true);
    let disk = Chunk::on_disk(&plain, &mut cache).unwrap();
    let (heads, num_rows) = disk.heads().unwrap();
    let mut bytes = Vec::new();
    heads.put(&mut bytes);
    let parsed = Heads::parse(&bytes).unwrap();
    assert_eq!(*parsed, **heads);
    for end in 0..bytes.len() {
        assert!(Heads::parse(&bytes[..end]).is_err(), "{end}");
    }
    assert!(Heads::parse(&[&bytes[..], &[0]].concat()).is_err());
    let head = (plain.key(), plain.range(), plain.is_delta_encoded());
    let written = Written::new(1);
    written.write(&disk);
    let place = disk.place().unwrap();
    let len = plain.payload_len() as u32;
    let again = Chunk::at_place(head, (&parsed, num_rows), len, place.clone()).unwrap();
    assert!(again.resident().is_none() && again.load().unwrap().has_payload_of(&plain));
    assert_eq!(again.range(), plain.range());
    assert_eq!(again.payload_bytes(), again.load().unwrap().bytes());
    assert_eq!(place.file.live_bytes(), 2 * u64::from(len).next_multiple_of(8));
    let recorded = Recorded { id: 7, log: 1, base: 2 };
    again.set_recorded(recorded);
    assert_eq!((again.recorded(), plain.recorded()), (Some(recorded), None));
    // A row of 2^60 elements.
    let huge = Heads::parse(&[1, 1, 2, 128, 128, 128, 128, 4, 128, 128, 128, 128, 4, 0]).unwrap();
    assert!(Chunk::at_place(head, (&huge, 1), len, place.clone()).is_some());
    assert!(Chunk::at_place(head, (&huge, 9), len, place).is_none());
}
