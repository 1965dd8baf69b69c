// SPDX-License-Identifier: Apache-2.0
//! Files that are damaged, missing, foreign or hostile: an error that names them, or a commit that
//! was made; never a panic, and never anything invented.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use reverb_base::{Error, ErrorKind};
use reverb_data::Chunk;
use reverb_files::SystemDisk;
use reverb_store::{Journal, Recovered};

use crate::journal::{LARGE, SMALL, base, chunk, commit, open};
use crate::options;
use crate::tables::{Seen, Tables};

/// A journal on disk: its directory, and what each commit has.
struct Stored {
    directory: tempfile::TempDir,
    commits: BTreeMap<u64, Seen>,
}

impl Stored {
    /// Two bases of two logs, and commits after each; those after the last are 4 and 5.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(directory.path(), &SystemDisk);
        let mut tables = Tables::new(0);
        let mut commits = BTreeMap::from([(0, Seen::default())]);
        for number in 1..6 {
            let chunks = [LARGE, SMALL, LARGE + 7 * number].map(chunk).to_vec();
            tables.insert(0, number, chunks);
            tables.change(0, number as usize / 2, |values| values.priority += 0.5);
            tables.note(vec![number as u8]);
            commits.insert(number, commit(&mut journal, &mut tables));
            if number == 3 {
                base(&mut journal, &tables);
            }
        }
        Self { directory, commits }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.seg").replace('-', "-000000000"))
    }

    fn open(&self) -> Result<(u64, u64), Error> {
        let opened = Journal::open(
            options(self.directory.path()),
            Arc::new(SystemDisk),
            &AtomicBool::new(false),
        );
        opened.map(|(_journal, recovered)| self.check(&recovered))
    }

    /// Compares with the commit that it is said to be. Returns that, and the bytes of a tail.
    fn check(&self, recovered: &Recovered) -> (u64, u64) {
        let (tables, seen) = Tables::recovered(recovered, 0);
        assert_eq!(seen, self.commits[&recovered.commit]);
        let is_right = |chunk: &Chunk| {
            let expected = crate::tables::plain(chunk.key());
            chunk.load().is_ok_and(|plain| plain.payload() == expected.payload())
        };
        assert!(tables.chunks().all(|chunk| is_right(chunk) || chunk.is_lost()));
        (recovered.commit, recovered.dropped_bytes)
    }

    /// The error of a start, after which all files are as they were.
    fn refusal(&self) -> Error {
        let before = contents(self.directory.path());
        let error = self.open().unwrap_err();
        assert!(contents(self.directory.path()) == before, "something has changed");
        error
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        edit(&mut bytes);
        fs::write(self.path(name), bytes).unwrap();
    }
}

fn is_log(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("log-")
}

/// Contents of all files but the lock.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.file_name().unwrap() != "LOCK");
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn at_frame(number: usize) -> usize {
    4096 * (1 + number)
}

#[test]
fn damage_that_was_on_disk_stops_the_start() {
    let stored = Stored::new();
    assert!(fs::metadata(stored.path("log-3")).unwrap().len() == at_frame(2) as u64);
    // A flipped bit in the first of two frames of the newest log.
    for at in [0, 9, 17, 33, 45, 64, 90] {
        stored.edit("log-3", |bytes| bytes[at_frame(0) + at] ^= 4);
        let error = stored.refusal();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        let text = error.message();
        let start = "store log-0000000003.seg is damaged at 4096: it was on disk before the crash. \
                     Items and updates since ";
        let end =
            format!(" would be lost: reverb store repair {}", stored.directory.path().display());
        assert!(text.starts_with(start) && text.ends_with(&end), "{text}");
        stored.edit("log-3", |bytes| bytes[at_frame(0) + at] ^= 4);
    }
    assert_eq!(stored.open().unwrap(), (5, 0));
}

#[test]
fn a_torn_tail_is_told_and_left() {
    type Edit = fn(&mut Vec<u8>);
    let edits: [(u64, Edit); 6] = [
        (4096, |bytes| bytes[at_frame(1) + 70] ^= 1),
        (4096, |bytes| bytes[at_frame(1)..].fill(0)),
        (100, |bytes| bytes.truncate(at_frame(1) + 100)),
        (4095, |bytes| bytes.truncate(at_frame(2) - 1)),
        // A commit that began and has nothing of its own.
        (8192, |bytes| bytes.extend([0; 8192])),
        (77, |bytes| bytes.extend([0xee; 77])),
    ];
    for (tail, edit) in edits {
        let stored = Stored::new();
        stored.edit("log-3", edit);
        let expected = if tail == 8192 || tail == 77 { 5 } else { 4 };
        assert_eq!(stored.open().unwrap(), (expected, tail));
        assert_eq!(stored.open().unwrap(), (expected, 0), "it ends where the new log says");
    }
}

#[test]
fn a_damaged_base_costs_a_longer_replay() {
    for at in [0, 20, 78, 4096, 4100, 4164, 8200, 12_300] {
        let stored = Stored::new();
        stored.edit("base-3", |bytes| bytes[at] ^= 16);
        assert_eq!(stored.open().unwrap(), (5, 0), "{at}");
    }
    let stored = Stored::new();
    stored.edit("base-3", |bytes| bytes.truncate(9000));
    assert_eq!(stored.open().unwrap(), (5, 0));
    stored.edit("base-1", |bytes| bytes[4100] ^= 16);
    let error = stored.refusal();
    assert!(error.message().contains("has no whole base ("), "{error}");
    assert_eq!(error.kind(), ErrorKind::DataLoss);
}

#[test]
fn a_missing_file_stops_the_start() {
    for (name, expected) in [
        ("log-3", "store log-0000000003.seg is damaged at 0"),
        ("data-2", "data-0000000002.seg, which cannot be opened"),
    ] {
        let stored = Stored::new();
        fs::remove_file(stored.path(name)).unwrap();
        let error = stored.refusal();
        assert!(error.message().contains(expected), "{error}");
        assert_eq!(error.kind(), ErrorKind::DataLoss);
    }
    let stored = Stored::new();
    for name in ["base-1", "base-3"] {
        fs::remove_file(stored.path(name)).unwrap();
    }
    assert!(stored.refusal().message().contains("has no whole base"));
    let stored = Stored::new();
    fs::remove_file(stored.path("base-3")).unwrap();
    assert_eq!(stored.open().unwrap(), (5, 0), "the base before is as good");
    // The newest log, which no other file names.
    let stored = Stored::new();
    stored.open().unwrap();
    let newest = contents(stored.directory.path()).into_keys().filter(|path| is_log(path)).max();
    fs::remove_file(newest.unwrap()).unwrap();
    let error = stored.refusal();
    assert!(error.message().contains("is damaged at 0: it was on disk"), "{error}");
    // Without a base, the log before is not needed.
    let stored = Stored::new();
    fs::remove_file(stored.path("log-1")).unwrap();
    assert_eq!(stored.open().unwrap(), (5, 0));
}

#[test]
fn a_data_file_that_is_too_short_stops_the_start_and_a_wrong_byte_costs_its_items() {
    let stored = Stored::new();
    stored.edit("data-2", |bytes| bytes[5000] ^= 1);
    assert_eq!(stored.open().unwrap(), (5, 0));
    stored.edit("data-2", |bytes| bytes.truncate(6000));
    let error = stored.refusal();
    assert!(error.message().contains("data-0000000002.seg, which ends at 6000"), "{error}");
    assert!(error.message().contains("item "), "{error}");
}

#[test]
fn files_of_others_stop_the_start_and_stay() {
    for name in ["log-3", "base-3", "data-2"] {
        let (stored, other) = (Stored::new(), Stored::new());
        fs::copy(other.path(name), stored.path(name)).unwrap();
        let error = stored.refusal();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().contains("of another store"), "{error}");
    }
    let stored = Stored::new();
    fs::write(stored.directory.path().join("mine"), "x").unwrap();
    fs::write(stored.path("data-9"), "something else").unwrap();
    fs::write(stored.directory.path().join("LOCK"), "nonsense").unwrap();
    assert_eq!(stored.open().unwrap(), (5, 0));
    assert!(stored.directory.path().join("mine").exists());
}

#[test]
fn frames_in_records_are_no_frames() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut journal, _) = open(path, &SystemDisk);
    let mut tables = Tables::new(0);
    commit(&mut journal, &mut tables);
    let seen = commit(&mut journal, &mut tables);
    drop(journal);
    let log = path.join("log-0000000001.seg");
    let mut bytes = fs::read(&log).unwrap();
    let frames = bytes[at_frame(0)..].to_vec();
    bytes.extend([0xee; 4096]);
    bytes.extend(&frames);
    fs::write(&log, &bytes).unwrap();
    let (_, recovered) = open(path, &SystemDisk);
    assert_eq!((recovered.commit, Tables::recovered(&recovered, 0).1), (2, seen));
    assert_eq!(recovered.dropped_bytes, 4096 + frames.len() as u64);
    // The same as what a peer could send, if it knew the random bytes of the file.
    let (mut journal, _) = open(path, &SystemDisk);
    tables.note(frames.clone());
    commit(&mut journal, &mut tables);
    drop(journal);
    let (_, recovered) = open(path, &SystemDisk);
    assert!(recovered.notes[0].text == frames);
}

/// A change of a file's bytes.
#[derive(Debug, Clone)]
enum Edit {
    Flip(prop::sample::Index, u8),
    Overwrite(prop::sample::Index, Vec<u8>),
    Insert(prop::sample::Index, Vec<u8>),
    Truncate(prop::sample::Index),
    Replace(Vec<u8>),
    CopyPage(prop::sample::Index, prop::sample::Index),
    Remove,
    TakeFrom(prop::sample::Index),
}

fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, Edit)>> {
    let at = any::<prop::sample::Index>;
    let bytes = || prop::collection::vec(any::<u8>(), 1..5000);
    let edit = prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, bit)| Edit::Flip(at, bit % 8)),
        2 => (at(), bytes()).prop_map(|(at, bytes)| Edit::Overwrite(at, bytes)),
        1 => (at(), bytes()).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => at().prop_map(Edit::Truncate),
        1 => bytes().prop_map(Edit::Replace),
        2 => (at(), at()).prop_map(|(from, to)| Edit::CopyPage(from, to)),
        1 => Just(Edit::Remove),
        1 => at().prop_map(Edit::TakeFrom),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), edit), 1..4)
}

fn apply(files: &mut BTreeMap<PathBuf, Vec<u8>>, (which, edit): (prop::sample::Index, Edit)) {
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    let Some(name) = names.get(which.index(names.len().max(1))) else { return };
    if let Edit::TakeFrom(other) = &edit {
        let bytes = files[&names[other.index(names.len())]].clone();
        files.insert(name.clone(), bytes);
        return;
    }
    let bytes = files.get_mut(name).unwrap();
    let len = bytes.len().max(1);
    match edit {
        Edit::Flip(at, bit) => bytes.get_mut(at.index(len)).map_or((), |byte| *byte ^= 1 << bit),
        Edit::Overwrite(at, new) => {
            let at = at.index(len);
            bytes.iter_mut().skip(at).zip(new).for_each(|(byte, new)| *byte = new);
        }
        Edit::Insert(at, new) => drop(bytes.splice(at.index(len).min(bytes.len()).., new)),
        Edit::Truncate(at) => bytes.truncate(at.index(len)),
        Edit::Replace(new) => *bytes = new,
        Edit::CopyPage(from, to) => {
            let page = |at: usize| at.min(bytes.len()) / 4096 * 4096;
            let (from, to) = (page(from.index(len)), page(to.index(len)));
            let page = bytes[from..].iter().copied().take(4096).collect::<Vec<_>>();
            bytes.iter_mut().skip(to).zip(page).for_each(|(byte, new)| *byte = new);
        }
        Edit::Remove => drop(files.remove(name)),
        Edit::TakeFrom(_) => {}
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(250)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_are_an_error_or_a_commit_that_was_made(edits in edits()) {
        use std::sync::LazyLock;
        static STORED: LazyLock<Stored> = LazyLock::new(Stored::new);
        let directory = tempfile::tempdir().unwrap();
        let mut files = contents(STORED.directory.path());
        for edit in edits {
            apply(&mut files, edit);
        }
        for (path, bytes) in files {
            fs::write(directory.path().join(path.file_name().unwrap()), bytes).unwrap();
        }
        for _ in 0..2 {
            let opened = Journal::open(options(directory.path()), Arc::new(SystemDisk), &AtomicBool::new(false));
            match opened {
                Ok((_journal, recovered)) => drop(STORED.check(&recovered)),
                Err(error) => {
                    let kinds = [ErrorKind::DataLoss, ErrorKind::FailedPrecondition];
                    prop_assert!(kinds.contains(&error.kind()), "{}", error);
                }
            }
        }
    }
}
