// SPDX-License-Identifier: Apache-2.0
//! CAs that a client trusts, and its own certificate.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, TlsStream};

use crate::explain;
use crate::files::{File, UNKNOWN_KEY};
use crate::provider::{VERSIONS, provider};
use crate::socket::{Socket, buffered};

/// TLS files of a client, and the server name that it expects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// CAs that it trusts; those of the system if `None`.
    pub ca: Option<PathBuf>,
    /// Its own certificate, for servers that ask for one, followed by the intermediate
    /// certificates.
    pub cert: Option<PathBuf>,
    /// The private key of the certificate.
    pub key: Option<PathBuf>,
    /// Name in the certificate of the server; the host of the address if `None`.
    pub server_name: Option<String>,
}

/// TLS of a client. Each connection checks whether the files have changed.
#[derive(Debug)]
pub struct ClientTls {
    files: ClientFiles,
    server_name: Option<ServerName<'static>>,
    current: Mutex<Arc<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    contents: Contents,
    config: Arc<ClientConfig>,
}

#[derive(Debug, PartialEq, Eq)]
struct Contents {
    ca: Option<File>,
    cert: Option<File>,
    key: Option<File>,
}

/// Content of the files at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot(Arc<Loaded>);

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the file and the problem.
    pub fn open(files: ClientFiles) -> Result<Self> {
        match (&files.cert, &files.key) {
            (Some(_), None) => return Err(Error::invalid_argument("cert is given without key")),
            (None, Some(_)) => return Err(Error::invalid_argument("key is given without cert")),
            _ => {}
        }
        let server_name = files.server_name.as_deref().map(parse_server_name).transpose()?;
        let loaded = Loaded::new(Contents::read(&files)?)?;
        Ok(Self { files, server_name, current: Mutex::new(Arc::new(loaded)) })
    }

    /// Copy with a lock of its own.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            files: self.files.clone(),
            server_name: self.server_name.clone(),
            current: Mutex::new(Arc::clone(&self.current.lock())),
        }
    }

    /// Current content of the files. If one cannot be used, as in the middle of a rotation, the
    /// previous content stays.
    pub fn snapshot(&self) -> Snapshot {
        let mut current = self.current.lock();
        match Contents::read(&self.files) {
            Ok(contents) if contents == current.contents => {}
            changed => match changed.and_then(Loaded::new) {
                Ok(loaded) => *current = Arc::new(loaded),
                Err(error) => tracing::warn!("{error}. The previous files are used"),
            },
        }
        Snapshot(Arc::clone(&current))
    }

    /// Begins TLS with the server that is called `host` in the address.
    ///
    /// # Errors
    ///
    /// Those of the socket; `InvalidData` if TLS failed, with a text that explains it.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        snapshot: &Snapshot,
        socket: S,
        host: &str,
    ) -> io::Result<Socket<S>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                let text = format!("{host} cannot be in a certificate: give server_name");
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?,
        };
        let connector = TlsConnector::from(Arc::clone(&snapshot.0.config));
        let stream = connector.connect(name, buffered(socket)).await;
        let stream = stream.map_err(|error| explain::explained(error, explain::at_client))?;
        Ok(Socket::tls(TlsStream::Client(stream), explain::at_client))
    }
}

fn parse_server_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        Error::invalid_argument(format!(
            "server_name must be a host name or an address, got {name:?}"
        ))
    })
}

impl Contents {
    fn read(files: &ClientFiles) -> Result<Self> {
        Ok(Self {
            ca: File::read_if_given("ca", files.ca.as_ref())?,
            cert: File::read_if_given("cert", files.cert.as_ref())?,
            key: File::read_if_given("key", files.key.as_ref())?,
        })
    }
}

impl Loaded {
    fn new(contents: Contents) -> Result<Self> {
        let roots = match &contents.ca {
            Some(file) => Arc::new(file.roots()?),
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| Error::internal(format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(roots);
        let mut config = match (&contents.cert, &contents.key) {
            (Some(cert), Some(key)) => builder
                .with_client_auth_cert(cert.certificates()?, key.key()?)
                .map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => {
                        key.error("is not the key of the first certificate in cert")
                    }
                    rustls::Error::InvalidCertificate(reason) => {
                        cert.error(&format!("cannot be used: {reason}"))
                    }
                    _ => key.error(UNKNOWN_KEY),
                })?,
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { contents, config: Arc::new(config) })
    }
}

/// CAs that the system trusts. Reading them takes milliseconds, so they are read once.
fn system_roots() -> Result<Arc<RootCertStore>> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(Arc::clone(roots));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Error::invalid_argument(
            "this system has no CA certificates: give ClientTls(ca=...) or set REVERB_TLS_CA",
        ));
    }
    Ok(Arc::clone(ROOTS.get_or_init(|| Arc::new(roots))))
}
