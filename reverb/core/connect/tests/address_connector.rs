// SPDX-License-Identifier: Apache-2.0
//! Servers of this process are reached without a socket, and as soon as they have started.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may")]

use std::path::Path;
use std::time::Duration;

use reverb_base::ErrorKind;
use reverb_client::Connector;
use reverb_connect::{AddressConnector, Options, group_of, target_of};
use reverb_data::TableConfig;
use reverb_engine::Table;
use reverb_rpc::Keepalive;
use reverb_rpc::client::{Credentials, Environment};
use reverb_server::{Server, ServerOptions};
use reverb_wire::Calls as _;
use tokio::runtime::Handle;

fn options() -> Options {
    let target = target_of("localhost:1").unwrap();
    let security = Credentials::default().open(&target, Environment::now()).unwrap();
    let connect_timeout = Duration::from_secs(20);
    Options {
        connect_timeout,
        keepalive: Keepalive::default(),
        security,
        runtime: Handle::current(),
    }
}

fn serve(port: u16, unix_path: Option<&Path>) -> Server {
    let table = Table::new(TableConfig { seed: Some(1), ..TableConfig::fifo("a", 10) });
    let unix_path = unix_path.map(Path::to_owned);
    let options = ServerOptions { port, unix_path, ..ServerOptions::default() };
    Server::start(vec![table.unwrap()], &options, &Handle::current()).unwrap()
}

fn is_local(connector: &AddressConnector) -> bool {
    matches!(connector, AddressConnector::Servers(servers) if servers.is_local())
}

#[tokio::test]
async fn a_server_that_starts_here_later_is_found_and_left_when_it_stops() {
    let first = serve(0, None);
    let port = first.port();
    let connector = AddressConnector::new(&format!("localhost:{port}"), options()).unwrap();
    assert!(is_local(&connector));
    first.stop();
    first.wait().await;
    assert!(!is_local(&connector));
    let second = serve(port, None);
    assert!(is_local(&connector));
    assert_eq!(connector.transport().unwrap().server_info().await.unwrap().tables.len(), 1);
    second.stop();
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_of_this_process_needs_no_connection() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("private/socket");
    let connector =
        AddressConnector::new(&format!("unix://{}", path.display()), options()).unwrap();
    assert!(!is_local(&connector));
    let _server = serve(0, Some(&path));
    assert!(is_local(&connector));
}

#[tokio::test]
async fn another_host_of_the_same_port_is_reached_over_grpc() {
    let server = serve(0, None);
    let connector =
        AddressConnector::new(&format!("10.0.0.1:{}", server.port()), options()).unwrap();
    assert!(!is_local(&connector));
}

#[tokio::test]
async fn the_address_of_a_group_leads_to_all_of_its_shards() {
    let server = serve(0, None);
    let address = format!("shards:///localhost:{},localhost:1", server.port());
    let connector = AddressConnector::new(&address, options()).unwrap();
    assert!(matches!(connector, AddressConnector::Group(..)));
    // Its streams go to all shards, not to one of several in turn.
    assert!(!connector.has_several_servers());
    let seeds = target_of(&address).unwrap();
    assert_eq!(seeds, target_of(&format!("localhost:{},localhost:1", server.port())).unwrap());
}

#[tokio::test]
async fn an_address_that_cannot_be_is_refused_at_once() {
    for address in ["shards:///", "localhost:1"] {
        assert_eq!(group_of(address, options()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for address in ["nowhere", "shards:///nowhere"] {
        assert_eq!(target_of(address).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
