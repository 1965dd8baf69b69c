// SPDX-License-Identifier: Apache-2.0
//! TLS and tokens from Python, and tools that create them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use reverb_auth::Authenticator;
use reverb_base::Result;
use reverb_rpc::client::Credentials;
use reverb_rpc::server::PortTls;
use reverb_tls::{ClientFiles, ServerFiles, ServerTls};

use crate::error::OrRaise;
use reverb_wire::calls;

/// Credentials of a client. `None` is replaced from the environment.
#[derive(FromPyObject)]
pub(crate) struct ClientSecurity {
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
}

impl ClientSecurity {
    pub(crate) fn credentials(self) -> Credentials {
        let Self { token, token_file, ca, cert, key, server_name } = self;
        Credentials { token, token_file, tls: ClientFiles { ca, cert, key, server_name } }
    }
}

/// Certificates of a server, and its rules for callers.
#[derive(FromPyObject)]
pub(crate) struct ServerSecurity {
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    max_connection_age_s: Option<f64>,
    tokens: Option<PathBuf>,
    pub(crate) insecure_tokens: bool,
    pub(crate) http_tls: bool,
}

impl ServerSecurity {
    pub(crate) fn tls(&self) -> Result<Option<PortTls>> {
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Ok(None) };
        let client_ca = self.client_ca.clone();
        let tls = ServerTls::open(ServerFiles { cert: cert.clone(), key: key.clone(), client_ca })?;
        if let Some(warning) = tls.warning() {
            tracing::warn!("{warning}");
        }
        let max_connection_age = self.max_connection_age_s.map(Duration::from_secs_f64);
        Ok(Some(PortTls { tls, max_connection_age }))
    }

    pub(crate) fn authenticator(&self) -> Result<Option<Arc<Authenticator>>> {
        self.tokens.as_ref().map(Authenticator::open).transpose()
    }
}

/// A new random token.
#[pyfunction]
pub(crate) fn new_token() -> PyResult<String> {
    reverb_auth::new_token().or_raise()
}

/// Hash of a token, as used in a tokens file.
#[pyfunction]
#[pyo3(signature = (token))]
pub(crate) fn token_hash(token: &str) -> String {
    reverb_auth::token_hash(token)
}

/// Rejects a tokens file with which a server would not start.
#[pyfunction]
#[pyo3(signature = (path))]
pub(crate) fn check_tokens_file(path: PathBuf) -> PyResult<()> {
    Authenticator::open(path).map(drop).or_raise()
}

/// Rejects certificates and keys with which a server would not start.
#[pyfunction]
#[pyo3(signature = (cert, key, client_ca))]
pub(crate) fn check_tls_files(
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
) -> PyResult<()> {
    ServerTls::open(ServerFiles { cert, key, client_ca }).map(drop).or_raise()
}

/// Creates a CA and a certificate for trials; returns the paths.
#[pyfunction]
#[pyo3(signature = (directory, names, days))]
pub(crate) fn self_signed(
    py: Python<'_>,
    directory: PathBuf,
    names: Vec<String>,
    days: i64,
) -> PyResult<Vec<PathBuf>> {
    py.detach(|| reverb_tls::self_signed(Path::new(&directory), &names, days)).or_raise()
}

/// Calls of a server, and the right that each needs: `("Reset", "`admin` on the table")`.
#[pyfunction]
pub(crate) fn call_rights() -> Vec<(&'static str, String)> {
    calls::all().map(|row| (calls::name(row.path), row.needs.to_string())).collect()
}
