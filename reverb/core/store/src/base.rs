// SPDX-License-Identifier: Apache-2.0
//! The base that is written: all items at one commit.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use reverb_files::DiskFile;

use crate::appender::write_at;
use crate::changes::{Changes, Note};
use crate::frame::{FrameKind, Records};
use crate::head::{FileKind, Head};
use crate::queue::Written;
use crate::record::{Recorder, put_end, put_notes};
use crate::store::Shared;

/// A base that is not finished. Its number is that of the log which begins at its commit.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) number: u32,
    commit: u64,
    at: u64,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    random: [u8; 16],
    recorder: Recorder,
    num_parts: u64,
    end: u64,
    /// Those that were there at its commit.
    notes: VecDeque<Note>,
}

impl Base {
    /// Creates the base of a commit, which was made at a time in nanoseconds.
    pub(crate) fn create(
        shared: &Shared,
        number: u32,
        (commit, at): (u64, u64),
        notes: VecDeque<Note>,
    ) -> Written<Self> {
        let directory = &shared.directory;
        let path = directory.file(FileKind::Base, number).with_extension("part");
        let file = directory.disk.create(&path);
        let file = file.map_err(|error| shared.failed_at("create", path.clone(), error))?;
        let mut head = Head::new(FileKind::Base, directory, number);
        head.position = commit;
        let recorder = Recorder::new(FileKind::Base, number);
        let (random, end, num_parts) = (head.random, 0, 0);
        let mut base =
            Self { number, commit, at, file, path, random, recorder, num_parts, end, notes };
        base.write(shared, &head.to_bytes()).inspect_err(|_| base.delete(shared))?;
        Ok(base)
    }

    /// Writes a part.
    pub(crate) fn put(&mut self, shared: &Shared, part: &Changes, next_id: &mut u64) -> Written {
        let mut records = Records::new();
        self.recorder.put(&mut records, part, next_id);
        self.put_frame(shared, records)
    }

    /// Writes the end, brings all to the disk, and gives it its name. Returns its bytes.
    pub(crate) fn finish(&mut self, shared: &Shared, next_id: u64) -> Written<u64> {
        let mut records = Records::new();
        put_notes(&mut records, &self.notes);
        put_end(&mut records, next_id);
        self.put_frame(shared, records)?;
        let failed = |call, error| shared.failed_at(call, self.path.clone(), error);
        shared.counts.sync(&*self.file).map_err(|error| failed("sync", error))?;
        let directory = &shared.directory;
        let whole = directory.file(FileKind::Base, self.number);
        directory.disk.rename(&self.path, &whole).map_err(|error| failed("rename", error))?;
        self.path = whole;
        shared.sync_directory()?;
        Ok(self.end)
    }

    fn put_frame(&mut self, shared: &Shared, records: Records) -> Written {
        self.num_parts += 1;
        let kind = FrameKind::Part;
        let frame = records.seal(&self.random, kind, self.commit, self.num_parts, self.at);
        self.write(shared, &frame)
    }

    fn write(&mut self, shared: &Shared, bytes: &[u8]) -> Written {
        let written = write_at(shared, &*self.file, bytes, &mut self.end);
        written.map_err(|error| shared.failed_at("write", self.path.clone(), error))
    }

    /// Deletes what was written. A base whose name may not be on disk must not be found.
    pub(crate) fn delete(&self, shared: &Shared) {
        shared.directory.delete(&self.path, &shared.counts);
    }
}
