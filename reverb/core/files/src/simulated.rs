// SPDX-License-Identifier: Apache-2.0
//! A disk in memory that keeps apart what was not synced, and may lose it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, FileSystem, Space};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// A disk that stops at a call, and that fails at random. A clone is the same disk.
///
/// What a program reads is what it has written. What is on the disk is what it has synced. After a
/// restart, each page, length and name that was not synced may be old, new, or damaged; those whose
/// sync has failed are old, whatever later syncs said.
#[derive(Debug, Clone)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

/// How programs start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// The process was killed: all that it has written is still there, and still not synced.
    Process,
    /// The power was lost.
    Machine,
}

/// A call that changes the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// `create`, `write`, `sync`, `cut`, `rename`, `delete` or `sync directory`.
    pub what: &'static str,
    /// Name of the file; after a rename, the new one.
    pub name: String,
}

#[derive(Debug)]
struct State {
    /// Files by their names, as programs see them, and as they are on disk.
    names: BTreeMap<PathBuf, usize>,
    synced_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<NameChange>,
    files: Vec<Contents>,
    calls: Vec<Call>,
    /// Calls before it stops.
    stops_in: Option<u64>,
    has_stopped: bool,
    /// Of a thousand calls, so many fail; with a name, of these alone.
    failing: u64,
    failing_call: Option<&'static str>,
    starts: u64,
    random: Random,
}

#[derive(Debug)]
struct NameChange {
    taken: Option<PathBuf>,
    given: Option<(PathBuf, usize)>,
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<PathBuf, usize>) {
        if let Some(path) = self.taken {
            names.remove(&path);
        }
        names.extend(self.given);
    }
}

/// Bytes of a file.
#[derive(Debug, Default)]
struct Contents {
    seen: Vec<u8>,
    on_disk: Vec<u8>,
    /// Pages that the next sync writes.
    unsynced: BTreeSet<usize>,
}

impl Contents {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        let start = offset.min(self.seen.len());
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[offset..end].copy_from_slice(bytes);
        self.unsynced.extend(start / PAGE..end.div_ceil(PAGE));
    }

    /// Writes pages to the disk.
    fn put(&mut self, pages: impl IntoIterator<Item = usize>) {
        for page in pages {
            let (start, end) = (page * PAGE, (page * PAGE + PAGE).min(self.seen.len()));
            if start < end {
                if self.on_disk.len() < end {
                    self.on_disk.resize(end, 0);
                }
                self.on_disk[start..end].copy_from_slice(&self.seen[start..end]);
            }
        }
    }

    fn sync(&mut self) {
        let pages = std::mem::take(&mut self.unsynced);
        self.on_disk.truncate(self.seen.len());
        self.put(pages);
    }

    /// What is found after the power was lost.
    fn lose(&mut self, random: &mut Random) {
        let (old, new) = (self.on_disk.len(), self.seen.len());
        let len = match random.below(3) {
            0 => old,
            1 => new,
            _ => old.min(new) + random.below(old.abs_diff(new) as u64 + 1) as usize,
        };
        let mut left = self.on_disk.clone();
        left.resize(len, 0);
        for page in std::mem::take(&mut self.unsynced) {
            let (start, end) = (page * PAGE, (page * PAGE + PAGE).min(len).min(new));
            if start >= end {
                continue;
            }
            match random.below(4) {
                0 => left[start..end].copy_from_slice(&self.seen[start..end]),
                1 => {}
                2 => left[start..end].fill(0),
                _ => {
                    for at in (start..end).step_by(SECTOR) {
                        let sector = at..(at + SECTOR).min(end);
                        match random.below(3) {
                            0 => left[sector.clone()].copy_from_slice(&self.seen[sector]),
                            1 => {}
                            _ => left[sector].fill(random.below(256) as u8),
                        }
                    }
                }
            }
        }
        (self.seen, self.on_disk) = (left.clone(), left);
    }
}

/// How a call goes.
enum Fate {
    Done,
    /// It may have been done in part.
    Failed(io::Error),
}

impl SimulatedDisk {
    /// An empty disk, on which chance is that of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            files: Vec::new(),
            calls: Vec::new(),
            stops_in: None,
            has_stopped: false,
            failing: 0,
            failing_call: None,
            starts: 0,
            random: Random(seed),
        })))
    }

    /// Stops after so many calls that change the disk: the next one may be done in part, and all
    /// others fail.
    pub fn stop_in(&self, num_calls: u64) {
        self.0.lock().stops_in = Some(num_calls);
    }

    /// Of a thousand calls, so many fail from now on. Deletions and cuts do not.
    pub fn set_failing(&self, per_thousand: u64) {
        let state = &mut *self.0.lock();
        (state.failing, state.failing_call) = (per_thousand, None);
    }

    /// The same of the calls with one name; see [`Call::what`].
    pub fn set_failing_call(&self, what: &'static str, per_thousand: u64) {
        let state = &mut *self.0.lock();
        (state.failing, state.failing_call) = (per_thousand, Some(what));
    }

    /// Returns true if it has stopped.
    pub fn has_stopped(&self) -> bool {
        self.0.lock().has_stopped
    }

    /// Starts again. Files that are open fail from then on.
    pub fn restart(&self, how: Restart) {
        let state = &mut *self.0.lock();
        state.starts += 1;
        (state.has_stopped, state.stops_in, state.failing) = (false, None, 0);
        if how == Restart::Process {
            return;
        }
        for change in std::mem::take(&mut state.unsynced_names) {
            if state.random.below(2) == 0 {
                change.apply(&mut state.synced_names);
            }
        }
        state.names = state.synced_names.clone();
        for file in &mut state.files {
            file.lose(&mut state.random);
        }
    }

    /// The calls since the last time that this was asked.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.lock().calls)
    }
}

impl State {
    fn begin(&mut self, what: &'static str, path: &Path, may_fail: bool) -> io::Result<Fate> {
        self.check_running()?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.calls.push(Call { what, name });
        match &mut self.stops_in {
            Some(0) => {
                self.has_stopped = true;
                return Ok(Fate::Failed(stopped()));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let may_fail = may_fail && self.failing_call.is_none_or(|failing| failing == what);
        if may_fail && self.random.below(1000) < self.failing {
            return Ok(Fate::Failed(Errno::IO.into()));
        }
        Ok(Fate::Done)
    }

    fn check_running(&self) -> io::Result<()> {
        if self.has_stopped { Err(stopped()) } else { Ok(()) }
    }

    /// The name of a file; empty if it was deleted.
    fn name_of(&self, file: usize) -> PathBuf {
        let found = self.names.iter().find(|(_, named)| **named == file);
        found.map(|(path, _)| path.clone()).unwrap_or_default()
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change_name(&mut self, fate: Fate, change: NameChange) -> io::Result<()> {
        let result = match fate {
            Fate::Done => Ok(()),
            Fate::Failed(error) => Err(error),
        };
        // A call at which the disk stops may be done.
        if result.is_ok() || self.has_stopped && self.random.below(2) == 0 {
            let NameChange { taken, given } = &change;
            let seen = NameChange { taken: taken.clone(), given: given.clone() };
            seen.apply(&mut self.names);
            self.unsynced_names.push(change);
        }
        result
    }
}

impl Disk for SimulatedDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = &mut *self.0.lock();
        let fate = state.begin("create", path, true)?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.files.len();
        state.files.push(Contents::default());
        state.change_name(fate, NameChange { taken: None, given: Some((path.into(), file)) })?;
        Ok(Arc::new(OpenFile { disk: self.0.clone(), file, start: state.starts }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.0.lock();
        state.check_running()?;
        let file = state.find(path)?;
        Ok(Arc::new(OpenFile { disk: self.0.clone(), file, start: state.starts }))
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let fate = state.begin("delete", path, false)?;
        state.find(path)?;
        state.change_name(fate, NameChange { taken: Some(path.into()), given: None })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let fate = state.begin("rename", to, true)?;
        let given = Some((to.into(), state.find(from)?));
        state.change_name(fate, NameChange { taken: Some(from.into()), given })
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let state = &mut *self.0.lock();
        let fate = state.begin("sync directory", directory, true)?;
        if state.has_stopped {
            return Err(stopped());
        }
        let is_done = matches!(fate, Fate::Done);
        for change in std::mem::take(&mut state.unsynced_names) {
            if is_done || state.random.below(2) == 0 {
                change.apply(&mut state.synced_names);
            }
        }
        if is_done { Ok(()) } else { Err(Errno::IO.into()) }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let state = self.0.lock();
        state.check_running()?;
        let inside = state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(inside.filter_map(|path| path.file_name().map(OsString::from)).collect())
    }

    fn space(&self, _directory: &Path) -> io::Result<Space> {
        Ok(Space { total_bytes: 1 << 40, available_bytes: 1 << 40 })
    }

    fn kind(&self, _directory: &Path) -> io::Result<FileSystem> {
        Ok(FileSystem::Other)
    }
}

#[derive(Debug)]
struct OpenFile {
    disk: Arc<Mutex<State>>,
    file: usize,
    start: u64,
}

impl OpenFile {
    fn call<T>(&self, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.lock();
        state.check_running()?;
        if state.starts == self.start { call(&mut state) } else { Err(stopped()) }
    }
}

impl DiskFile for OpenFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.call(|state| {
            let fate = state.begin("write", &state.name_of(self.file), true)?;
            let is_done = matches!(fate, Fate::Done);
            // One write in eight is short.
            let is_short = !is_done || state.failing > 0 && state.random.below(8) == 0;
            let most = bytes.len() as u64;
            let taken = if is_short && most > 0 {
                state.random.below(most) + u64::from(is_done)
            } else {
                most
            };
            let taken = &bytes[..taken as usize];
            state.files[self.file].write(taken, offset as usize);
            match fate {
                Fate::Done => Ok(taken.len()),
                Fate::Failed(error) => Err(error),
            }
        })
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.call(|state| {
            let seen = &state.files[self.file].seen;
            let found = seen.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
            bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call(|state| {
            let fate = state.begin("sync", &state.name_of(self.file), true)?;
            if state.has_stopped {
                return Err(stopped());
            }
            let file = &mut state.files[self.file];
            match fate {
                Fate::Done => {
                    file.sync();
                    Ok(())
                }
                Fate::Failed(error) => {
                    let pages = std::mem::take(&mut file.unsynced);
                    file.put(pages.into_iter().filter(|_| state.random.below(2) == 0));
                    Err(error)
                }
            }
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(|state| match state.begin("cut", &state.name_of(self.file), false)? {
            Fate::Done => {
                let file = &mut state.files[self.file];
                file.seen.resize(len as usize, 0);
                file.unsynced.retain(|page| page * PAGE < len as usize);
                Ok(())
            }
            Fate::Failed(error) => Err(error),
        })
    }

    fn size(&self) -> io::Result<u64> {
        self.call(|state| Ok(state.files[self.file].seen.len() as u64))
    }
}

fn stopped() -> io::Error {
    io::Error::other("the disk has stopped")
}

/// The generator `SplitMix64`.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/store/file";

    fn found(disk: &SimulatedDisk, path: &str) -> Option<Vec<u8>> {
        let file = disk.open(Path::new(path)).ok()?;
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Some(bytes)
    }

    /// A disk with a synced file of two pages.
    fn with_file(seed: u64) -> (SimulatedDisk, Arc<dyn DiskFile>) {
        let disk = SimulatedDisk::new(seed);
        let file = disk.create(Path::new(FILE)).unwrap();
        assert_eq!(file.write_at(&[1; 2 * PAGE], 0).unwrap(), 2 * PAGE);
        file.sync_data().unwrap();
        disk.sync_directory(Path::new("/store")).unwrap();
        (disk, file)
    }

    #[test]
    fn only_what_was_synced_is_sure_to_be_there() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let (disk, file) = with_file(seed);
            file.write_at(&[2; PAGE], 2 * PAGE as u64).unwrap();
            disk.restart(Restart::Process);
            assert_eq!(found(&disk, FILE).unwrap().len(), 3 * PAGE);
            assert!(file.size().is_err(), "it was opened before");
            disk.restart(Restart::Machine);
            let bytes = found(&disk, FILE).unwrap();
            assert!(bytes[..2 * PAGE] == [1; 2 * PAGE]);
            let sectors: BTreeSet<u8> = bytes[2 * PAGE..].iter().copied().collect();
            seen.insert((
                !bytes.len().is_multiple_of(PAGE),
                sectors.into_iter().take(3).collect::<Vec<_>>(),
            ));
        }
        for expected in [vec![], vec![0], vec![2], vec![0, 2]] {
            assert!(seen.contains(&(false, expected)));
        }
        assert!(seen.iter().any(|(is_cut, _)| *is_cut));
    }

    #[test]
    fn what_a_failed_sync_has_dropped_is_never_written() {
        let mut num_lost = 0;
        for seed in 0..100 {
            let (disk, file) = with_file(seed);
            file.write_at(&[2; PAGE], 0).unwrap();
            disk.set_failing(1000);
            assert!(file.sync_data().is_err());
            disk.set_failing(0);
            file.sync_data().unwrap();
            assert_eq!(found(&disk, FILE).unwrap()[0], 2);
            disk.restart(Restart::Machine);
            num_lost += u32::from(found(&disk, FILE).unwrap()[0] == 1);
        }
        assert!((20..80).contains(&num_lost), "{num_lost}");
    }

    #[test]
    fn names_may_be_lost_one_by_one() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let (disk, _file) = with_file(seed);
            disk.create(Path::new("/store/a")).unwrap();
            disk.rename(Path::new("/store/a"), Path::new("/store/b")).unwrap();
            disk.delete(Path::new(FILE)).unwrap();
            assert_eq!(disk.list(Path::new("/store")).unwrap(), ["b"]);
            disk.restart(Restart::Machine);
            seen.insert(disk.list(Path::new("/store")).unwrap());
        }
        assert_eq!(seen.len(), 6, "{seen:?}");
    }

    #[test]
    fn it_stops_at_a_call_and_tells_its_calls() {
        let (disk, file) = with_file(1);
        let call = |what, name: &str| Call { what, name: name.to_owned() };
        let calls =
            [("create", "file"), ("write", "file"), ("sync", "file"), ("sync directory", "store")];
        assert_eq!(disk.take_calls(), calls.map(|(what, name)| call(what, name)));
        disk.stop_in(1);
        file.write_at(&[2; 2 * PAGE], 0).unwrap();
        assert!(!disk.has_stopped() && file.sync_data().is_err() && disk.has_stopped());
        assert!(disk.open(Path::new(FILE)).is_err() && file.size().is_err());
        assert_eq!(disk.take_calls(), [call("write", "file"), call("sync", "file")]);
    }
}
