// SPDX-License-Identifier: Apache-2.0
//! A forked child leaves the store to its parent.

use reverb_files::FailingDisk;

use crate::chunks::{check, on_disk};
use crate::{data_files, open, options};

#[test]
fn a_child_neither_writes_nor_deletes() {
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let program = program.args(["--ignored", "--exact", "forked::as_in_a_child"]);
    assert!(program.output().unwrap().status.success());
}

#[test]
#[ignore = "runs in a process of its own, which it makes a child"]
fn as_in_a_child() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(options(directory.path()), &FailingDisk::default());
    let chunk = on_disk(1, 20_000);
    store.write(vec![chunk.clone()], true);
    store.wait_until_written();
    let names = data_files(directory.path());
    reverb_base::process::after_fork_in_child();
    assert!(!store.write(vec![on_disk(2, 2000)], true));
    check(&chunk, 20_000);
    drop(chunk);
    drop(store);
    assert_eq!(data_files(directory.path()), names);
}
