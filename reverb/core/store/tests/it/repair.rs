// SPDX-License-Identifier: Apache-2.0
//! Journals that are damaged: a check says so, and a repair keeps all that is before the damage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use reverb_base::Result;
use reverb_files::{Disk, Restart, SimulatedDisk};
use reverb_store::{Journal, Recovered, Report, check, repair};

use crate::crashes::{History, cases, restart, steps};
use crate::options;
use crate::tables::{Seen, Tables, check_chunk};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Contents of the files of a disk, by their paths.
fn contents(disk: &dyn Disk, directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let names = disk.list(directory).unwrap().into_iter().map(|name| directory.join(name));
    let read = |path: PathBuf| {
        let file = disk.open(&path).unwrap();
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        (path, bytes)
    };
    names.map(read).collect()
}

/// Another disk with these files.
fn disk_of(files: &BTreeMap<PathBuf, Vec<u8>>, directory: &Path, seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed);
    // It is a real file, and names the newest log of the history.
    let _ = std::fs::remove_file(directory.join("LOCK"));
    for (path, bytes) in files {
        let file = disk.create(path).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync_data().unwrap();
    }
    disk.sync_directory(directory).unwrap();
    disk
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(prop::sample::Index),
    Truncate(prop::sample::Index),
    Zero(prop::sample::Index),
    Delete,
}

/// Kind of the file, which of them, and what happens to it.
type DamageAt = (usize, prop::sample::Index, Damage);

fn damage() -> impl Strategy<Value = DamageAt> {
    let at = any::<prop::sample::Index>;
    let damage = prop_oneof![
        4 => at().prop_map(Damage::Flip),
        2 => at().prop_map(Damage::Truncate),
        2 => at().prop_map(Damage::Zero),
        1 => Just(Damage::Delete),
    ];
    (0..3_usize, at(), damage)
}

fn apply(files: &mut BTreeMap<PathBuf, Vec<u8>>, (kind, which, damage): DamageAt) {
    let prefix = ["data-", "log-", "base-"][kind];
    let is_of_kind =
        |path: &&PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(prefix);
    let paths: Vec<PathBuf> = files.keys().filter(is_of_kind).cloned().collect();
    let Some(path) = paths.get(which.index(paths.len().max(1))) else { return };
    // Without its lock file nothing names the newest log, so nobody would miss it.
    if matches!(damage, Damage::Delete) && kind == 1 && Some(path) == paths.last() {
        return;
    }
    let bytes = files.get_mut(path).unwrap();
    let len = bytes.len().max(1);
    match damage {
        Damage::Flip(at) => bytes.get_mut(at.index(len)).map_or((), |byte| *byte ^= 16),
        Damage::Truncate(at) => bytes.truncate(at.index(len)),
        Damage::Zero(at) => {
            bytes.iter_mut().skip(at.index(len) & !4095).take(4096).for_each(|it| *it = 0);
        }
        Damage::Delete => drop(files.remove(path)),
    }
}

/// Opens the journal of a disk. Returns true if all its payloads can be read.
fn reads_all(directory: &Path, disk: &SimulatedDisk) -> Result<bool> {
    let (_journal, recovered) = Journal::open(options(directory), Arc::new(disk.clone()), &NEVER)?;
    let items = recovered.tables.iter().flat_map(|table| &table.items);
    Ok(items.flat_map(|item| &item.chunks).all(|chunk| chunk.load().is_ok()))
}

/// Checks what a repaired journal has: a commit that was made, without the items that are named.
///
/// Or one that was given up, if nothing is left that says so: a crash had left its frame at the end
/// of a log, and what was damaged is the head of the next log, which says that it does not count.
fn expect(recovered: &Recovered, history: &History, report: &Report) {
    let (tables, seen) = Tables::recovered(recovered, 0);
    assert_eq!(recovered.commit, report.commit);
    let mut given_up = history.given_up.iter().filter(|(number, _)| *number == report.commit);
    let is_given_up = |it: &Seen| without_lost(it, report).as_ref() == Some(&seen);
    if !report.is_damaged() || !given_up.any(|(_, it)| is_given_up(it)) {
        assert_eq!(Some(seen), without_lost(&history.commits[&report.commit], report));
    }
    tables.chunks().for_each(check_chunk);
}

/// The tables of a commit without the items that a report names; `None` if one is not there.
fn without_lost(seen: &Seen, report: &Report) -> Option<Seen> {
    let mut seen = seen.clone();
    for table in &report.tables {
        for key in table.lost.values().flatten() {
            seen.tables.get_mut(table.number as usize)?.items.remove(key)?;
        }
    }
    Some(seen)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_repair_keeps_what_is_before_the_damage(
        seed in any::<u64>(),
        steps in steps(),
        restart in restart(),
        damages in prop::collection::vec(damage(), 0..4),
        stop in prop::option::of(0..20_u64),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut history = History::new(path, seed);
        for step in steps {
            history.run(step);
        }
        history.journal = None;
        history.disk.restart(restart);
        let mut files = contents(&history.disk, path);
        let num_damages = damages.len();
        for damage in damages {
            apply(&mut files, damage);
        }
        // An empty directory is a new store.
        prop_assume!(!files.is_empty());
        let opened = reads_all(path, &disk_of(&files, path, seed));
        let disk = disk_of(&files, path, seed);
        let checked = check(path, Arc::new(disk.clone()), u64::MAX, &NEVER);
        prop_assert!(contents(&disk, path) == files, "a check has changed something");
        let is_damaged = checked.as_ref().map_or(true, Report::is_damaged);
        prop_assert_eq!(is_damaged, !matches!(opened, Ok(true)), "{:?}, {:?}", opened, checked);
        prop_assert!(num_damages > 0 || !is_damaged);
        let repaired = repair_after_stop(path, &disk, stop);
        if let Err(error) = &repaired {
            // No file of a base or the log is left that says anything.
            prop_assert_eq!(error.message(), checked.as_ref().unwrap_err().message());
            // Nor, then, whose the data files are.
            let texts = ["none of its items can be kept", "is of another store, or has another's name"];
            prop_assert!(texts.iter().any(|text| error.message().contains(text)), "{}", error);
            return Ok(());
        }
        for _ in 0..2 {
            let opened = Journal::open(options(path), Arc::new(disk.clone()), &NEVER);
            let (_journal, recovered) = opened.map_err(|error| TestCaseError::fail(error.to_string()))?;
            expect(&recovered, &history, checked.as_ref().unwrap());
            disk.restart(Restart::Machine);
        }
        let healthy = check(path, Arc::new(disk), u64::MAX, &NEVER).unwrap();
        prop_assert!(!healthy.is_damaged(), "{:?}", healthy);
    }
}

/// Repairs, again if the disk has stopped before it was done.
fn repair_after_stop(path: &Path, disk: &SimulatedDisk, stop: Option<u64>) -> Result<Report> {
    if let Some(calls) = stop {
        disk.stop_in(calls);
        let repaired = repair(path, Arc::new(disk.clone()), u64::MAX, &NEVER);
        let has_stopped = disk.has_stopped();
        disk.restart(Restart::Machine);
        if !has_stopped {
            return repaired;
        }
    }
    repair(path, Arc::new(disk.clone()), u64::MAX, &NEVER)
}
