// SPDX-License-Identifier: Apache-2.0
//! The other end of a connection to a server.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::accepted::PeerAddress;

/// How many calls of a connection may fail because the caller could not be authenticated.
const MAX_FAILURES: usize = 10;

/// Who is at the other end of a connection, as far as the connection tells.
#[derive(Debug)]
pub struct Peer {
    name: String,
    address: PeerAddress,
    link: Link,
    /// Calls whose caller could not be authenticated.
    failures: AtomicUsize,
    failed_often: Notify,
}

/// How the bytes of a connection travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// As they are.
    Cleartext,
    /// Encrypted by TLS.
    Tls {
        /// The names in the certificate that the client has shown: its subject alternative names
        /// that are DNS names or URIs. None without a certificate.
        certificate_names: Vec<String>,
    },
}

impl Peer {
    pub(super) fn new(address: PeerAddress, link: Link) -> Self {
        Self {
            name: format!("client {address}"),
            address,
            link,
            failures: AtomicUsize::new(0),
            failed_often: Notify::new(),
        }
    }

    /// Its address, for messages to people: `client 10.0.0.1:5`, or `client unix:4711` with the
    /// number of its process if it has connected to the Unix socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is on this machine.
    pub fn is_loopback(&self) -> bool {
        match self.address {
            PeerAddress::Network(address) => address.ip().to_canonical().is_loopback(),
            PeerAddress::Process { .. } => true,
        }
    }

    /// Counts a call whose caller could not be authenticated. After ten of them the connection is
    /// closed.
    pub fn count_failure(&self) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == MAX_FAILURES {
            self.failed_often.notify_one();
        }
    }

    /// Resolves when too many calls have failed so.
    pub(super) async fn failed_often(&self) {
        self.failed_often.notified().await;
    }

    /// Whether nobody between can read or change what it sends.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.link, Link::Tls { .. })
    }

    /// The names in its certificate; none if it has shown no certificate.
    pub fn certificate_names(&self) -> &[String] {
        match &self.link {
            Link::Cleartext => &[],
            Link::Tls { certificate_names } => certificate_names,
        }
    }
}
