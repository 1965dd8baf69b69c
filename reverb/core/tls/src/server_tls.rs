// SPDX-License-Identifier: Apache-2.0
//! Certificate of a server, and its check of clients' certificates.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use reverb_base::{Error, Result};
use tokio::net::TcpStream;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsStream};
use webpki::EndEntityCert;

use crate::explain;
use crate::files::{File, UNKNOWN_KEY};
use crate::provider::{VERSIONS, provider};
use crate::socket::{Socket, buffered};
use crate::validity::Validity;

/// Number of attempts of `reload` to read files that belong together: in the middle of a change,
/// certificate and key may be of different pairs.
const ATTEMPTS: usize = 4;

const PAUSE: Duration = Duration::from_millis(50);

/// TLS files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// CAs of clients. With it, every client must send a certificate that one of them signed; over
    /// HTTP/1, it may.
    pub client_ca: Option<PathBuf>,
}

/// Protocol of a port inside of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2, for gRPC.
    Http2,
    /// HTTP/1.1.
    Http1,
}

/// Verified certificate of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its DNS names and URIs.
    pub names: Vec<String>,
    /// Time at which it expires; `None` if it could not be read.
    pub expires_at: Option<SystemTime>,
}

/// TLS of a server. New connections use the certificate that was loaded last.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    current: RwLock<Arc<Loaded>>,
    /// Held while the files are read again, by a timer or by a call.
    reloading: Mutex<()>,
}

#[derive(Debug)]
struct Loaded {
    contents: Contents,
    validity: Validity,
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

#[derive(Debug, PartialEq, Eq)]
struct Contents {
    cert: File,
    key: File,
    client_ca: Option<File>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the file and the problem.
    pub fn open(files: ServerFiles) -> Result<Arc<Self>> {
        let contents = Contents::read(&files)?;
        let loaded = Loaded::new(contents)?;
        Ok(Arc::new(Self {
            files,
            current: RwLock::new(Arc::new(loaded)),
            reloading: Mutex::new(()),
        }))
    }

    /// Reads the files again; returns true if they have changed. Open connections stay as they are.
    /// Blocks for a moment if the files do not belong together.
    ///
    /// # Errors
    ///
    /// Those of `open`; nothing has changed then.
    pub fn reload(&self) -> Result<bool> {
        let _alone = self.reloading.lock();
        let mut attempt = 1;
        loop {
            match self.reload_once() {
                Err(_) if attempt < ATTEMPTS => {
                    attempt += 1;
                    thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    fn reload_once(&self) -> Result<bool> {
        let contents = Contents::read(&self.files)?;
        if contents == self.current.read().contents {
            return Ok(false);
        }
        let loaded = Loaded::new(contents)?;
        *self.current.write() = Arc::new(loaded);
        Ok(true)
    }

    /// Paths of its files.
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Returns true if clients must send a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Warning if every user of the machine can read the key.
    pub fn warning(&self) -> Option<String> {
        self.current.read().contents.key.readable_by_others()
    }

    /// Validity of the certificate in use. It is used before and after that time as well.
    pub fn validity(&self) -> Validity {
        self.current.read().validity
    }

    /// Begins TLS with a client. Returns the connection and the client's certificate; `None` if it
    /// sent no certificate.
    ///
    /// # Errors
    ///
    /// Those of the socket; `InvalidData` if TLS failed, with a text that explains it.
    pub async fn accept(
        &self,
        socket: TcpStream,
        protocol: Protocol,
    ) -> io::Result<(Socket, Option<ClientCertificate>)> {
        let config = {
            let current = self.current.read();
            Arc::clone(match protocol {
                Protocol::Http2 => &current.http2,
                Protocol::Http1 => &current.http1,
            })
        };
        let stream = TlsAcceptor::from(config).accept(buffered(socket)).await;
        let stream = stream.map_err(|error| explain::explained(error, explain::at_server))?;
        let certificate = client_certificate(stream.get_ref().1);
        Ok((Socket::tls(TlsStream::Server(stream), explain::at_server), certificate))
    }
}

fn client_certificate(connection: &rustls::ServerConnection) -> Option<ClientCertificate> {
    let certificate = connection.peer_certificates()?.first()?;
    let expires_at = Validity::of(certificate).ok().map(|validity| validity.not_after);
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    // A URI has a scheme. Without one, it could pass for a host name.
    let uris = certificate.valid_uri_names().filter(|uri| uri.contains(':'));
    let names = certificate.valid_dns_names().chain(uris);
    Some(ClientCertificate { names: names.map(str::to_owned).collect(), expires_at })
}

impl Contents {
    fn read(files: &ServerFiles) -> Result<Self> {
        Ok(Self {
            cert: File::read("tls_cert", &files.cert)?,
            key: File::read("tls_key", &files.key)?,
            client_ca: File::read_if_given("tls_client_ca", files.client_ca.as_ref())?,
        })
    }
}

impl Loaded {
    fn new(contents: Contents) -> Result<Self> {
        let mut http2 = contents.config(Certificates::Needed)?;
        http2.alpn_protocols = vec![b"h2".to_vec()];
        // Probes and scrapers have no certificates.
        let mut http1 = contents.config(Certificates::Welcome)?;
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let validity = contents.cert.validity()?;
        Ok(Self { contents, validity, http2: Arc::new(http2), http1: Arc::new(http1) })
    }
}

/// Handling of clients without certificate by a port with `client_ca`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Certificates {
    Needed,
    Welcome,
}

impl Contents {
    fn config(&self, certificates: Certificates) -> Result<ServerConfig> {
        let chain = self.cert.certificates()?;
        let key = self.key.key()?;
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(VERSIONS)
            .map_err(|error| Error::internal(format!("TLS cannot be set up: {error}")))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(file.roots()?);
                let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                if certificates == Certificates::Welcome {
                    verifier = verifier.allow_unauthenticated();
                }
                let verifier = verifier.build();
                let verifier =
                    verifier.map_err(|error| file.error(&format!("cannot be used: {error}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                self.key.error("is not the key of the first certificate in tls_cert")
            }
            rustls::Error::InvalidCertificate(reason) => {
                self.cert.error(&format!("cannot be used: {reason}"))
            }
            _ => self.key.error(UNKNOWN_KEY),
        })
    }
}
