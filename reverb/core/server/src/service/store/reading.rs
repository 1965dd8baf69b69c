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

/// Largest number of bytes that the calling thread takes from the page cache.
const MAX_BYTES_HERE: u64 = 512 << 10;

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

impl Missing {
    fn file(&self) -> (u32, u64) {
        (self.place.file.number(), self.place.offset)
    }

    fn bytes(&self) -> u64 {
        self.chunk.payload_len() as u64
    }

    fn end(&self) -> u64 {
        self.place.offset + self.bytes()
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
                    let (chunk, positions) = (chunk.clone(), vec![position]);
                    missing.push(Missing { chunk, place, positions });
                    None
                }
                // It was forgotten in between, or is lost: `load` knows.
                (None, None) => Some(chunk.load()),
                (resident, _) => resident,
            });
        }
        if !missing.is_empty() {
            let put = |one: &Missing, read: &Result<Chunk>| {
                for &position in &one.positions {
                    loaded[position] = Some(read.clone());
                }
            };
            self.read_all(missing, put).await;
        }
        let unread = || Err(Error::internal("A read of the store was not finished."));
        loaded.into_iter().map(|chunk| chunk.unwrap_or_else(unread)).collect()
    }

    /// Reads what is missing, each chunk once.
    async fn read_all(
        &self,
        mut missing: Vec<Missing>,
        mut put: impl FnMut(&Missing, &Result<Chunk>),
    ) {
        missing.sort_unstable_by_key(Missing::file);
        missing.dedup_by(|next, one| {
            let is_same = next.chunk.is_same(&one.chunk);
            if is_same {
                one.positions.append(&mut next.positions);
            }
            is_same
        });
        // To wake a thread takes longer than to copy this from the page cache.
        if missing.iter().map(Missing::bytes).sum::<u64>() <= MAX_BYTES_HERE {
            let read = read_part(&missing, false);
            missing.iter().zip(&read).for_each(|(one, read)| put(one, read));
            missing.drain(..read.len());
        }
        let mut tasks = Vec::new();
        for part in parts(missing) {
            let threads = Arc::clone(&self.threads);
            // Futures of this process may be polled by any thread, without a runtime.
            tasks.push(self.runtime.spawn(async move {
                let _thread = threads.acquire_owned().await;
                let read = move || (read_part(&part, true), part);
                tokio::task::spawn_blocking(read).await
            }));
        }
        for task in tasks {
            if let Ok(Ok((read, part))) = task.await {
                part.iter().zip(&read).for_each(|(one, read)| put(one, read));
            }
        }
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
    let bytes: u64 = missing.iter().map(Missing::bytes).sum();
    let number = (bytes / MIN_THREAD_BYTES).clamp(1, MAX_THREADS as u64);
    let mut parts: Vec<Vec<Missing>> = Vec::new();
    let mut part_bytes = bytes;
    for one in missing {
        if part_bytes * number >= bytes {
            part_bytes = 0;
            parts.push(Vec::new());
        }
        part_bytes += one.bytes();
        parts.last_mut().expect("the first begins one").push(one);
    }
    parts
}

/// Reads chunks in the order of their places, neighbours at once. If it may not wait, it ends
/// before the first that is not in the page cache.
fn read_part(missing: &[Missing], may_wait: bool) -> Vec<Result<Chunk>> {
    let mut read = Vec::with_capacity(missing.len());
    let mut rest = missing;
    while let [first, ..] = rest {
        let (number, begin) = first.file();
        let mut end = first.end();
        let more = rest[1..].iter().take_while(|next| {
            let is_near = next.place.file.number() == number
                && next.place.offset <= end + MAX_GAP
                && next.end() - begin <= MAX_READ_BYTES;
            end = end.max(if is_near { next.end() } else { 0 });
            is_near
        });
        let (together, others) = rest.split_at(1 + more.count());
        let is_alone = together.len() == 1;
        let mut buffer = vec![0; if is_alone && may_wait { 0 } else { (end - begin) as usize }];
        let file = &first.place.file;
        let is_read = if may_wait {
            !is_alone && file.read_exact_at(&mut buffer, begin).is_ok()
        } else {
            file.read_cached_at(&mut buffer, begin)
        };
        if !is_read && !may_wait {
            break;
        }
        let bytes = Bytes::from(buffer);
        read.extend(together.iter().map(|Missing { chunk, place, .. }| {
            if !is_read {
                // Read alone it says what is wrong.
                return chunk.load();
            }
            let at = (place.offset - begin) as usize;
            chunk.plain_of(bytes.slice(at..at + chunk.payload_len()))
        }));
        rest = others;
    }
    read
}
