// SPDX-License-Identifier: Apache-2.0
//! Finds the last commit of a journal: the newest whole base, and the logs since.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Newer bases that are damaged, in place of which an older one was read.
    pub(crate) damaged_bases: Vec<String>,
    /// What a start is refused for: the commit is the last one before it.
    pub(crate) damage: Option<Damage>,
}

/// Something that was on disk, and is damaged or missing.
#[derive(Debug)]
pub(crate) struct Damage {
    pub(crate) what: String,
    /// Records that are behind it, about.
    pub(crate) num_records: u64,
}

impl Found {
    /// Nothing, at the begin of a log.
    pub(crate) fn nothing(log: u32, at: u64) -> Self {
        Self {
            replay: Replay::new(),
            base: log,
            log_end: LogEnd { number: log, end: 0 },
            last: None,
            commit: 0,
            at,
            dropped_bytes: 0,
            damaged_bases: Vec::new(),
            damage: None,
        }
    }

    /// Fails if something is damaged.
    pub(crate) fn check(&self, directory: &Directory) -> Result<()> {
        let Some(Damage { what, num_records }) = &self.damage else { return Ok(()) };
        let lost = if *num_records > 0 {
            let seconds = self.at / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
            format!(
                ". Items and updates since {hours:02}:{minutes:02}:{:02} UTC (about {num_records}) \
                 would be lost",
                seconds % 60
            )
        } else {
            String::new()
        };
        let path = directory.path.display();
        Err(Error::data_loss(format!("store {what}{lost}: reverb store repair {path}")))
    }
}

/// Finds the last commit, or the last one before something that is damaged; `None` if there is no
/// journal. Changes nothing.
///
/// # Errors
///
/// `DataLoss` if nothing can be read. `Cancelled`.
pub(crate) fn find(
    directory: &Directory,
    listing: &Listing,
    cancelled: &AtomicBool,
) -> Result<Option<Found>> {
    let mut damaged_bases = Vec::new();
    for (&number, head) in listing.bases.iter().rev() {
        match read_base(directory, number, head.as_ref(), cancelled) {
            Ok(found) => {
                let found = Found { damaged_bases, ..found };
                let finder = Finder { directory, listing, cancelled, found };
                return finder.read_logs().map(Some);
            }
            Err(error) if error.kind() != ErrorKind::DataLoss => return Err(error),
            Err(error) => {
                let path = directory.file(FileKind::Base, number);
                damaged_bases.push(format!("{} is damaged: {}", path.display(), error.message()));
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
    if damaged_bases.is_empty() && !has_frames && !has_data {
        return Ok(None);
    }
    let why = damaged_bases.first().map_or("there are other files of a journal", String::as_str);
    let what = format!("{} has no whole base ({why})", directory.path.display());
    for (&number, head) in &listing.logs {
        let Some(Head { before: 0, random, .. }) = head else { continue };
        if has_first(directory, number, random)? {
            let found = Found { damaged_bases, ..Found::nothing(number, 0) };
            let finder = Finder { directory, listing, cancelled, found };
            let mut found = finder.read_logs()?;
            found.damage.get_or_insert(Damage { what, num_records: 0 });
            return Ok(Some(found));
        }
    }
    Err(Error::data_loss(format!(
        "store {what}, and not all of its log since it was new, so none of its items can be kept: \
         move it away, or give another directory"
    )))
}

/// Returns true if the first commit of a store is whole in a log. Without it, the first base may
/// have had items, those of a checkpoint.
fn has_first(directory: &Directory, number: u32, random: &[u8; 16]) -> Result<bool> {
    let first = open(directory, FileKind::Log, number).and_then(|(file, end)| {
        Frames { file: &*file, end, random, kind: FrameKind::Commit }.read(HEAD_BYTES as u64)
    });
    let first = first.map_err(|error| unreadable(directory, &error))?;
    Ok(first.is_some_and(|(frame, _)| frame.commit == 1))
}

/// Reads a base.
fn read_base(
    directory: &Directory,
    number: u32,
    head: Option<&Head>,
    cancelled: &AtomicBool,
) -> Result<Found> {
    let Some(head) = head else { return Err(Error::data_loss("its head is not whole")) };
    let (file, end) =
        open(directory, FileKind::Base, number).map_err(|error| unreadable(directory, &error))?;
    let frames = Frames { file: &*file, end, random: &head.random, kind: FrameKind::Part };
    let (mut replay, mut position, mut part, mut time) = (Replay::new(), HEAD_BYTES as u64, 0, 0);
    while !replay.has_ended {
        check_not_cancelled(cancelled)?;
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
    Ok(Found { replay, log_end, commit, ..Found::nothing(number, time) })
}

/// Applies the logs of a base.
struct Finder<'a> {
    directory: &'a Directory,
    listing: &'a Listing,
    cancelled: &'a AtomicBool,
    found: Found,
}

impl Finder<'_> {
    fn read_logs(mut self) -> Result<Found> {
        let (chain, gap) = self.chain();
        for &(number, end) in &chain {
            if let Some(at) = self.read_log(number, end)? {
                return Ok(self.damaged(number, at));
            }
        }
        if let Some(number) = gap {
            return Ok(self.damaged(number, 0));
        }
        // A server that has stopped has left no torn tail.
        if self.found.commit < self.directory.stopped_at {
            let last = self.found.last.as_ref().map_or(0, |(frame, _)| frame.frame_bytes());
            let LogEnd { number, end } = self.found.log_end;
            return Ok(self.damaged(number, end + last));
        }
        // A log may be in memory alone as well, until its first frame is on disk.
        if let [.., (number, Some(end)), _] = chain[..]
            && self.found.log_end.end == HEAD_BYTES as u64
        {
            self.found.log_end = LogEnd { number, end };
        }
        Ok(self.found)
    }

    /// The logs since the base, each with the bytes that count, if the next one says it; and the
    /// number of a file that is not reached by them.
    fn chain(&self) -> (Vec<(u32, Option<u64>)>, Option<u32>) {
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
            // The first frame of a log may be damaged: the log before has the same one at its end.
            chain.push((last, Some(end).filter(|_| !self.lacks_first(number))));
            last = number;
        }
        chain.push((last, None));
        // A repair that was interrupted has left a log that goes on with none, and has no frame.
        let is_empty = |&(number, head): &(&u32, &Option<Head>)| {
            head.as_ref().is_some_and(|head| head.before == 0)
                && open(self.directory, FileKind::Log, *number)
                    .is_ok_and(|(_, len)| len <= HEAD_BYTES as u64)
        };
        let logs = logs.iter().filter(|log| !is_empty(log)).map(|(number, _)| number);
        // Somebody has deleted it.
        let newest =
            Some(&self.directory.newest_log).filter(|it| !self.listing.logs.contains_key(it));
        let gap = logs.chain(bases.keys()).chain(newest).find(|&&number| number > last);
        (chain, gap.copied())
    }

    /// Returns true if a log had its first frame when it got its name, and has it no more.
    fn lacks_first(&self, number: u32) -> bool {
        let Some(Some(head)) = self.listing.logs.get(&number) else { return false };
        head.begins_whole
            && !open(self.directory, FileKind::Log, number).is_ok_and(|(file, end)| {
                let (random, kind) = (&head.random, FrameKind::Commit);
                let frames = Frames { file: &*file, end, random, kind };
                frames.read(HEAD_BYTES as u64).is_ok_and(|first| first.is_some())
            })
    }

    /// Applies a log. Returns where it is damaged, if it is.
    fn read_log(&mut self, number: u32, end: Option<u64>) -> Result<Option<u64>> {
        if self.lacks_first(number) {
            return Ok(Some(HEAD_BYTES as u64));
        }
        let unreadable = |error: io::Error| unreadable(self.directory, &error);
        let Some(Some(head)) = self.listing.logs.get(&number) else { return Ok(Some(0)) };
        let (file, len) = open(self.directory, FileKind::Log, number).map_err(unreadable)?;
        let kind = FrameKind::Commit;
        let (random, counts) = (&head.random, end.unwrap_or(len));
        let frames = Frames { file: &*file, end: counts.min(len), random, kind };
        self.found.log_end = LogEnd { number, end: HEAD_BYTES as u64 };
        let mut position = HEAD_BYTES as u64;
        while position < frames.end {
            check_not_cancelled(self.cancelled)?;
            let frame = frames.read(position).map_err(unreadable)?;
            let next = self.found.commit + 1;
            let Some((frame, records)) = frame.filter(|(frame, _)| frame.commit == next) else {
                let heads = frames.heads_from(position).map_err(unreadable)?;
                let was_on_disk = heads.iter().any(|head| head.synced_or_part >= next);
                if end.is_some() || was_on_disk {
                    return Ok(Some(position));
                }
                break;
            };
            let rest = position + frame.frame_bytes();
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
            position = rest;
        }
        self.found.dropped_bytes = frames.end - position.min(frames.end);
        Ok((counts > len).then_some(len))
    }

    /// What was found, before the damage of a log, or of a missing file.
    fn damaged(mut self, number: u32, at: u64) -> Found {
        let mut num_records = 0;
        for (&later, head) in self.listing.logs.range(number..) {
            let (Some(head), Ok((file, end))) = (head, open(self.directory, FileKind::Log, later))
            else {
                continue;
            };
            let (random, kind) = (&head.random, FrameKind::Commit);
            let frames = Frames { file: &*file, end, random, kind };
            let start = if later == number { at.next_multiple_of(HEAD_BYTES as u64) } else { 0 };
            let heads = frames.heads_from(start).unwrap_or_default();
            num_records += heads.iter().map(|head| u64::from(head.num_records)).sum::<u64>();
        }
        let name = self.directory.file(FileKind::Log, number);
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        let what = format!("{name} is damaged at {at}: it was on disk before the crash");
        self.found.damage = Some(Damage { what, num_records });
        self.found
    }
}

/// Ends a recovery that is cancelled.
///
/// # Errors
///
/// `Cancelled` if it is.
pub fn check_not_cancelled(cancelled: &AtomicBool) -> Result<()> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(Error::cancelled("The start of the server was cancelled."));
    }
    Ok(())
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
