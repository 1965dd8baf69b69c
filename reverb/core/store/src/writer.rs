// SPDX-License-Identifier: Apache-2.0
//! The thread that writes payloads to data files and deletes files that are dead.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use reverb_base::byte_size;
use reverb_data::{Chunk, DataFile, PAYLOAD_ALIGNMENT, Place};
use reverb_files::DiskFile;

use crate::head::{HEAD_BYTES, Head};
use crate::open_file::OpenFile;
use crate::queue::{Job, Refusal, Task};
use crate::store::Shared;

/// Time between two warnings that a store is full.
const FULL_WARNED_EVERY: Duration = Duration::from_secs(3600);

/// Writes until the store is closed, then deletes all of its files.
pub(crate) fn run(shared: &Shared) {
    let _end = End(shared);
    let mut writer = Writer {
        shared,
        current: None,
        buffer: Vec::new(),
        entries: Vec::new(),
        full_warned_at: None,
    };
    loop {
        if shared.waker.take_dead_file() {
            writer.delete_dead();
        }
        let mut queue = shared.queue.lock();
        if queue.is_closed {
            break;
        }
        let jobs = queue.take(shared.write_bytes());
        drop(queue);
        if jobs.is_empty() {
            std::thread::park();
        } else {
            writer.work(jobs);
        }
    }
    let numbers = shared.files.lock().numbers();
    writer.delete(numbers);
}

/// Tells who waits that the thread has ended, also if it has panicked.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.is_closed = true;
        queue.has_ended = true;
        let given_up = queue.give_up(true);
        drop(queue);
        self.0.served.notify_all();
        drop(given_up);
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    current: Option<Current>,
    /// Payloads that are written together, and whose they are.
    buffer: Vec<u8>,
    entries: Vec<Entry>,
    full_warned_at: Option<Instant>,
}

/// The file that is written.
struct Current {
    data: Arc<DataFile>,
    file: Arc<dyn DiskFile>,
    end: u64,
    /// It is closed at this size.
    most_bytes: u64,
}

impl Current {
    /// Nothing more is written to it. It stays while there is a place in it.
    fn close(self, shared: &Shared) {
        shared.files.lock().close(self.data.number());
    }
}

struct Entry {
    chunk: Chunk,
    task: Task,
    /// Position in the buffer.
    at: usize,
    crc: u32,
}

impl Entry {
    fn set_place(&self, file: Arc<DataFile>, offset: u64) {
        self.chunk.set_place(Place { file, offset: offset + self.at as u64, crc: self.crc });
        if self.task == Task::WriteAndForget {
            self.chunk.forget();
        }
    }
}

impl Writer<'_> {
    /// Does jobs, and tells those that wait how it went.
    fn work(&mut self, jobs: Vec<Job>) {
        let num_jobs = jobs.len();
        let bytes = jobs.iter().map(|job| job.chunk.payload_len() as u64).sum();
        let result = self.write(jobs);
        // After a failure it would keep chunks alive.
        self.entries.clear();
        let mut given_up = Vec::new();
        let mut is_new = false;
        let mut queue = self.shared.queue.lock();
        queue.done(num_jobs, bytes);
        if let Err(refusal) = &result {
            let retry_at = Instant::now() + self.shared.options.retry_after;
            is_new = queue.set_trouble(refusal, retry_at);
            given_up = queue.give_up(!matches!(refusal, Refusal::Full));
        }
        drop(queue);
        self.shared.served.notify_all();
        drop(given_up);
        if let (Err(refusal), true) = (result, is_new) {
            self.warn(&refusal);
        }
    }

    fn warn(&mut self, refusal: &Refusal) {
        if matches!(refusal, Refusal::Full) {
            // A full store has room again after each removal.
            if self.full_warned_at.is_some_and(|at| at.elapsed() < FULL_WARNED_EVERY) {
                return;
            }
            self.full_warned_at = Some(Instant::now());
        }
        let path = self.shared.directory.path.display();
        match refusal {
            Refusal::Full => tracing::warn!(
                "store {path} is full: its files take {}, so payloads stay in memory",
                byte_size::describe(self.shared.used_bytes())
            ),
            Refusal::Failed { call, path: file, error } => tracing::warn!(
                "store {path}: cannot {call} {}: {error}; payloads stay in memory, and it tries \
                 again each {} s",
                file.display(),
                self.shared.options.retry_after.as_secs()
            ),
        }
    }

    fn write(&mut self, jobs: Vec<Job>) -> Result<(), Refusal> {
        self.buffer.clear();
        let most_bytes = self.shared.write_bytes();
        for Job { chunk, task } in jobs {
            if self.entries.iter().any(|entry| entry.chunk.is_same(&chunk)) {
                // It was given twice, and gets its place now.
                self.write_buffer()?;
            }
            let Some(plain) = self.payload_of(&chunk, task) else { continue };
            let payload = plain.payload();
            let is_other = self
                .entries
                .last()
                .is_some_and(|entry| (entry.task == Task::Move) != (task == Task::Move));
            if is_other || self.buffer.len() + payload.len() > most_bytes {
                self.write_buffer()?;
            }
            let entry = Entry { chunk, task, at: self.buffer.len(), crc: crc32c::crc32c(&payload) };
            if payload.len() > most_bytes {
                let (file, offset) = self.append(&payload, task)?;
                entry.set_place(file, offset);
            } else {
                self.entries.push(entry);
                self.buffer.extend_from_slice(&payload);
                self.buffer
                    .resize(self.buffer.len().next_multiple_of(PAYLOAD_ALIGNMENT as usize), 0);
            }
        }
        self.write_buffer()
    }

    /// The plain chunk with the payload that is to be written; `None` if there is nothing to do.
    fn payload_of(&self, chunk: &Chunk, task: Task) -> Option<Chunk> {
        // The only reference is that of the job: no item needs it.
        if chunk.reference_count() == 1 || chunk.is_lost() {
            return None;
        }
        match (chunk.place(), task) {
            (None, Task::Write | Task::WriteAndForget) => chunk.resident(),
            (Some(place), Task::Move) if self.shared.files.lock().chosen().contains(&place) => {
                chunk.load().ok()
            }
            (Some(_), Task::WriteAndForget) => {
                chunk.forget();
                None
            }
            _ => None,
        }
    }

    fn write_buffer(&mut self) -> Result<(), Refusal> {
        let Some(Entry { task, .. }) = self.entries.first() else { return Ok(()) };
        let (task, buffer) = (*task, std::mem::take(&mut self.buffer));
        let (file, offset) = self.append(&buffer, task)?;
        for entry in self.entries.drain(..) {
            entry.set_place(file.clone(), offset);
        }
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    /// Writes bytes behind those of the current file, or to a new one.
    fn append(&mut self, bytes: &[u8], task: Task) -> Result<(Arc<DataFile>, u64), Refusal> {
        let is_move = task == Task::Move;
        let mut current = self.current_file(bytes.len(), is_move)?;
        let offset = current.end;
        let written = self.write_at(&*current.file, bytes, &mut current.end);
        current.end = current.end.next_multiple_of(PAYLOAD_ALIGNMENT);
        let data = current.data.clone();
        self.shared.files.lock().set_bytes(data.number(), current.end - HEAD_BYTES as u64);
        if let Err(error) = written {
            current.close(self.shared);
            return Err(self.failed("write", data.number(), error));
        }
        self.current = Some(current);
        let counts = &self.shared.counts;
        let counter = if is_move { &counts.moved_bytes } else { &counts.written_bytes };
        counter.fetch_add(bytes.len() as u64, Relaxed);
        if self.shared.queue.lock().end_trouble(is_move) {
            tracing::info!("store {}: writes again", self.shared.directory.path.display());
        }
        Ok((data, offset))
    }

    /// The file for so many bytes, if there is room for them.
    fn current_file(&mut self, num_bytes: usize, is_move: bool) -> Result<Current, Refusal> {
        let current = self.current.take_if(|current| current.end < current.most_bytes);
        if let Some(full) = self.current.take() {
            full.close(self.shared);
        }
        let most_bytes = self.shared.file_bytes();
        // Emptying a file needs room for what lives in it.
        let kept_back = if is_move { 0 } else { most_bytes + most_bytes / 4 };
        let room = self.shared.room();
        if room < (num_bytes + HEAD_BYTES) as u64 + kept_back {
            self.current = current;
            return Err(Refusal::Full);
        }
        current.map_or_else(|| self.create(most_bytes), Ok)
    }

    fn create(&self, most_bytes: u64) -> Result<Current, Refusal> {
        let directory = &self.shared.directory;
        let number = self.shared.files.lock().take_number();
        let path = directory.data_file(number);
        let file = directory.disk.create(&path);
        let file = file.map_err(|error| self.failed("create", number, error))?;
        let (counts, waker) = (self.shared.counts.clone(), self.shared.waker.clone());
        let open = OpenFile { file: file.clone(), counts, waker };
        let data = DataFile::new(number, path, Box::new(open));
        self.shared.files.lock().add(&data);
        let mut current = Current { data, file, end: 0, most_bytes };
        let head = Head { store: directory.id, number }.to_bytes();
        if let Err(error) = self.write_at(&*current.file, &head, &mut current.end) {
            current.close(self.shared);
            return Err(self.failed("write", number, error));
        }
        Ok(current)
    }

    /// Writes all bytes at `end`, which moves behind what was written.
    fn write_at(&self, file: &dyn DiskFile, bytes: &[u8], end: &mut u64) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(self.shared.write_bytes())];
            self.shared.counts.begin_write();
            let written = file.write_at(piece, *end);
            self.shared.counts.end_write(*written.as_ref().unwrap_or(&0));
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

    fn failed(&self, call: &'static str, number: u32, error: io::Error) -> Refusal {
        self.shared.counts.add_error(call, &error);
        Refusal::Failed { call, path: self.shared.directory.data_file(number), error }
    }

    fn delete_dead(&self) {
        let dead = self.shared.files.lock().dead();
        self.delete(dead);
    }

    fn delete(&self, numbers: Vec<u32>) {
        let directory = &self.shared.directory;
        for number in numbers {
            match directory.disk.delete(&directory.data_file(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.shared.counts.add_error("delete", &error);
                    let file = directory.data_file(number);
                    tracing::warn!("store: cannot delete {}: {error}", file.display());
                }
                _ => {
                    self.shared.files.lock().remove(number);
                    self.shared.queue.lock().retry_if_full();
                }
            }
        }
    }
}
