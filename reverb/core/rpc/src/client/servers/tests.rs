// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);
const PATH: &str = "/test/Call";

/// DNS zone with the addresses of a name. A test can change them while they are in use.
#[derive(Default)]
struct Zone {
    addresses: Mutex<Vec<SocketAddr>>,
    is_down: AtomicBool,
    resolutions: AtomicUsize,
}

impl Zone {
    fn servers(self: &Arc<Self>, target: &str) -> Arc<Servers> {
        let zone = Arc::clone(self);
        let resolver = move |_| -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            zone.resolutions.fetch_add(1, Ordering::Relaxed);
            let answer = if zone.is_down.load(Ordering::Relaxed) {
                Err(io::Error::other("no name server"))
            } else {
                Ok(zone.addresses.lock().clone())
            };
            Box::pin(async { answer })
        };
        Servers::with_resolver(
            Target::parse(target).unwrap(),
            ConnectionOptions::default(),
            Box::new(resolver),
        )
    }

    fn set(&self, hosts: &[&Host]) {
        *self.addresses.lock() = hosts.iter().map(|host| host.address).collect();
    }

    fn resolutions(&self) -> usize {
        self.resolutions.load(Ordering::Relaxed)
    }
}

/// A server that only answers pings.
struct Host {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    serving: AbortHandle,
}

impl Host {
    async fn start(ip: &str) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(async move {
                    let mut connection = h2::server::handshake(socket).await.unwrap();
                    while connection.accept().await.is_some() {}
                });
            }
        });
        Self { address, connections, serving: serving.abort_handle() }
    }

    /// Closes the port and all connections. The paused clock advances only after all tasks have
    /// seen it.
    async fn stop(&self) {
        self.serving.abort();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// The servers that the next `count` calls reach, sorted.
async fn reached(servers: &Arc<Servers>, count: usize) -> Vec<String> {
    let mut peers = Vec::new();
    for _ in 0..count {
        peers.push(servers.connection(PATH, LIMIT).await.unwrap().peer);
    }
    peers.sort();
    peers
}

#[tokio::test(start_paused = true)]
async fn a_name_with_several_addresses_is_several_servers() {
    let hosts = [Host::start("127.0.0.1").await, Host::start("127.0.0.2").await];
    let zone = Arc::new(Zone::default());
    zone.set(&[&hosts[0], &hosts[1], &hosts[0]]);
    let servers = zone.servers("replay:80");
    assert_eq!(servers.num_servers(), 1, "the name is not resolved yet");
    let peers = reached(&servers, 4).await;
    assert_eq!(
        peers,
        ["replay:80 (127.0.0.1)"; 2]
            .into_iter()
            .chain(["replay:80 (127.0.0.2)"; 2])
            .collect::<Vec<_>>()
    );
    assert_eq!(servers.num_servers(), 2);
    assert_eq!(zone.resolutions(), 1);
}

#[tokio::test]
async fn localhost_is_one_server_in_both_families() {
    let zone = Arc::new(Zone::default());
    *zone.addresses.lock() = vec!["[::1]:80".parse().unwrap(), "127.0.0.1:80".parse().unwrap()];
    let servers = zone.servers("localhost:80");
    let servers = servers.servers().await.unwrap();
    assert_eq!(servers.len(), 1);
    assert_eq!(servers[0].addresses.len(), 2);
    assert_eq!(servers[0].peer, "localhost:80");
}

#[tokio::test(start_paused = true)]
async fn names_are_resolved_again_when_one_of_several_servers_fails() {
    let hosts = [
        Host::start("127.0.0.1").await,
        Host::start("127.0.0.2").await,
        Host::start("127.0.0.3").await,
    ];
    let zone = Arc::new(Zone::default());
    zone.set(&[&hosts[0], &hosts[1]]);
    let servers = zone.servers("replay:80");
    reached(&servers, 2).await;
    zone.set(&[&hosts[0], &hosts[2]]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    reached(&servers, 4).await;
    assert_eq!(zone.resolutions(), 1, "nothing failed");
    hosts[1].stop().await;
    // One of the next two calls tries it first, and then goes to the other server.
    let peers = reached(&servers, 2).await;
    assert_eq!(peers, ["replay:80 (127.0.0.1)"; 2]);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(zone.resolutions(), 2);
    let peers = reached(&servers, 2).await;
    assert_eq!(peers, ["replay:80 (127.0.0.1)", "replay:80 (127.0.0.3)"]);
    assert_eq!(hosts[0].connections(), 1, "a server that stayed keeps its connection");
}

#[tokio::test(start_paused = true)]
async fn names_are_resolved_at_most_once_a_second() {
    let hosts = [Host::start("127.0.0.1").await, Host::start("127.0.0.2").await];
    let zone = Arc::new(Zone::default());
    zone.set(&[&hosts[0], &hosts[1]]);
    let servers = zone.servers("replay:80");
    reached(&servers, 2).await;
    hosts[1].stop().await;
    for _ in 0..100 {
        reached(&servers, 2).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!((5..=11).contains(&zone.resolutions()), "{} in 10 s", zone.resolutions());
}

#[tokio::test(start_paused = true)]
async fn without_a_name_server_the_known_servers_stay() {
    let hosts = [Host::start("127.0.0.1").await, Host::start("127.0.0.2").await];
    let zone = Arc::new(Zone::default());
    zone.set(&[&hosts[0], &hosts[1]]);
    let servers = zone.servers("replay:80");
    reached(&servers, 2).await;
    zone.is_down.store(true, Ordering::Relaxed);
    hosts[1].stop().await;
    for _ in 0..10 {
        assert_eq!(reached(&servers, 2).await, ["replay:80 (127.0.0.1)"; 2]);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(zone.resolutions() > 1);
    assert_eq!(servers.num_servers(), 2);
    hosts[0].stop().await;
    let error = servers.connection(PATH, LIMIT).await.err().unwrap();
    for host in ["replay:80 (127.0.0.1)", "replay:80 (127.0.0.2)"] {
        assert!(error.message().contains(host), "{error}");
    }
    // The next call resolves the names first.
    let moved = Host::start("127.0.0.3").await;
    zone.set(&[&moved]);
    zone.is_down.store(false, Ordering::Relaxed);
    assert_eq!(reached(&servers, 1).await, ["replay:80"]);
    assert_eq!(servers.num_servers(), 1);
}

#[tokio::test]
async fn an_unknown_name_is_reported() {
    let zone = Arc::new(Zone::default());
    let error = zone.servers("replay:80").connection(PATH, LIMIT).await.err().unwrap();
    assert!(error.message().contains("replay:80: the name has no address"), "{error}");
}
