// SPDX-License-Identifier: Apache-2.0
//! Requests and answers.

use std::net::SocketAddr;
use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use reverb_tls::ClientCertificate;

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate; `None` without one.
    pub certificate: Option<ClientCertificate>,
}

impl Peer {
    /// Names in its certificate, unless that has expired; `None` without one.
    pub fn certificate_names(&self) -> Option<&[String]> {
        let certificate = self.certificate.as_ref()?;
        let has_expired = certificate.expires_at.is_some_and(|end| end < SystemTime::now());
        (!has_expired).then_some(&certificate.names)
    }
}

/// A request for a page: GET or HEAD.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Path: `/metrics`.
    pub path: &'a str,
    /// Part after the question mark, if there is one.
    pub query: Option<&'a str>,
    /// Formats that the client accepts; empty if it sent none.
    pub accept: &'a str,
    /// The header `authorization`, which holds a secret; empty if there is none.
    pub authorization: &'a str,
    /// Peer that sent it.
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
    /// HTTP status: 200.
    pub status: StatusCode,
    /// Type of the body: `text/plain; charset=utf-8`.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
}

pub(crate) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    /// Creates the answer with a page.
    pub fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content_type, body: body.into(), headers: Vec::new() }
    }

    /// Creates an answer of one line of plain text.
    pub fn text(status: StatusCode, line: &str) -> Self {
        let body = format!("{line}\n").into();
        Self { status, content_type: PLAIN_TEXT, body, headers: Vec::new() }
    }
}

/// Pages of a port.
pub trait Site: Send + Sync + 'static {
    /// Paths of all pages. The answer to another path lists them.
    fn paths(&self) -> &'static [&'static str];

    /// Maximum number of open connections.
    fn max_connections(&self) -> usize {
        64
    }

    /// Answers a request for one of [`Site::paths`]. Called on a thread of the runtime, so it must
    /// neither block nor take long.
    fn answer(&self, request: Request<'_>) -> Answer;
}
