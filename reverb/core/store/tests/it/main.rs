// SPDX-License-Identifier: Apache-2.0
//! Stores on true files. One test binary, because each one costs a link.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may")]

mod chunks;
mod crashes;
mod damage;
mod directory;
mod failing;
mod forked;
mod garbage;
mod journal;
mod random;
mod repair;
mod tables;
mod writing;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_files::FailingDisk;
use reverb_store::{Store, StoreOptions};

/// A store whose files have ten payloads of 2,000 bytes.
fn options(path: &Path) -> StoreOptions {
    StoreOptions { min_file_bytes: 23 << 10, ..StoreOptions::new(path) }
}

fn open(options: StoreOptions, disk: &FailingDisk) -> Store {
    Store::open(options, Arc::new(disk.clone())).unwrap()
}

/// Names of the data files, in order.
fn data_files(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("data-"));
    names.sort();
    names
}

/// Waits for what another thread does.
#[track_caller]
fn eventually(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < end, "it has not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
