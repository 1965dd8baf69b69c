// SPDX-License-Identifier: Apache-2.0
//! Reads payloads of disk chunks back: many at a time, in the order of their places.

use std::sync::Arc;

use bytes::Bytes;
use reverb_base::{Error, Result};
use reverb_data::{Chunk, Place, Sampled, Trajectory};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Threads that read. They are others than those of calls that list or configure, so a disk that
/// hangs does not stop these.
const MAX_THREADS: usize = 8;

/// Payloads at most this far apart are read at once: those of a stack of frames.
const MAX_GAP: u64 = 16 << 10;

/// Largest number of bytes that are read at once, unless one payload has more.
const MAX_READ_BYTES: u64 = 1 << 20;

/// Smallest number of bytes for which another thread is worth its wake.
const MIN_THREAD_BYTES: u64 = 512 << 10;

/// Reads payloads on threads of its own.
#[derive(Debug)]
pub(crate) struct Reading {
    runtime: Handle,
    threads: Arc<Semaphore>,
}

/// A disk chunk without its payload in memory, and the positions of the caller that want it.
struct Missing {
    chunk: Chunk,
    place: Place,
    positions: Vec<usize>,
}

type Read = (Vec<usize>, Result<Chunk>);

impl Missing {
    fn file(&self) -> (u32, u64) {
        (self.place.file.number(), self.place.offset)
    }

    fn end(&self) -> u64 {
        self.place.offset + self.chunk.payload_len() as u64
    }
}

impl Reading {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, threads: Arc::new(Semaphore::new(MAX_THREADS)) }
    }

    /// The plain chunks of these, in their order. Waits for the disk unless all of them are in
    /// memory. Cancel safe.
    pub(crate) async fn load(&self, chunks: &[Chunk]) -> Vec<Result<Chunk>> {
        let mut loaded: Vec<Option<Result<Chunk>>> = Vec::with_capacity(chunks.len());
        let mut missing = Vec::new();
        for (position, chunk) in chunks.iter().enumerate() {
            let resident = chunk.resident().map(Ok);
            loaded.push(match (resident, chunk.place()) {
                (None, Some(place)) => {
                    let chunk = chunk.clone();
                    missing.push(Missing { chunk, place, positions: vec![position] });
                    None
                }
                // It was forgotten in between, or is lost: `load` knows.
                (None, None) => Some(chunk.load()),
                (resident, _) => resident,
            });
        }
        if !missing.is_empty() {
            for (positions, read) in self.read_all(missing).await {
                for position in positions {
                    loaded[position] = Some(read.clone());
                }
            }
        }
        let unread = || Err(Error::internal("A read of the store was not finished."));
        loaded.into_iter().map(|chunk| chunk.unwrap_or_else(unread)).collect()
    }

    /// Reads what is missing, each chunk once.
    async fn read_all(&self, mut missing: Vec<Missing>) -> Vec<Read> {
        missing.sort_by_key(Missing::file);
        missing.dedup_by(|next, one| {
            let is_same = next.chunk.is_same(&one.chunk);
            if is_same {
                one.positions.append(&mut next.positions);
            }
            is_same
        });
        let mut tasks = Vec::new();
        for part in parts(missing) {
            let threads = Arc::clone(&self.threads);
            // Futures of this process may be polled by any thread, without a runtime.
            tasks.push(self.runtime.spawn(async move {
                let _thread = threads.acquire_owned().await;
                tokio::task::spawn_blocking(move || read_part(part)).await
            }));
        }
        let mut all = Vec::new();
        for task in tasks {
            if let Ok(Ok(read)) = task.await {
                all.extend(read);
            }
        }
        all
    }

    /// Replaces the chunks of samples by plain ones. Samples of which a payload is lost are left
    /// out of the list, and returned with the reason.
    pub(crate) async fn load_samples(&self, samples: &mut Vec<Sampled>) -> Vec<(u64, Error)> {
        let has_disk_chunk =
            |sample: &Sampled| sample.trajectory.chunks().iter().any(Chunk::is_disk_chunk);
        if !samples.iter().any(has_disk_chunk) {
            return Vec::new();
        }
        let chunks: Vec<Chunk> =
            samples.iter().flat_map(|sample| sample.trajectory.chunks()).cloned().collect();
        let mut loaded = self.load(&chunks).await.into_iter();
        let mut lost = Vec::new();
        samples.retain_mut(|sample| {
            let own: Vec<_> = loaded.by_ref().take(sample.trajectory.chunks().len()).collect();
            match with_plain(&sample.trajectory, own) {
                Ok(trajectory) => {
                    sample.trajectory = trajectory;
                    true
                }
                Err(error) => {
                    lost.push((sample.key, error));
                    false
                }
            }
        });
        lost
    }
}

fn with_plain(trajectory: &Trajectory, chunks: Vec<Result<Chunk>>) -> Result<Trajectory> {
    Ok(trajectory.with_chunks(chunks.into_iter().collect::<Result<_>>()?))
}

/// Divides chunks, which are in the order of their places, among threads.
fn parts(missing: Vec<Missing>) -> Vec<Vec<Missing>> {
    let bytes: u64 = missing.iter().map(|one| one.chunk.payload_len() as u64).sum();
    let number = (bytes / MIN_THREAD_BYTES).clamp(1, MAX_THREADS as u64);
    let mut parts: Vec<Vec<Missing>> = vec![Vec::new()];
    let mut part_bytes = 0;
    for one in missing {
        if part_bytes * number >= bytes {
            part_bytes = 0;
            parts.push(Vec::new());
        }
        part_bytes += one.chunk.payload_len() as u64;
        parts.last_mut().expect("there is one").push(one);
    }
    parts
}

/// Reads chunks in the order of their places, neighbours at once.
fn read_part(missing: Vec<Missing>) -> Vec<Read> {
    let mut read = Vec::with_capacity(missing.len());
    let mut rest = missing.into_iter().peekable();
    while let Some(first) = rest.next() {
        let (file, begin) = first.file();
        let mut end = first.end();
        let mut together = vec![first];
        while let Some(next) = rest.next_if(|next| {
            next.place.file.number() == file
                && next.place.offset <= end + MAX_GAP
                && next.end() - begin <= MAX_READ_BYTES
        }) {
            end = end.max(next.end());
            together.push(next);
        }
        read_together(together, begin, end, &mut read);
    }
    read
}

/// Reads neighbours at once. A chunk that does not come out right is read alone, which finds the
/// reason, or its new place if it was moved meanwhile.
fn read_together(together: Vec<Missing>, begin: u64, end: u64, out: &mut Vec<Read>) {
    let [first, ..] = &together[..] else { return };
    let mut bytes = Bytes::new();
    if together.len() > 1 {
        let mut buffer = vec![0; (end - begin) as usize];
        if first.place.file.read_exact_at(&mut buffer, begin).is_ok() {
            bytes = buffer.into();
        }
    }
    for Missing { chunk, place, positions } in together {
        let at = (place.offset - begin) as usize;
        let plain = (!bytes.is_empty())
            .then(|| chunk.plain_of(bytes.slice(at..at + chunk.payload_len())).ok())
            .flatten();
        out.push((positions, plain.map_or_else(|| chunk.load(), Ok)));
    }
}
