// SPDX-License-Identifier: Apache-2.0
//! Finds the last commit of a journal: the newest whole base, and the logs since.

use std::collections::BTreeMap;
use std::io;

use reverb_base::{Error, ErrorKind, Result};

use crate::directory::Directory;
use crate::frame::{FrameHead, FrameKind, Frames};
use crate::head::{FileKind, HEAD_BYTES, Head};
use crate::listing::{Listing, open};
use crate::log::LogEnd;
use crate::replay::Replay;

/// The last commit of a journal, before its items are made.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) replay: Replay,
    /// Number of the base.
    pub(crate) base: u32,
    /// Where the logs end that are on disk for sure.
    pub(crate) log_end: LogEnd,
    /// A frame behind that end. It was read, but it may be in memory alone: its process may have
    /// been killed before its sync, or even after a sync that has failed.
    pub(crate) last: Option<(FrameHead, Vec<u8>)>,
    pub(crate) commit: u64,
    /// When it was made, in nanoseconds.
    pub(crate) at: u64,
    /// Bytes of a commit that was not finished.
    pub(crate) dropped_bytes: u64,
}

/// Finds the last commit; `None` if there is no journal. Changes nothing.
///
/// # Errors
///
/// `DataLoss` if something that was on disk is damaged or missing.
pub(crate) fn find(directory: &Directory, listing: &Listing) -> Result<Option<Found>> {
    let mut why = None;
    for (&number, head) in listing.bases.iter().rev() {
        match read_base(directory, number, head.as_ref()) {
            Ok(found) => return Finder { directory, listing, found }.read_logs().map(Some),
            Err(error) if error.kind() != ErrorKind::DataLoss => return Err(error),
            Err(error) => {
                let path = directory.file(FileKind::Base, number);
                let text = format!("{} is damaged: {}", path.display(), error.message());
                tracing::warn!("store {text}; the base before is taken");
                why.get_or_insert(text);
            }
        }
    }
    let mut has_frames = false;
    for &number in listing.logs.keys() {
        let opened = open(directory, FileKind::Log, number);
        let (_, len) = opened.map_err(|error| unreadable(directory, &error))?;
        has_frames |= len > HEAD_BYTES as u64;
    }
    let has_data = listing.data.values().flatten().any(|head| !head.is_tier);
    if why.is_some() || has_frames || has_data {
        let path = directory.path.display();
        let why = why.unwrap_or_else(|| "there are other files of a journal".to_owned());
        return Err(Error::data_loss(format!(
            "store {path} has no whole base ({why}): reverb store repair {path}"
        )));
    }
    Ok(None)
}

/// Reads a base.
fn read_base(directory: &Directory, number: u32, head: Option<&Head>) -> Result<Found> {
    let Some(head) = head else { return Err(Error::data_loss("its head is not whole")) };
    let (file, end) =
        open(directory, FileKind::Base, number).map_err(|error| unreadable(directory, &error))?;
    let frames = Frames { file: &*file, end, random: &head.random, kind: FrameKind::Part };
    let (mut replay, mut position, mut part, mut time) = (Replay::new(), HEAD_BYTES as u64, 0, 0);
    while !replay.has_ended {
        let frame = frames.read(position).map_err(|error| unreadable(directory, &error))?;
        part += 1;
        let is_next = |it: &FrameHead| (it.commit, it.synced_or_part) == (head.position, part);
        let Some((frame, records)) = frame.filter(|(frame, _)| is_next(frame)) else {
            return Err(Error::data_loss(format!("no whole part {part} at {position}")));
        };
        replay.apply(&records).map_err(|error| malformed(position, &error))?;
        position += frame.frame_bytes();
        time = frame.at;
    }
    let log_end = LogEnd { number, end: HEAD_BYTES as u64 };
    let commit = head.position;
    Ok(Found { replay, base: number, log_end, commit, at: time, last: None, dropped_bytes: 0 })
}

/// Applies the logs of a base.
struct Finder<'a> {
    directory: &'a Directory,
    listing: &'a Listing,
    found: Found,
}

impl Finder<'_> {
    fn read_logs(mut self) -> Result<Found> {
        let chain = self.chain()?;
        for (at, &(number, end)) in chain.iter().enumerate() {
            self.read_log(number, end, &chain[at + 1..])?;
        }
        // A log may be in memory alone as well, until its first frame is on disk.
        if let [.., (number, Some(end)), _] = chain[..]
            && self.found.log_end.end == HEAD_BYTES as u64
        {
            self.found.log_end = LogEnd { number, end };
        }
        Ok(self.found)
    }

    /// The logs since the base, each with the bytes that count, if the next one says it.
    fn chain(&self) -> Result<Vec<(u32, Option<u64>)>> {
        let Listing { logs, bases, .. } = self.listing;
        // A log that was given up before it had a commit has a successor with a higher number.
        let mut next: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        for (&number, head) in logs {
            if let Some(head) = head {
                next.insert(head.before, (number, head.position));
            }
        }
        let mut last = self.found.base;
        let mut chain = Vec::new();
        while let Some(&(number, end)) = next.get(&last).filter(|(number, _)| *number > last) {
            chain.push((last, Some(end)));
            last = number;
        }
        chain.push((last, None));
        for &(number, _) in &chain {
            if logs.get(&number).is_none_or(Option::is_none) {
                return Err(self.damaged(number, 0, &chain));
            }
        }
        let mut later = logs.keys().chain(bases.keys()).filter(|&&number| number > last);
        match later.next() {
            Some(&number) => Err(self.damaged(number, 0, &[])),
            None => Ok(chain),
        }
    }

    fn read_log(
        &mut self,
        number: u32,
        end: Option<u64>,
        later: &[(u32, Option<u64>)],
    ) -> Result<()> {
        let unreadable = |error: io::Error| unreadable(self.directory, &error);
        let (file, len) = open(self.directory, FileKind::Log, number).map_err(unreadable)?;
        let head = self.listing.logs[&number].as_ref().expect("heads of the chain are whole");
        let kind = FrameKind::Commit;
        let frames = Frames { file: &*file, end: end.unwrap_or(len), random: &head.random, kind };
        if frames.end > len {
            return Err(self.damaged(number, len, later));
        }
        self.found.log_end = LogEnd { number, end: HEAD_BYTES as u64 };
        let mut position = HEAD_BYTES as u64;
        while position < frames.end {
            let frame = frames.read(position).map_err(unreadable)?;
            let next = self.found.commit + 1;
            let Some((frame, records)) = frame.filter(|(frame, _)| frame.commit == next) else {
                let heads = frames.heads_from(position).map_err(unreadable)?;
                let was_on_disk = heads.iter().any(|head| head.synced_or_part >= next);
                if end.is_some() || was_on_disk {
                    return Err(self.damaged(number, position, later));
                }
                break;
            };
            self.found.replay.apply(&records).map_err(|error| {
                let path = self.directory.file(FileKind::Log, number);
                let text = format!("store {}: {}", path.display(), error.message());
                malformed(position, &Error::new(error.kind(), text))
            })?;
            (self.found.commit, self.found.at) = (frame.commit, frame.at);
            if end.is_none() {
                self.found.log_end.end = position;
                self.found.last = Some((frame, records));
            }
            position += frame.frame_bytes();
        }
        self.found.dropped_bytes = frames.end - position.min(frames.end);
        Ok(())
    }

    /// The error of a log, or of a missing one, that was on disk before the crash.
    fn damaged(&self, number: u32, at: u64, later: &[(u32, Option<u64>)]) -> Error {
        let mut num_records = 0;
        let logs = [(number, at)].into_iter();
        for (number, at) in logs.chain(later.iter().map(|&(number, _)| (number, 0))) {
            let head = self.listing.logs.get(&number).and_then(Option::as_ref);
            let (Some(head), Ok((file, end))) = (head, open(self.directory, FileKind::Log, number))
            else {
                continue;
            };
            let (random, kind) = (&head.random, FrameKind::Commit);
            let frames = Frames { file: &*file, end, random, kind };
            let heads = frames.heads_from(at.next_multiple_of(HEAD_BYTES as u64));
            let heads = heads.unwrap_or_default();
            num_records += heads.iter().map(|head| u64::from(head.num_records)).sum::<u64>();
        }
        let seconds = self.found.at / 1_000_000_000;
        let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
        let name = self.directory.file(FileKind::Log, number);
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        Error::data_loss(format!(
            "store {name} is damaged at {at}: it was on disk before the crash. Items and updates \
             since {hours:02}:{minutes:02}:{:02} UTC (about {num_records}) would be lost: reverb \
             store repair {}",
            seconds % 60,
            self.directory.path.display()
        ))
    }
}

fn malformed(position: u64, error: &Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::Unimplemented => ErrorKind::FailedPrecondition,
        _ => ErrorKind::DataLoss,
    };
    Error::new(kind, format!("{}, in the frame at {position}", error.message()))
}

fn unreadable(directory: &Directory, error: &io::Error) -> Error {
    Error::failed_precondition(format!(
        "store {} cannot be read: {error}",
        directory.path.display()
    ))
}
