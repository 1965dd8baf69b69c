// SPDX-License-Identifier: Apache-2.0
//! Requests and answers.

use std::net::SocketAddr;
use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use reverb_tls::ClientCertificate;

/// Who asks, as far as the connection tells.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The certificate that it has shown, and that was verified; `None` without one.
    pub certificate: Option<ClientCertificate>,
}

impl Peer {
    /// The names in its certificate, as long as that has not expired; `None` without one.
    pub fn certificate_names(&self) -> Option<&[String]> {
        let certificate = self.certificate.as_ref()?;
        let has_expired = certificate.expires_at.is_some_and(|end| end < SystemTime::now());
        (!has_expired).then_some(&certificate.names)
    }
}

/// A request for a page: GET or HEAD.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Its path: `/metrics`.
    pub path: &'a str,
    /// What follows the question mark, if there is one.
    pub query: Option<&'a str>,
    /// The formats that the client accepts; empty if it does not say.
    pub accept: &'a str,
    /// The header `authorization`, which holds a secret; empty if there is none.
    pub authorization: &'a str,
    /// Who asks.
    pub peer: &'a Peer,
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, peer, .. } = self;
        f.debug_struct("Request")
            .field("path", path)
            .field("peer", &peer.address)
            .finish_non_exhaustive()
    }
}

/// An answer to a request.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status of HTTP: 200.
    pub status: StatusCode,
    /// Type of the body: `text/plain; charset=utf-8`.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
}

/// The type of plain text.
pub(crate) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    /// A page.
    pub fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content_type, body: body.into(), headers: Vec::new() }
    }

    /// A line of plain text.
    pub fn text(status: StatusCode, line: &str) -> Self {
        let body = format!("{line}\n").into();
        Self { status, content_type: PLAIN_TEXT, body, headers: Vec::new() }
    }
}

/// What a port serves.
pub trait Site: Send + Sync + 'static {
    /// The paths of all pages. A request for another one is told them.
    fn paths(&self) -> &'static [&'static str];

    /// How many connections may be open.
    fn max_connections(&self) -> usize {
        64
    }

    /// Answers a request for one of [`Site::paths`]. Called on a thread of the runtime, so it must
    /// neither block nor take long.
    fn answer(&self, request: Request<'_>) -> Answer;
}
