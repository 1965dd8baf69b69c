// SPDX-License-Identifier: Apache-2.0
//! Directories: which are refused, and what is deleted in them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use reverb_base::{Error, ErrorKind};
use reverb_files::{Errno, FailingDisk, SystemDisk};
use reverb_store::{Store, StoreOptions};

use crate::chunks::on_disk;
use crate::{data_files, open, options};

fn refusal(path: &Path) -> Error {
    let error = Store::open(options(path), Arc::new(SystemDisk)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    error
}

#[test]
fn a_missing_directory_is_made_for_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data/replay");
    let store = open(options(&path), &FailingDisk::default());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let lock = fs::read_to_string(path.join("LOCK")).unwrap();
    assert!(lock.starts_with(&format!("{}@", std::process::id())), "{lock}");
    assert_eq!(store.status().path, path);
}

#[test]
fn what_is_no_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    for path in [file.clone(), file.join("below")] {
        let expected = format!(
            "Store(path) must be a directory that this process may write to, got {}: ",
            path.display()
        );
        let text = refusal(&path).message().to_lowercase();
        assert_eq!(text, format!("{}not a directory", expected.to_lowercase()));
    }
    let locked = directory.path().join("locked");
    fs::create_dir_all(locked.join("LOCK")).unwrap();
    assert!(refusal(&locked).message().ends_with("is not a file"));
}

#[test]
fn a_directory_in_use_is_refused_with_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let first = open(options(path), &FailingDisk::default());
    let text = format!("store {} is in use by", path.display());
    assert_eq!(refusal(path).message(), format!("{text} this process"));
    fs::write(path.join("LOCK"), "4711@node-3 x").unwrap();
    assert_eq!(refusal(path).message(), format!("{text} process 4711 on node-3"));
    fs::write(path.join("LOCK"), "").unwrap();
    assert_eq!(refusal(path).message(), format!("{text} this process"));
    drop(first);
    open(options(path), &FailingDisk::default());
}

#[test]
fn a_journal_is_refused_and_left_alone() {
    for (name, magic) in [("log-0000000031.seg", "RVBLOG01"), ("base-0000000031.seg", "RVBBASE1")] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join(name), format!("{magic}{}", "x".repeat(100))).unwrap();
        let expected = format!(
            "store {} is a journal: open it without journal=False, or give an empty directory",
            path.display()
        );
        assert_eq!(refusal(path).message(), expected);
        assert_eq!(fs::read_dir(path).unwrap().count(), 1);
        fs::write(path.join(name), "a log of something else").unwrap();
        drop(open(options(path), &FailingDisk::default()));
        assert!(path.join(name).exists());
    }
}

#[test]
fn only_files_of_the_same_store_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    leave_file(path);
    let ours = path.join("data-0000000001.seg");
    fs::copy(&ours, path.join("copy")).unwrap();
    // Files with a wrong number, of another store, and of something else.
    fs::copy(&ours, path.join("data-0000000002.seg")).unwrap();
    let other = tempfile::tempdir().unwrap();
    leave_file(other.path());
    fs::copy(other.path().join("data-0000000001.seg"), path.join("data-0000000003.seg")).unwrap();
    fs::write(path.join("data-0000000009.seg"), "x").unwrap();
    fs::write(path.join("data-1.seg"), "x").unwrap();
    let store = open(options(path), &FailingDisk::default());
    let foreign =
        ["data-0000000002.seg", "data-0000000003.seg", "data-0000000009.seg", "data-1.seg"];
    assert_eq!(data_files(path), foreign);
    assert!(path.join("copy").exists());
    let chunk = on_disk(1, 2000);
    store.write(vec![chunk.clone()], true);
    store.wait_until_written();
    assert_eq!(chunk.place().unwrap().file.number(), 10);
    drop(store);
    assert_eq!(data_files(path), foreign);
}

/// Leaves a data file, as a process that is killed does.
fn leave_file(path: &Path) {
    let disk = FailingDisk::default();
    let store = open(options(path), &disk);
    let chunk = on_disk(1, 2000);
    store.write(vec![chunk.clone()], true);
    store.wait_until_written();
    disk.set(|faults| faults.delete_error = Some(Errno::IO));
    drop(store);
    assert_eq!(data_files(path), ["data-0000000001.seg"]);
}

#[test]
fn a_budget_of_a_few_files_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_bytes: Some(1 << 20), ..StoreOptions::new(directory.path()) };
    let error = Store::open(options, Arc::new(SystemDisk)).unwrap_err();
    assert_eq!(error.message(), "Store(max_bytes) must be at least 64.0 MiB, got 1.0 MiB");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
