// SPDX-License-Identifier: Apache-2.0
//! The servers of a target, and the resolution of their host names.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use tokio::time::Instant;

use super::connection::{Connection, ConnectionOptions, Failure, Server};
use super::round_robin::RoundRobin;
use crate::BoxFuture;
use crate::target::{HostPort, ServerAddress, Target};

/// Time limit for a host that does not answer at all. A refusal arrives at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum time between two resolutions of the names.
const MIN_RESOLVE_INTERVAL: Duration = Duration::from_secs(1);

type Resolver = dyn Fn(HostPort) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

pub(super) struct Servers {
    target: Target,
    options: ConnectionOptions,
    resolver: Box<Resolver>,
    names: Mutex<Names>,
    /// Held while names are resolved, so that concurrent calls share one resolution.
    resolving: tokio::sync::Mutex<()>,
    round_robin: RoundRobin,
}

#[derive(Default)]
struct Names {
    servers: Arc<[Arc<Server>]>,
    /// Time of the last resolution. If `None`, the next call resolves the names first.
    resolved_at: Option<Instant>,
}

impl Servers {
    pub(super) fn new(target: Target, options: ConnectionOptions) -> Arc<Self> {
        let resolver = |host_port: HostPort| -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            Box::pin(async move {
                let host = (host_port.host.as_str(), host_port.port);
                Ok(tokio::net::lookup_host(host).await?.collect())
            })
        };
        Self::with_resolver(target, options, Box::new(resolver))
    }

    fn with_resolver(
        target: Target,
        options: ConnectionOptions,
        resolver: Box<Resolver>,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            options,
            resolver,
            names: Mutex::default(),
            resolving: tokio::sync::Mutex::new(()),
            round_robin: RoundRobin::new(),
        })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn options(&self) -> &ConnectionOptions {
        &self.options
    }

    /// Number of servers known so far. A name may resolve to several.
    pub(super) fn num_servers(&self) -> usize {
        self.names.lock().servers.len().max(self.target.servers.len())
    }

    /// True if no server is going to answer any more: all are down, as far as is known, and one of
    /// them has said that it has stopped for good.
    pub(super) fn have_ended(&self) -> bool {
        let servers = Arc::clone(&self.names.lock().servers);
        servers.iter().all(|server| server.is_down())
            && servers.iter().any(|server| server.has_ended())
    }

    /// Connection for the next call with this path.
    ///
    /// # Errors
    ///
    /// `Unavailable` that names every server and the reason for which it could not be reached. It
    /// is lasting if TLS has failed with all of them.
    pub(super) async fn connection(
        self: &Arc<Self>,
        path: &str,
        limit: Duration,
    ) -> Result<Connection> {
        let servers = self.servers().await?;
        // A server that does not answer must leave time for the others.
        let each = limit.div_f64(servers.len() as f64).min(CONNECT_TIMEOUT);
        let first = self.round_robin.next(path, servers.len());
        let rotated = || servers[first..].iter().chain(&servers[..first]);
        let (tried_last, tried_first): (Vec<_>, Vec<_>) =
            rotated().partition(|server| servers.len() > 1 && server.is_backing_off());
        let mut failures = Vec::new();
        let mut is_lasting = true;
        for server in tried_first.into_iter().chain(tried_last) {
            match server.connection(each, &self.options).await {
                Ok(connection) => return Ok(connection),
                Err(Failure { error, is_lasting: lasts }) => {
                    if lasts && servers.len() > 1 {
                        let peer = &server.peer;
                        tracing::warn!(%peer, "a server of several is left out: {error}");
                    }
                    is_lasting &= lasts;
                    failures.push(format!("{}: {error}", server.peer));
                }
            }
            if servers.len() > 1 {
                // The server may have moved. The call need not wait for the resolution, because
                // there are other servers.
                self.resolve_in_background();
            }
        }
        self.names.lock().resolved_at = None;
        let error =
            Error::unavailable(format!("No server could be reached at {}.", failures.join(", ")));
        Err(if is_lasting { error.lasting() } else { error })
    }

    async fn servers(&self) -> Result<Arc<[Arc<Server>]>> {
        if let Some(servers) = self.known_servers() {
            return Ok(servers);
        }
        let _guard = self.resolving.lock().await;
        match self.known_servers() {
            Some(servers) => Ok(servers),
            None => self.resolve().await,
        }
    }

    fn known_servers(&self) -> Option<Arc<[Arc<Server>]>> {
        let names = self.names.lock();
        names.resolved_at.is_some().then(|| Arc::clone(&names.servers))
    }

    fn resolve_in_background(self: &Arc<Self>) {
        let is_due = |all: &Self| {
            all.names.lock().resolved_at.is_some_and(|at| at.elapsed() >= MIN_RESOLVE_INTERVAL)
        };
        if !is_due(self) {
            return;
        }
        let all = Arc::clone(self);
        tokio::spawn(async move {
            let _guard = all.resolving.lock().await;
            if is_due(&all)
                && let Err(error) = all.resolve().await
            {
                tracing::debug!("{error}");
            }
        });
    }

    /// Resolves all names. Servers whose addresses are unchanged keep their connections. Servers of
    /// a name that cannot be resolved now stay in the list.
    async fn resolve(&self) -> Result<Arc<[Arc<Server>]>> {
        let known = Arc::clone(&self.names.lock().servers);
        let mut found: Vec<Arc<Server>> = Vec::new();
        let mut failures = Vec::new();
        for wanted in &self.target.servers {
            let mut known = known.iter().filter(|server| server.address == *wanted);
            let host_port = match wanted {
                ServerAddress::Host(host_port) => host_port,
                ServerAddress::Socket(path) => {
                    found.push(known.next().cloned().unwrap_or_else(|| {
                        Arc::new(Server::new(wanted, Vec::new(), path.to_string()))
                    }));
                    continue;
                }
            };
            match self.addresses(host_port).await {
                Ok(groups) => found.extend(groups.iter().map(|addresses| {
                    let same = |server: &&Arc<Server>| server.addresses == *addresses;
                    known.clone().find(same).cloned().unwrap_or_else(|| {
                        let peer = peer(host_port, addresses, groups.len());
                        Arc::new(Server::new(wanted, addresses.clone(), peer))
                    })
                })),
                Err(error) => {
                    failures.push(format!("{}: {error}", host_port.authority()));
                    found.extend(known.by_ref().cloned());
                }
            }
        }
        if found.is_empty() {
            return Err(Error::unavailable(format!(
                "No server could be reached at {}.",
                failures.join(", ")
            )));
        }
        let mut names = self.names.lock();
        names.servers = found.into();
        names.resolved_at = Some(Instant::now());
        Ok(Arc::clone(&names.servers))
    }

    /// The addresses of a name, grouped by server.
    async fn addresses(&self, host_port: &HostPort) -> io::Result<Vec<Vec<SocketAddr>>> {
        let mut addresses = (self.resolver)(host_port.clone()).await?;
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        if let [one, other] = addresses.as_slice()
            && one.is_ipv4() != other.is_ipv4()
            && addresses.iter().all(|address| address.ip().is_loopback())
        {
            return Ok(vec![addresses]);
        }
        Ok(addresses.into_iter().map(|address| vec![address]).collect())
    }
}

/// Name of a server in errors: the name that the user wrote, with the address if several servers
/// share that name.
fn peer(host_port: &HostPort, addresses: &[SocketAddr], servers_of_host: usize) -> String {
    match addresses {
        [address] if servers_of_host > 1 => format!("{} ({})", host_port.authority(), address.ip()),
        _ => host_port.authority(),
    }
}

#[cfg(test)]
mod tests;
