// SPDX-License-Identifier: Apache-2.0
//! Where chunks come into a server with a store: large ones become disk chunks.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::{Chunk, ChunkMaker, HeadsCache, NewItem, ServerAccount, Trajectory};
use reverb_wire::codec::chunk::RawChunk;

use super::files::Files;

/// Bytes of new disk chunks after which pairs that nobody needs any more are dropped.
const BYTES_BETWEEN_CLEANINGS: usize = 4 << 20;

/// Bytes of payloads that a load gives to the store together.
const BYTES_WRITTEN_TOGETHER: usize = 1 << 20;

/// Makes disk chunks of the chunks of one stream.
///
/// Without a store every chunk stays as it is.
#[derive(Debug, Default)]
pub(crate) struct Adopter {
    maker: ChunkMaker,
    heads: Option<HeadsCache>,
}

impl Adopter {
    pub(crate) fn new(has_store: bool) -> Self {
        let heads = has_store.then(HeadsCache::default);
        Self { maker: ChunkMaker::default(), heads }
    }

    /// The chunk to store of one that arrived in this message.
    #[inline]
    pub(crate) fn make(&mut self, arrived: &RawChunk<'_>, message: &Bytes) -> Chunk {
        let chunk = arrived.to_stored(message, &mut self.maker);
        self.adopt(chunk)
    }

    /// The chunk to store in place of this one.
    #[inline]
    fn adopt(&mut self, chunk: Chunk) -> Chunk {
        match &mut self.heads {
            None => chunk,
            Some(heads) => Chunk::on_disk(&chunk, heads).unwrap_or(chunk),
        }
    }
}

/// Makes disk chunks of the chunks of a checkpoint. They belong to no table while they are read, so
/// the sweep would not find them: from half of the memory on their payloads are written and
/// forgotten here.
pub(crate) struct LoadAdopter<'a> {
    files: &'a Files,
    account: &'a ServerAccount,
    adopter: Adopter,
    /// Bytes of payloads that may still stay in memory.
    room: u64,
    /// Disk chunks to be written together.
    waiting: Vec<Chunk>,
    waiting_bytes: usize,
}

impl<'a> LoadAdopter<'a> {
    pub(crate) fn new(files: &'a Files, account: &'a ServerAccount, max_bytes: u64) -> Self {
        let (adopter, room) = (Adopter::new(true), max_bytes / 2);
        Self { files, account, adopter, room, waiting: Vec::new(), waiting_bytes: 0 }
    }

    /// The chunk to store in place of this one. Waits while the disk is slow.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if there is no room for it, neither in memory nor on the disk.
    pub(crate) fn adopt(&mut self, chunk: Chunk) -> Result<Chunk> {
        let chunk = self.adopter.adopt(chunk);
        if !chunk.is_disk_chunk() {
            return Ok(chunk);
        }
        self.account.charge(&chunk);
        let bytes = chunk.payload_len();
        if let Some(room) = self.room.checked_sub(bytes as u64) {
            self.room = room;
            return Ok(chunk);
        }
        self.waiting.push(chunk.clone());
        self.waiting_bytes += bytes;
        if self.waiting_bytes > BYTES_WRITTEN_TOGETHER {
            self.waiting_bytes = 0;
            if !self.files.write_before_start(std::mem::take(&mut self.waiting)) {
                let status = self.files.status();
                return Err(Error::resource_exhausted(format!(
                    "The checkpoint is larger than half of max_bytes, and the store {} does not \
                     take the rest: it is {}. Make room there, or raise max_bytes.",
                    status.path.display(),
                    status.state.name(),
                )));
            }
        }
        Ok(chunk)
    }
}

/// Makes disk chunks of the chunks of a writer of this process, which keeps its own chunks and may
/// send them again, also to another server. So the server's chunks are others, and a chunk of the
/// writer that comes twice becomes the same disk chunk.
#[derive(Debug, Default)]
pub(crate) struct LocalAdopter {
    adopter: Adopter,
    pairs: Arc<Mutex<Pairs>>,
}

#[derive(Debug, Default)]
struct Pairs {
    /// The writer's chunk and the server's, by the identity of the writer's. Both live as long as
    /// the entry, so the identity is not used again meanwhile.
    chunks: HashMap<usize, (Chunk, Chunk)>,
    new_bytes: usize,
}

/// The pairs of all writers of the process. They keep payloads in memory, which the sweep cannot
/// forget.
#[derive(Debug, Default)]
pub(crate) struct AllPairs(Mutex<Vec<Weak<Mutex<Pairs>>>>);

impl AllPairs {
    /// An adopter whose pairs are among these.
    pub(crate) fn adopter(&self) -> LocalAdopter {
        let made = LocalAdopter { adopter: Adopter::new(true), ..LocalAdopter::default() };
        let mut all = self.0.lock();
        all.retain(|pairs| pairs.strong_count() > 0);
        all.push(Arc::downgrade(&made.pairs));
        made
    }

    /// Drops pairs that nobody needs any more.
    pub(crate) fn clean(&self) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for pairs in all {
            pairs.lock().clean();
        }
    }
}

/// The writer's chunks of the disk chunks that items got, by the identity of the disk chunk.
#[derive(Debug, Default)]
pub(crate) struct Adopted(HashMap<usize, Chunk>);

impl LocalAdopter {
    /// Gives items the server's chunks.
    pub(crate) fn adopt<'a>(
        &mut self,
        trajectories: impl IntoIterator<Item = &'a mut Trajectory>,
    ) -> Adopted {
        let mut adopted = Adopted::default();
        if self.adopter.heads.is_some() {
            for trajectory in trajectories {
                replace_chunks(trajectory, |own| self.chunk(own, &mut adopted));
            }
        }
        adopted
    }

    /// The server's chunk; `None` if it is the same.
    fn chunk(&mut self, own: &Chunk, adopted: &mut Adopted) -> Option<Chunk> {
        let mut pairs = self.pairs.lock();
        if let Some((own, ours)) = pairs.chunks.get(&own.identity()) {
            adopted.0.insert(ours.identity(), own.clone());
            return Some(ours.clone());
        }
        let ours = self.adopter.adopt(own.clone());
        if !ours.is_disk_chunk() {
            return None;
        }
        pairs.new_bytes += own.payload_len();
        if pairs.new_bytes > BYTES_BETWEEN_CLEANINGS {
            pairs.new_bytes = 0;
            pairs.clean();
        }
        pairs.chunks.insert(own.identity(), (own.clone(), ours.clone()));
        adopted.0.insert(ours.identity(), own.clone());
        Some(ours)
    }
}

impl Pairs {
    /// Drops pairs whose plain chunk only the map and the disk chunk hold: no writer can send them
    /// again.
    fn clean(&mut self) {
        self.chunks.retain(|_, (own, ours)| {
            let is_resident = ours.resident().is_some();
            own.reference_count() > 1 + usize::from(is_resident)
        });
    }
}

impl Adopted {
    /// Gives items that come back to their writer its own chunks again: it may send them to another
    /// server, and a disk chunk never leaves its own.
    pub(crate) fn give_back(&self, items: &mut [NewItem]) {
        if self.0.is_empty() {
            // As always without a store.
            return;
        }
        for item in items {
            replace_chunks(&mut item.trajectory, |chunk| self.0.get(&chunk.identity()).cloned());
        }
    }
}

/// Replaces those chunks of a trajectory for which there is another one.
fn replace_chunks(trajectory: &mut Trajectory, mut other: impl FnMut(&Chunk) -> Option<Chunk>) {
    let mut is_changed = false;
    let chunks = trajectory.chunks().iter().map(|chunk| {
        let other = other(chunk);
        is_changed |= other.is_some();
        other.unwrap_or_else(|| chunk.clone())
    });
    let chunks: Vec<Chunk> = chunks.collect();
    if is_changed {
        *trajectory = trajectory.with_chunks(chunks);
    }
}
