// SPDX-License-Identifier: Apache-2.0
//! The thread that writes payloads to data files and deletes files that are dead.

use std::time::{Duration, Instant};

use reverb_base::byte_size;
use reverb_data::Chunk;

use crate::appender::Appender;
use crate::queue::{Job, Refusal, Task, Written};
use crate::store::Shared;

/// Time between two warnings that a store is full.
const FULL_WARNED_EVERY: Duration = Duration::from_secs(3600);

/// Writes until the store is closed, then deletes all of its files.
pub(crate) fn run(shared: &Shared) {
    let _end = End(shared);
    let mut writer = Writer { shared, appender: Appender::default(), full_warned_at: None };
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
    shared.delete(numbers);
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
    appender: Appender,
    full_warned_at: Option<Instant>,
}

impl Writer<'_> {
    /// Does jobs, and tells those that wait how it went.
    fn work(&mut self, jobs: Vec<Job>) {
        let num_jobs = jobs.len();
        let bytes = jobs.iter().map(|job| job.chunk.payload_len() as u64).sum();
        let result = self.write(jobs);
        self.appender.set_places();
        // After a failure it would keep chunks alive.
        self.appender.give_up(self.shared, false);
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

    fn write(&mut self, jobs: Vec<Job>) -> Written {
        for Job { chunk, task } in jobs {
            if self.appender.has(&chunk) {
                // It was given twice, and gets its place now.
                self.appender.flush(self.shared)?;
                self.appender.set_places();
            }
            let Some(plain) = self.payload_of(&chunk, task) else { continue };
            self.appender.push(self.shared, chunk, &plain.payload(), task)?;
        }
        self.appender.flush(self.shared)
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

    fn delete_dead(&self) {
        let dead = self.shared.files.lock().dead();
        self.shared.delete(dead);
    }
}
