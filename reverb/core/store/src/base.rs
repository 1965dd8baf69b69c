// SPDX-License-Identifier: Apache-2.0
//! The base that is written: all items at one commit.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use reverb_data::ShardIdentity;
use reverb_files::DiskFile;

use crate::appender::write_at;
use crate::changes::{Changes, Note};
use crate::frame::{FrameKind, Records};
use crate::head::{FileKind, Head};
use crate::queue::Written;
use crate::record::{Recorder, put_end, put_notes, put_shard};
use crate::store::Shared;

/// Numbers of items: of a base, and what came and went since.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Population {
    based: u64,
    new: u64,
    deleted: u64,
}

impl Population {
    pub(crate) fn add(&mut self, changes: &Changes) {
        for table in &changes.tables {
            if table.is_reset {
                self.deleted = self.based + self.new;
            }
            self.new += table.items.len() as u64;
            self.deleted += table.deleted.len() as u64;
        }
    }

    /// Bytes of a base of what is there now, by those of the last base, or of the log before the
    /// first.
    pub(crate) fn next_base_bytes(&self, base_bytes: u64, log_bytes: u64) -> u64 {
        let Self { based, new, deleted } = *self;
        let (bytes, items) = if based > 0 { (base_bytes, based) } else { (log_bytes, new) };
        let live = (based + new).saturating_sub(deleted);
        (u128::from(bytes) * u128::from(live) / u128::from(items.max(1))) as u64
    }
}

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
    pub(crate) items: Population,
    /// Those that were there at its commit.
    notes: VecDeque<Note>,
    shard: Option<ShardIdentity>,
}

impl Base {
    /// Creates the base of a commit, which was made at a time in nanoseconds.
    pub(crate) fn create(
        shared: &Shared,
        number: u32,
        (commit, at): (u64, u64),
        (notes, shard): (VecDeque<Note>, Option<ShardIdentity>),
    ) -> Written<Self> {
        let directory = &shared.directory;
        let path = directory.file(FileKind::Base, number).with_extension("part");
        let file = directory.disk.create(&path);
        let file = file.map_err(|error| shared.failed_at("create", path.clone(), error))?;
        let mut head = Head::new(FileKind::Base, directory, number);
        head.position = commit;
        let recorder = Recorder::new(FileKind::Base, number);
        let mut base = Self {
            number,
            commit,
            at,
            file,
            path,
            random: head.random,
            recorder,
            num_parts: 0,
            end: 0,
            items: Population::default(),
            notes,
            shard,
        };
        base.write(shared, &head.to_bytes()).inspect_err(|_| base.delete(shared))?;
        Ok(base)
    }

    /// Writes a part.
    pub(crate) fn put(&mut self, shared: &Shared, part: &Changes, next_id: &mut u64) -> Written {
        self.items.based += part.tables.iter().map(|table| table.items.len() as u64).sum::<u64>();
        let mut records = Records::new();
        self.recorder.put(&mut records, part, next_id);
        self.put_frame(shared, records)
    }

    /// Writes the end, brings all to the disk, and gives it its name. Returns its bytes.
    pub(crate) fn finish(&mut self, shared: &Shared, next_id: u64) -> Written<u64> {
        let mut records = Records::new();
        put_notes(&mut records, &self.notes);
        put_shard(&mut records, self.shard.as_ref());
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
