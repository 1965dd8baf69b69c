// SPDX-License-Identifier: Apache-2.0
//! The other end of a connection to a server.

use std::net::SocketAddr;

/// Who is at the other end of a connection, as far as the connection tells.
#[derive(Debug)]
pub struct Peer {
    name: String,
    link: Link,
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
    pub(super) fn new(address: SocketAddr, link: Link) -> Self {
        Self { name: format!("client {address}"), link }
    }

    /// Its address, for messages to people: `client 10.0.0.1:5`.
    pub fn name(&self) -> &str {
        &self.name
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
