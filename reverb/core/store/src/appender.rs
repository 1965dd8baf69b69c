// SPDX-License-Identifier: Apache-2.0
//! The data file that is written: payloads together, heads, syncs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use reverb_data::{Chunk, DataFile, PAYLOAD_ALIGNMENT, Place};
use reverb_files::DiskFile;

use crate::head::{FileKind, HEAD_BYTES, Head};
use crate::open_file::OpenFile;
use crate::queue::{Refusal, Task, Written};
use crate::store::Shared;

/// A payload is never written to a page that was synced before: a write that is torn would take
/// what was on disk with it.
const PAGE_BYTES: u64 = 4096;

/// Appends payloads to data files.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    current: Option<Current>,
    /// Full files that are not synced.
    unsynced: Vec<Current>,
    /// Payloads that are written together, and whose they are.
    buffer: Vec<u8>,
    entries: Vec<Entry>,
    /// Those that were written, and where.
    written: Vec<(Entry, Arc<DataFile>, u64)>,
}

/// The file that is written.
#[derive(Debug)]
struct Current {
    data: Arc<DataFile>,
    file: Arc<dyn DiskFile>,
    end: u64,
    /// What lies before is on disk; 0 if its name may not be.
    synced_end: u64,
    /// It is closed at this size.
    most_bytes: u64,
}

impl Current {
    /// Nothing more is written to it. It stays while there is a place in it.
    fn close(&self, shared: &Shared) {
        shared.files.lock().close(self.data.number());
    }
}

#[derive(Debug)]
struct Entry {
    chunk: Chunk,
    task: Task,
    /// Position in the buffer.
    at: usize,
    crc: u32,
}

impl Appender {
    /// Returns true if this chunk waits to be written.
    pub(crate) fn has(&self, chunk: &Chunk) -> bool {
        self.entries.iter().any(|entry| entry.chunk.is_same(chunk))
    }

    /// Writes a payload with those that come next, or now.
    pub(crate) fn push(
        &mut self,
        shared: &Shared,
        chunk: Chunk,
        payload: &[u8],
        task: Task,
    ) -> Written {
        let most_bytes = shared.write_bytes();
        let is_other = self
            .entries
            .last()
            .is_some_and(|entry| (entry.task == Task::Move) != (task == Task::Move));
        if is_other || self.buffer.len() + payload.len() > most_bytes {
            self.flush(shared)?;
        }
        let entry = Entry { chunk, task, at: self.buffer.len(), crc: crc32c::crc32c(payload) };
        if payload.len() > most_bytes {
            let (file, offset) = self.append(shared, payload, task)?;
            self.written.push((entry, file, offset));
        } else {
            self.entries.push(entry);
            self.buffer.extend_from_slice(payload);
            self.buffer.resize(self.buffer.len().next_multiple_of(PAYLOAD_ALIGNMENT as usize), 0);
        }
        Ok(())
    }

    /// Writes what waits.
    pub(crate) fn flush(&mut self, shared: &Shared) -> Written {
        let Some(Entry { task, .. }) = self.entries.first() else { return Ok(()) };
        let (task, buffer) = (*task, std::mem::take(&mut self.buffer));
        let appended = self.append(shared, &buffer, task);
        self.buffer = buffer;
        let (file, offset) = appended?;
        let written = self.entries.drain(..).map(|entry| (entry, file.clone(), offset));
        self.written.extend(written);
        self.buffer.clear();
        Ok(())
    }

    /// Tells the chunks that were written where they are.
    pub(crate) fn set_places(&mut self) {
        for (Entry { chunk, task, at, crc }, file, offset) in self.written.drain(..) {
            chunk.set_place(Place { file, offset: offset + at as u64, crc });
            if task == Task::WriteAndForget {
                chunk.forget();
            }
        }
    }

    /// Brings what was written to the disk.
    pub(crate) fn sync(&mut self, shared: &Shared) -> Written {
        let files = self.unsynced.iter_mut().chain(&mut self.current);
        let mut is_new = false;
        for file in files.filter(|file| file.synced_end < file.end) {
            let number = file.data.number();
            let rest = file.end.next_multiple_of(PAGE_BYTES) - file.end;
            let zeros = &[0; PAGE_BYTES as usize][..rest as usize];
            write_at(shared, &*file.file, zeros, &mut file.end)
                .map_err(|error| shared.failed("write", number, error))?;
            shared
                .counts
                .sync(&*file.file)
                .map_err(|error| shared.failed("sync", number, error))?;
            is_new |= file.synced_end == 0;
            if !is_new {
                file.synced_end = file.end;
            }
        }
        if is_new {
            shared.sync_directory()?;
        }
        if let Some(current) = &mut self.current {
            current.synced_end = current.end;
        }
        self.unsynced.clear();
        Ok(())
    }

    /// Forgets what was not brought to its end. With `cut`, files lose what was not synced, and no
    /// more is written to them: nothing refers to it, and a sync that has failed cannot be
    /// repeated.
    pub(crate) fn give_up(&mut self, shared: &Shared, cut: bool) {
        self.buffer.clear();
        self.entries.clear();
        self.written.clear();
        if !cut {
            return;
        }
        for file in self.unsynced.drain(..).chain(self.current.take()) {
            file.close(shared);
            if file.synced_end < file.end {
                let _ = file.file.set_len(file.synced_end);
                let bytes = file.synced_end.saturating_sub(HEAD_BYTES as u64);
                shared.files.lock().set_bytes(file.data.number(), bytes);
            }
        }
    }

    /// Writes bytes behind those of the current file, or to a new one.
    fn append(
        &mut self,
        shared: &Shared,
        bytes: &[u8],
        task: Task,
    ) -> Written<(Arc<DataFile>, u64)> {
        let is_move = task == Task::Move;
        self.choose_file(shared, bytes.len(), is_move)?;
        let current = self.current.as_mut().expect("it was chosen");
        let offset = current.end;
        let written = write_at(shared, &*current.file, bytes, &mut current.end);
        current.end = current.end.next_multiple_of(PAYLOAD_ALIGNMENT);
        let data = current.data.clone();
        shared.files.lock().set_bytes(data.number(), current.end - HEAD_BYTES as u64);
        if let Err(error) = written {
            if let Some(failed) = self.current.take_if(|_| !shared.directory.is_journal) {
                failed.close(shared);
            }
            return Err(shared.failed("write", data.number(), error));
        }
        let counts = &shared.counts;
        let counter = if is_move { &counts.moved_bytes } else { &counts.written_bytes };
        counter.fetch_add(bytes.len() as u64, Relaxed);
        // A journal writes again when a commit is on disk.
        if !shared.directory.is_journal && shared.queue.lock().end_trouble(is_move) {
            tracing::info!("store {}: writes again", shared.directory.path.display());
        }
        Ok((data, offset))
    }

    /// Makes the current file one for so many bytes, if there is room for them.
    fn choose_file(&mut self, shared: &Shared, num_bytes: usize, is_move: bool) -> Written {
        if let Some(full) = self.current.take_if(|current| current.end >= current.most_bytes) {
            full.close(shared);
            if shared.directory.is_journal {
                self.unsynced.push(full);
            }
        }
        let most_bytes = shared.file_bytes();
        let kept_back = if is_move { 0 } else { shared.kept_back() };
        // What a journal is given was confirmed: who gives it inserts no more when it is full.
        let may_refuse = !shared.directory.is_journal;
        if may_refuse && shared.room() < (num_bytes + HEAD_BYTES) as u64 + kept_back {
            return Err(Refusal::Full);
        }
        if self.current.is_none() {
            self.current = Some(create(shared, most_bytes)?);
        }
        Ok(())
    }
}

fn create(shared: &Shared, most_bytes: u64) -> Written<Current> {
    let directory = &shared.directory;
    let number = shared.files.lock().take_number();
    let path = directory.file(FileKind::Data, number);
    let file = directory.disk.create(&path);
    let file = file.map_err(|error| shared.failed("create", number, error))?;
    let (counts, waker) = (shared.counts.clone(), shared.waker.clone());
    let open = OpenFile { file: file.clone(), counts, waker };
    let data = DataFile::new(number, path, Box::new(open));
    shared.files.lock().add(&data);
    let mut current = Current { data, file, end: 0, synced_end: 0, most_bytes };
    let head = Head::new(FileKind::Data, directory, number).to_bytes();
    if let Err(error) = write_at(shared, &*current.file, &head, &mut current.end) {
        current.close(shared);
        return Err(shared.failed("write", number, error));
    }
    Ok(current)
}

/// Writes all bytes at `end`, which moves behind what was written.
pub(crate) fn write_at(
    shared: &Shared,
    file: &dyn DiskFile,
    bytes: &[u8],
    end: &mut u64,
) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(shared.write_bytes())];
        shared.counts.begin_write();
        let written = file.write_at(piece, *end);
        shared.counts.end_write(*written.as_ref().unwrap_or(&0));
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(num_bytes) => {
                *end += num_bytes as u64;
                rest = &rest[num_bytes..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
