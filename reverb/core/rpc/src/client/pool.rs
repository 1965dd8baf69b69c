// SPDX-License-Identifier: Apache-2.0
//! All servers of a target, and the names behind which they are.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::{Error, Result};
use tokio::time::Instant;

use super::connection::{Connection, Server};
use crate::BoxFuture;
use crate::keepalive::Keepalive;
use crate::target::{HostPort, Target};

/// How long to wait for a host that does not answer at all. One that refuses says so at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Names are looked up again at most this often.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);

/// Finds the addresses of a place.
type Lookup = dyn Fn(HostPort) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// All servers of a target.
pub(super) struct Pool {
    target: Target,
    keepalive: Keepalive,
    lookup: Box<Lookup>,
    names: Mutex<Names>,
    /// Held while names are looked up, so that calls at the same time share one look-up.
    looking_up: tokio::sync::Mutex<()>,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Names {
    servers: Arc<[Arc<Server>]>,
    /// When they were looked up; `None`: the next call does it before anything else.
    looked_up: Option<Instant>,
}

impl Pool {
    pub(super) fn new(target: Target, keepalive: Keepalive) -> Arc<Self> {
        let lookup = |place: HostPort| -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            Box::pin(async move {
                let host = (place.host.as_str(), place.port);
                Ok(tokio::net::lookup_host(host).await?.collect())
            })
        };
        Self::with_lookup(target, keepalive, Box::new(lookup))
    }

    fn with_lookup(target: Target, keepalive: Keepalive, lookup: Box<Lookup>) -> Arc<Self> {
        Arc::new(Self {
            target,
            keepalive,
            lookup,
            names: Mutex::default(),
            looking_up: tokio::sync::Mutex::new(()),
            turn: AtomicUsize::new(0),
        })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn keepalive(&self) -> Keepalive {
        self.keepalive
    }

    /// How many servers there are, as far as is known: a name may stand for several.
    pub(super) fn num_servers(&self) -> usize {
        self.names.lock().servers.len().max(self.target.places.len())
    }

    /// The connection for the next call.
    ///
    /// # Errors
    ///
    /// `Unavailable` that names every address and why it could not be reached.
    pub(super) async fn connection(self: &Arc<Self>, limit: Duration) -> Result<Connection> {
        let servers = self.servers().await?;
        // A silent one leaves time for the others.
        let each = limit.div_f64(servers.len() as f64).min(CONNECT_TIMEOUT);
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
        let in_turn = || servers[first..].iter().chain(&servers[..first]);
        let (tried_last, tried_first): (Vec<_>, Vec<_>) =
            in_turn().partition(|server| servers.len() > 1 && server.is_passed_over());
        let mut failures = Vec::new();
        for server in tried_first.into_iter().chain(tried_last) {
            match server.connection(each, self.keepalive).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failures.push(format!("{}: {error}", server.peer)),
            }
            if servers.len() > 1 {
                // It may have moved; there are others, so the call need not wait for the answer.
                self.look_up_in_background();
            }
        }
        self.names.lock().looked_up = None;
        Err(Error::unavailable(format!("No server could be reached at {}.", failures.join(", "))))
    }

    async fn servers(&self) -> Result<Arc<[Arc<Server>]>> {
        if let Some(servers) = self.known_servers() {
            return Ok(servers);
        }
        let _turn = self.looking_up.lock().await;
        match self.known_servers() {
            Some(servers) => Ok(servers),
            None => self.look_up().await,
        }
    }

    fn known_servers(&self) -> Option<Arc<[Arc<Server>]>> {
        let names = self.names.lock();
        names.looked_up.is_some().then(|| Arc::clone(&names.servers))
    }

    fn look_up_in_background(self: &Arc<Self>) {
        let is_due = |pool: &Self| {
            pool.names.lock().looked_up.is_some_and(|at| at.elapsed() >= LOOK_UP_EVERY)
        };
        if !is_due(self) {
            return;
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let _turn = pool.looking_up.lock().await;
            if is_due(&pool)
                && let Err(error) = pool.look_up().await
            {
                log::debug!("{error}");
            }
        });
    }

    /// Asks for all names. Servers that are still there keep their connections, and so do those of
    /// a name that cannot be looked up now.
    async fn look_up(&self) -> Result<Arc<[Arc<Server>]>> {
        let known = Arc::clone(&self.names.lock().servers);
        let mut found: Vec<Arc<Server>> = Vec::new();
        let mut failures = Vec::new();
        for place in &self.target.places {
            let mut known = known.iter().filter(|server| server.place == *place);
            match self.addresses(place).await {
                Ok(groups) => found.extend(groups.iter().map(|addresses| {
                    let same = |server: &&Arc<Server>| server.addresses == *addresses;
                    known.clone().find(same).cloned().unwrap_or_else(|| {
                        let peer = peer(place, addresses, groups.len());
                        Arc::new(Server::new(place, addresses.clone(), peer))
                    })
                })),
                Err(error) => {
                    failures.push(format!("{}: {error}", place.authority()));
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
        names.looked_up = Some(Instant::now());
        Ok(Arc::clone(&names.servers))
    }

    /// The addresses behind a name, those of a server together.
    async fn addresses(&self, place: &HostPort) -> io::Result<Vec<Vec<SocketAddr>>> {
        let mut addresses = (self.lookup)(place.clone()).await?;
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

/// What a server is called in errors: as the user wrote it, with its address if others share the
/// name.
fn peer(place: &HostPort, addresses: &[SocketAddr], servers_of_place: usize) -> String {
    match addresses {
        [address] if servers_of_place > 1 => format!("{} ({})", place.authority(), address.ip()),
        _ => place.authority(),
    }
}

#[cfg(test)]
mod tests;
