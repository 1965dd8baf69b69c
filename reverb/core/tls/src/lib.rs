// SPDX-License-Identifier: Apache-2.0
//! TLS 1.3 for both ends of a connection.
//!
//! Design: `docs/design/security.md`.
//!
//! `server_tls` and `client_tls` hold the certificates of one end and read its files again when
//! they have changed. `socket` is a connection with or without TLS. `self_signed` makes
//! certificates for trials; `validity` has their expiry times.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod client_tls;
mod explain;
mod files;
mod provider;
mod self_signed;
mod server_tls;
mod socket;
mod validity;

pub use client_tls::{ClientFiles, ClientTls, Snapshot};
pub use self_signed::self_signed;
pub use server_tls::{ClientCertificate, Protocol, ServerFiles, ServerTls};
pub use socket::Socket;
pub use validity::{Standing, Validity};
