// SPDX-License-Identifier: Apache-2.0
//! Credentials of a client: TLS files and token.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use reverb_base::{Error, Result, read_file};
use reverb_tls::{ClientFiles, ClientTls};

use super::token::Token;
use crate::target::{Scheme, Target};

/// Credentials given by a caller. Missing ones come from the environment.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Token.
    pub token: Option<String>,
    /// File with the token, which is read again when it changes.
    pub token_file: Option<PathBuf>,
    /// TLS files.
    pub tls: ClientFiles,
}

impl fmt::Debug for Credentials {
    /// Omits the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("token_file", &self.token_file)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// TLS and token for the connections to a target: opened and checked.
#[derive(Debug, Clone, Default)]
pub struct Security {
    pub(super) tls: Option<Arc<ClientTls>>,
    /// Sent only to servers that TLS has verified, and to servers behind a Unix socket that run as
    /// the same user or as root.
    pub(super) token: Option<Arc<Token>>,
    /// True if a server without room may serve it on a connection that is kept for operators.
    pub is_for_operators: bool,
}

/// Maximum length of a token in bytes: it must fit into an HTTP/2 header.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Value of an environment variable; `None` if it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Security {
    /// Returns true if calls carry a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns true if connections use TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Copy that shares no locks with the original.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            tls: self.tls.as_ref().map(|tls| Arc::new(tls.copy())),
            token: self.token.as_ref().map(|token| Arc::new(token.copy())),
            is_for_operators: self.is_for_operators,
        }
    }
}

/// Credentials from the environment. Programs may change it while they run.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    all_have_tls: Option<String>,
    token: Option<String>,
    token_file: Option<String>,
    tls: ClientFiles,
}

impl Environment {
    /// Reads the current environment.
    pub fn now() -> Self {
        let path = |name: &str| variable(name).map(PathBuf::from);
        Self {
            all_have_tls: variable("REVERB_TLS"),
            token: variable("REVERB_TOKEN"),
            token_file: variable("REVERB_TOKEN_FILE"),
            tls: ClientFiles {
                ca: path("REVERB_TLS_CA"),
                cert: path("REVERB_TLS_CERT"),
                key: path("REVERB_TLS_KEY"),
                server_name: variable("REVERB_TLS_SERVER_NAME"),
            },
        }
    }

    /// Returns true if addresses without a scheme use TLS.
    fn all_have_tls(&self) -> Result<bool> {
        match self.all_have_tls.as_deref() {
            None | Some("0" | "false" | "no") => Ok(false),
            Some("1" | "true" | "yes") => Ok(true),
            Some(value) => {
                Err(Error::invalid_argument(format!("REVERB_TLS must be 1 or 0, got {value:?}")))
            }
        }
    }
}

impl fmt::Debug for Environment {
    /// Omits the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Opens the credentials for the servers of a target. Missing ones come from the environment.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a file cannot be used, if a token was given for a port without TLS, or
    /// if TLS files were given for a target without it.
    pub fn open(self, target: &Target, environment: Environment) -> Result<Security> {
        let is_socket = target.socket().is_some();
        let is_tls = match target.scheme {
            Scheme::Tls => true,
            Scheme::Cleartext => false,
            Scheme::Unsaid => !is_socket && environment.all_have_tls()?,
        };
        if self.token.is_some() && self.token_file.is_some() {
            return Err(Error::invalid_argument("give token or token_file, not both"));
        }
        if is_socket {
            return self.for_socket(&environment);
        }
        if !is_tls {
            return self.without_tls();
        }
        let Self { token, token_file, tls } = self;
        let token = chosen_token(token, token_file, &environment)?;
        let tls = ClientTls::open(completed(tls, environment.tls))?;
        let (tls, token) = (Some(Arc::new(tls)), token.map(Arc::new));
        Ok(Security { tls, token, ..Security::default() })
    }

    /// Opens the credentials for a Unix socket. The receiver of the token is checked on connecting.
    fn for_socket(self, environment: &Environment) -> Result<Security> {
        let Self { token, token_file, tls } = self;
        if tls != ClientFiles::default() {
            return Err(Error::invalid_argument(
                "tls has no effect on a Unix socket, which has no TLS: leave it out",
            ));
        }
        let token = chosen_token(token, token_file, environment)?;
        Ok(Security { token: token.map(Arc::new), ..Security::default() })
    }

    /// Refuses TLS files that were given for this target: silently ignoring them would be a
    /// surprise.
    fn without_tls(self) -> Result<Security> {
        let ClientFiles { ca, cert, key, server_name } = &self.tls;
        let what = if self.token.is_some() || self.token_file.is_some() {
            "A token goes only to a server that TLS has verified"
        } else if ca.is_some() || cert.is_some() || key.is_some() || server_name.is_some() {
            "tls has no effect without TLS"
        } else {
            return Ok(Security::default());
        };
        Err(Error::invalid_argument(format!(
            "{what}: write the address as grpcs://host:port, or set REVERB_TLS=1"
        )))
    }
}

/// The given token, or else the token of the environment.
fn chosen_token(
    token: Option<String>,
    token_file: Option<PathBuf>,
    environment: &Environment,
) -> Result<Option<Token>> {
    let (token, token_file) = if token.is_some() || token_file.is_some() {
        (token, token_file)
    } else {
        (environment.token.clone(), environment.token_file.as_ref().map(PathBuf::from))
    };
    match (token, token_file) {
        (Some(_), Some(_)) => Err(Error::invalid_argument(
            "REVERB_TOKEN and REVERB_TOKEN_FILE are both set: unset one",
        )),
        (Some(text), None) => Token::from_text(&text).map(Some),
        (None, Some(file)) => Token::from_file(&file).map(Some),
        (None, None) => Ok(None),
    }
}

/// The given files; missing ones come from the environment.
fn completed(given: ClientFiles, environment: ClientFiles) -> ClientFiles {
    // Certificate and key come from the same source.
    let (cert, key) = match (given.cert, given.key) {
        (None, None) => (environment.cert, environment.key),
        own => own,
    };
    ClientFiles {
        ca: given.ca.or(environment.ca),
        cert,
        key,
        server_name: given.server_name.or(environment.server_name),
    }
}

/// Value of the header `authorization`.
pub(super) fn bearer(token: &str, source: &dyn fmt::Display) -> Result<HeaderValue> {
    let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain {
        return Err(Error::invalid_argument(format!(
            "{source} must be one word of printable ASCII characters"
        )));
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| Error::invalid_argument(format!("{source} cannot be sent")))?;
    if token.len() as u64 > MAX_TOKEN_BYTES {
        let text = format!("{source} must have at most {MAX_TOKEN_BYTES} characters");
        return Err(Error::invalid_argument(text));
    }
    // Keeps the value out of logs and of the tables of HTTP/2.
    value.set_sensitive(true);
    Ok(value)
}

pub(super) fn read_token(path: &Path) -> Result<HeaderValue> {
    let name = format!("token_file {}", path.display());
    let problem = |what: &str| Error::invalid_argument(format!("{name} {what}"));
    let bytes = read_file(path, MAX_TOKEN_BYTES).map_err(|what| problem(&what.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| problem("is not UTF-8"))?;
    bearer(text.trim(), &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(address: &str, credentials: Credentials) -> Result<Security> {
        credentials.open(&Target::parse(address).unwrap(), Environment::default())
    }

    fn with_token(text: &str) -> Credentials {
        Credentials { token: Some(text.to_owned()), ..Credentials::default() }
    }

    #[test]
    fn a_token_is_never_shown() {
        assert!(!format!("{:?}", with_token("rvb_secret")).contains("secret"));
        let header = bearer("rvb_secret", &"token").unwrap();
        assert!(!format!("{header:?}").contains("secret"));
        for bad in ["rvb_secret\n", "rvb secret", "rvb_secret\u{e9}", ""] {
            let error = bearer(bad, &"token").unwrap_err();
            assert_eq!(error.message(), "token must be one word of printable ASCII characters");
        }
    }

    #[test]
    fn what_would_have_no_effect_is_refused() {
        let error = open("a:1", with_token("rvb_secret")).unwrap_err();
        assert!(error.message().starts_with("A token goes only to a server that TLS has verified"));
        let mut credentials = Credentials::default();
        credentials.tls.server_name = Some("a".to_owned());
        let error = open("grpc://a:1", credentials).unwrap_err();
        assert!(error.message().starts_with("tls has no effect without TLS"), "{error}");
        assert!(open("a:1", Credentials::default()).unwrap().tls.is_none());
        let mut credentials = Credentials::default();
        credentials.tls.ca = Some("ca.crt".into());
        let error = open("unix:/a", credentials).unwrap_err();
        assert!(error.message().starts_with("tls has no effect on a Unix socket"), "{error}");
    }

    #[test]
    fn a_unix_socket_has_a_token_and_no_tls() {
        let target = Target::parse("unix:/a").unwrap();
        let environment = Environment {
            all_have_tls: Some("1".to_owned()),
            token: Some("rvb_secret".to_owned()),
            ..Environment::default()
        };
        for given in [with_token("rvb_given"), Credentials::default()] {
            let security = given.open(&target, environment.clone()).unwrap();
            assert!(security.has_token() && security.tls.is_none());
        }
        let none = Credentials::default().open(&target, Environment::default()).unwrap();
        assert!(!none.has_token());
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut credentials = Credentials::default();
        credentials.tls.ca = Some(PathBuf::from("/no/such/ca.crt"));
        let error = open("grpcs://a:1", credentials).unwrap_err();
        assert!(error.message().starts_with("ca /no/such/ca.crt cannot be read: "), "{error}");
    }
}
