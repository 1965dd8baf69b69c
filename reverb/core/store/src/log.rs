// SPDX-License-Identifier: Apache-2.0
//! The log file that is written.

use std::io;
use std::sync::Arc;

use reverb_files::DiskFile;

use crate::appender::write_at;
use crate::head::{FileKind, Head};
use crate::queue::Written;
use crate::record::Recorder;
use crate::store::Shared;

/// A log file, and how many of its bytes count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogEnd {
    pub(crate) number: u32,
    pub(crate) end: u64,
}

/// An open log file.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) number: u32,
    pub(crate) random: [u8; 16],
    pub(crate) recorder: Recorder,
    file: Arc<dyn DiskFile>,
    /// What lies before is on disk.
    end: u64,
}

impl Log {
    /// Creates a log file whose head says where the one before ends. Head and name are on disk
    /// then, and the frame that `first` makes, if any: it has its name when all of it is there.
    ///
    /// After a failure the name may be there, and stays: a deletion could be lost, and the name
    /// come back when its number was given to another file.
    pub(crate) fn create(
        shared: &Shared,
        number: u32,
        before: LogEnd,
        first: impl FnOnce(&[u8; 16]) -> Vec<u8>,
    ) -> Written<Self> {
        let directory = &shared.directory;
        let whole = directory.file(FileKind::Log, number);
        let part = whole.with_extension("part");
        let mut head = Head::new(FileKind::Log, directory, number);
        (head.before, head.position) = (before.number, before.end);
        let first = first(&head.random);
        head.begins_whole = !first.is_empty();
        let mut end = 0;
        let mut create = || -> Result<_, (&'static str, io::Error)> {
            let file = directory.disk.create(&part).map_err(|error| ("create", error))?;
            for bytes in [&head.to_bytes(), &first] {
                write_at(shared, &*file, bytes, &mut end).map_err(|error| ("write", error))?;
            }
            shared.counts.sync(&*file).map_err(|error| ("sync", error))?;
            directory.disk.rename(&part, &whole).map_err(|error| ("rename", error))?;
            directory.disk.sync_directory(&directory.path).map_err(|error| ("sync", error))?;
            Ok(file)
        };
        match create() {
            Ok(file) => {
                directory.set_newest_log(number);
                let recorder = Recorder::new(FileKind::Log, number);
                Ok(Self { number, random: head.random, recorder, file, end })
            }
            Err((call, error)) => {
                directory.delete(&part, &shared.counts);
                Err(shared.failed_at(call, whole, error))
            }
        }
    }

    /// Appends a frame and brings it to the disk. After a failure nothing may be appended any
    /// more, and the next log says that this one ends before it.
    pub(crate) fn append(&mut self, shared: &Shared, frame: &[u8]) -> Written {
        let mut end = self.end;
        let written = write_at(shared, &*self.file, frame, &mut end).map_err(|it| ("write", it));
        let synced =
            written.and_then(|()| shared.counts.sync(&*self.file).map_err(|it| ("sync", it)));
        match synced {
            Ok(()) => {
                self.end = end;
                Ok(())
            }
            Err((call, error)) => {
                let path = shared.directory.file(FileKind::Log, self.number);
                Err(shared.failed_at(call, path, error))
            }
        }
    }

    pub(crate) fn end(&self) -> LogEnd {
        LogEnd { number: self.number, end: self.end }
    }
}
