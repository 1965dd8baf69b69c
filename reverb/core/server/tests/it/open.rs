// SPDX-License-Identifier: Apache-2.0
//! The beginning of a server: what it loads, and what is left of it when it cannot start.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use crate::http_port::get;
use crate::support::*;
use reverb_base::{ErrorKind, Result};
use reverb_checkpoint::Progress;
use reverb_data::TableConfig;
use reverb_engine::Table;
use reverb_rpc::target::Loopback;
use reverb_server::{
    CheckpointOptions, Config, HttpOptions, Limits, Opened, Server, ServerOptions, local_shard,
};
use tokio::runtime::Handle;

fn config_of(root: &Path) -> Config {
    let root = Some(root.to_owned());
    let checkpoints = CheckpointOptions { root, ..CheckpointOptions::default() };
    let server = ServerOptions { checkpoints, ..ServerOptions::default() };
    let http = HttpOptions { host: "127.0.0.1".into(), port: 0, tls: false };
    Config { server, http: Some(http), ..Config::default() }
}

/// Opening blocks, so it is not for a thread of the runtime.
async fn open(table: &Arc<Table>, config: Config, progress: &Arc<Progress>) -> Result<Opened> {
    let (tables, progress) = (vec![Arc::clone(table)], Arc::clone(progress));
    let work = move || Server::open(tables, config, &Handle::current(), &progress);
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Saves a table `a` with three items.
async fn save(root: &Path) {
    let opened = open(&table(config("a")), config_of(root), &Arc::default()).await.unwrap();
    let server = opened.start().unwrap();
    let transport = local_shard(Loopback::localhost(server.port())).unwrap();
    let mut insert = transport.open_insert().await.unwrap();
    let chunks = (1..=3).map(|key| chunk(key, &[1])).collect();
    insert.sink.send(batch("a", chunks)).await.unwrap();
    confirmed(&mut insert.confirmations, 3).await;
    server.checkpoint().await.unwrap();
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_http_port_is_open_while_tables_load_and_ready_when_they_serve() {
    let root = tempfile::tempdir().unwrap();
    save(root.path()).await;
    let loaded = table(config("a"));
    let port = free_port();
    let mut config = config_of(root.path());
    config.http.as_mut().unwrap().port = port;
    let opened = open(&loaded, config, &Arc::default()).await.unwrap();
    assert_eq!(loaded.len(), 3);
    assert_eq!(get(port, "/readyz").await.0, "503");
    let server = opened.start().unwrap();
    assert_eq!(server.http_port(), Some(port));
    assert_eq!(get(port, "/readyz").await.0, "200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_start_gives_its_tables_back() {
    let root = tempfile::tempdir().unwrap();
    save(root.path()).await;
    let other = start(vec![table(config("b"))]);
    let given = table(config("a"));
    let mut config = config_of(root.path());
    config.server.port = other.port();
    let opened = open(&given, config, &Arc::default()).await.unwrap();
    assert_eq!(given.len(), 3);
    let error = opened.start().unwrap_err();
    assert!(error.message().contains(&format!("port {}", other.port())), "{error}");
    assert_eq!(given.len(), 0);
    // Neither the tables nor the checkpoint belong to anybody.
    let opened = open(&given, config_of(root.path()), &Arc::default()).await.unwrap();
    assert_eq!(opened.start().unwrap().tables()[0].len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_is_cancelled_leaves_the_tables_and_the_http_port() {
    let root = tempfile::tempdir().unwrap();
    save(root.path()).await;
    let given = table(config("a"));
    let (progress, port) = (Arc::new(Progress::default()), free_port());
    progress.cancel();
    let mut config = config_of(root.path());
    config.http.as_mut().unwrap().port = port;
    refused(open(&given, config, &progress).await, ErrorKind::Cancelled, "");
    assert_eq!(given.len(), 0);
    assert!(is_free(port));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_come_from_the_checkpoint_if_that_was_asked_for() {
    let root = tempfile::tempdir().unwrap();
    save(root.path()).await;
    for (restore_settings, max_size) in [(false, 7), (true, 1000)] {
        let given = table(TableConfig { max_size: 7, ..config("a") });
        let config = Config { restore_settings, ..config_of(root.path()) };
        let server = open(&given, config, &Arc::default()).await.unwrap().start().unwrap();
        assert_eq!(server.tables()[0].config().max_size, max_size);
        assert_eq!(server.tables()[0].len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_that_cannot_be_are_refused_before_anything_is_loaded() {
    let root = tempfile::tempdir().unwrap();
    save(root.path()).await;
    let given = table(config("a"));
    let mut limits = config_of(root.path());
    limits.server.limits = Limits { streams: 1, ..Limits::default() };
    let mut unix = config_of(root.path());
    unix.server.unix_path = Some("x".repeat(200).into());
    for (config, text) in [(limits, "Limits.streams"), (unix, "unix_path")] {
        let progress = Arc::new(Progress::default());
        refused(open(&given, config, &progress).await, ErrorKind::InvalidArgument, text);
        assert_eq!(progress.bytes_done(), 0);
    }
}
