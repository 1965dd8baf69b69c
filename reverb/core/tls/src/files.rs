// SPDX-License-Identifier: Apache-2.0
//! PEM files with certificates and keys.

use std::path::{Path, PathBuf};

use reverb_base::{Error, Result, read_file};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::validity::Validity;

/// Explanation for a private key of an unsupported algorithm.
pub(crate) const UNKNOWN_KEY: &str = "has an unsupported algorithm: use RSA (2048 bits or more), \
    ECDSA (P-256 or P-384) or Ed25519";

/// Maximum size of a file with certificates: those of all public authorities take a quarter of a
/// megabyte.
const MAX_BYTES: u64 = 4 << 20;

/// Mark that some editors put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Content of a file, with its name in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    /// Option that names the file, for messages.
    option: &'static str,
    path: PathBuf,
    content: Vec<u8>,
}

impl File {
    /// # Errors
    ///
    /// `InvalidArgument` that names the option and the file.
    pub(crate) fn read(option: &'static str, path: &Path) -> Result<Self> {
        let problem = |what: &dyn std::fmt::Display| {
            Error::invalid_argument(format!("{option} {} {what}", path.display()))
        };
        let content = read_file(path, MAX_BYTES).map_err(|error| problem(&error))?;
        let content = match content.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) => rest.to_vec(),
            None => content,
        };
        Ok(Self { option, path: path.to_owned(), content })
    }

    pub(crate) fn read_if_given(
        option: &'static str,
        path: Option<&PathBuf>,
    ) -> Result<Option<Self>> {
        path.map(|path| Self::read(option, path)).transpose()
    }

    pub(crate) fn error(&self, what: &str) -> Error {
        Error::invalid_argument(format!("{} {} {what}", self.option, self.path.display()))
    }

    /// Certificates of the file, at least one, in order.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let certificates: std::result::Result<Vec<_>, pem::Error> =
            CertificateDer::pem_slice_iter(&self.content).collect();
        let certificates = certificates.map_err(|error| match error {
            pem::Error::MissingSectionEnd { .. } => self.error("ends within a certificate"),
            error => self.error(&format!("is not PEM: {error}")),
        })?;
        if certificates.is_empty() {
            return Err(self.error("has no certificate: write PEM, BEGIN CERTIFICATE"));
        }
        Ok(certificates)
    }

    pub(crate) fn validity(&self) -> Result<Validity> {
        Validity::of(&self.certificates()?[0]).map_err(|error| {
            self.error(&format!("cannot be used: its validity cannot be read: {error}"))
        })
    }

    /// The first private key.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.content).map_err(|error| match error {
            _ if self.has("ENCRYPTED") => {
                self.error("is encrypted with a passphrase: remove the passphrase (openssl pkey)")
            }
            pem::Error::NoItemsFound => {
                self.error("has no private key: write PEM, BEGIN PRIVATE KEY")
            }
            // The library's text could show a part of the key.
            _ => self.error("is not PEM"),
        })
    }

    /// Certificates of the file as trusted CAs.
    pub(crate) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| {
                self.error(&format!("has a certificate that cannot sign others: {error}"))
            })?;
        }
        Ok(roots)
    }

    fn has(&self, word: &str) -> bool {
        self.content.windows(word.len()).any(|part| part == word.as_bytes())
    }

    /// Warning if users other than the owner may read it.
    pub(crate) fn readable_by_others(&self) -> Option<String> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&self.path).ok()?.permissions().mode();
            // Kubernetes mounts secrets that the group of the pod may read.
            (mode & 0o007 != 0).then(|| {
                format!(
                    "{} {} can be read by every user of this machine (mode {:o}): chmod 600",
                    self.option,
                    self.path.display(),
                    mode & 0o777
                )
            })
        }
        #[cfg(not(unix))]
        None
    }
}
