// SPDX-License-Identifier: Apache-2.0
//! Paths of Unix sockets, and their addresses.

use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use reverb_base::{Error, Result};

/// Longest path that the system accepts in bytes, without the zero at its end.
pub const MAX_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The path of a Unix socket: not empty, without a zero byte, and not too long.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SocketPath(PathBuf);

/// Form for people: `unix:/run/reverb/socket`.
impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0.display())
    }
}

impl SocketPath {
    /// Checks a path.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the problem, the path and its length.
    pub fn new(path: PathBuf) -> Result<Self> {
        match problem(&path) {
            None => Ok(Self(path)),
            Some(problem) => {
                let shown = path.display();
                Err(Error::invalid_argument(format!("The path \"{shown}\" {problem}")))
            }
        }
    }

    /// Checks a path, and the same path from the root of the file system, which it returns.
    ///
    /// # Errors
    ///
    /// Those of [`SocketPath::new`], with the name of the argument `unix_path`.
    pub fn from_root(path: PathBuf) -> Result<Self> {
        let path = Self::new(path).and_then(|path| Self::new(path.absolute()));
        path.map_err(|error| error.context("unix_path"))
    }

    /// Parses the part of an address after `unix:`, with `%20` and the like for bytes, as in gRPC.
    pub(crate) fn from_address(rest: &str) -> std::result::Result<Self, String> {
        let path = match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => {
                return Err(
                    "has unix:// without a third slash: a path after unix:// is absolute, \
                            and one after unix: may be relative"
                        .to_owned(),
                );
            }
            None => rest,
        };
        if path.contains(',') {
            return Err("has a comma: an address has one Unix socket, and a comma in its path is \
                        %2C"
            .to_owned());
        }
        if path.contains(['?', '#']) {
            return Err("has a ? or a #, which are %3F and %23 in the path of a Unix socket".into());
        }
        let path = path_of(percent_decoded(path))?;
        match problem(&path) {
            None => Ok(Self(path)),
            Some(problem) => Err(format!("has a path that {problem}")),
        }
    }

    /// Address of the socket, which clients of dm-reverb and gRPC understand, too:
    /// `unix:///run/reverb/socket`. Bytes that are not allowed in addresses are written like `%20`.
    pub fn address(&self) -> String {
        let bytes = self.0.as_os_str().as_encoded_bytes();
        let mut address = if self.0.is_absolute() { "unix://" } else { "unix:" }.to_owned();
        for &byte in bytes {
            if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
                address.push(char::from(byte));
            } else {
                write!(address, "%{byte:02X}").expect("a String has room");
            }
        }
        address
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The same path, from the root of the file system.
    pub fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.0).unwrap_or_else(|_| self.0.clone())
    }
}

fn problem(path: &Path) -> Option<String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if !cfg!(unix) {
        Some("cannot be used: this system has no Unix sockets".to_owned())
    } else if bytes.is_empty() {
        Some("is empty".to_owned())
    } else if bytes.contains(&0) {
        Some("has a zero byte".to_owned())
    } else if bytes.ends_with(b"/") {
        Some("is that of a directory".to_owned())
    } else if bytes.len() > MAX_PATH_BYTES {
        Some(format!(
            "has {} bytes, and the path of a Unix socket has at most {MAX_PATH_BYTES}: choose a \
             shorter one",
            bytes.len()
        ))
    } else {
        None
    }
}

/// A `%` that no two hexadecimal digits follow stands for itself.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let [byte, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        if let (b'%', Some(high), Some(low)) = (byte, digit(0), digit(1)) {
            decoded.push((high * 16 + low) as u8);
            rest = &after[2..];
        } else {
            decoded.push(*byte);
            rest = after;
        }
    }
    decoded
}

#[cfg(unix)]
#[allow(clippy::unnecessary_wraps, reason = "elsewhere a path is text")]
fn path_of(bytes: Vec<u8>) -> std::result::Result<PathBuf, String> {
    use std::os::unix::ffi::OsStringExt;
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

#[cfg(not(unix))]
fn path_of(bytes: Vec<u8>) -> std::result::Result<PathBuf, String> {
    match String::from_utf8(bytes) {
        Ok(path) => Ok(path.into()),
        Err(_) => Err("has a path that is not UTF-8".to_owned()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn parsed(rest: &str) -> PathBuf {
        SocketPath::from_address(rest).unwrap().as_path().to_owned()
    }

    #[test]
    fn a_path_is_read_as_grpc_reads_it() {
        for (rest, path) in [
            ("/a/b", "/a/b"),
            ("///a/b", "/a/b"),
            ("a/b", "a/b"),
            ("/a b", "/a b"),
            ("/a%20b%2c", "/a b,"),
            ("/50%", "/50%"),
            ("/5%0g", "/5%0g"),
            ("/\u{e4}", "/\u{e4}"),
            ("/%C3%A4", "/\u{e4}"),
        ] {
            assert_eq!(parsed(rest), Path::new(path), "{rest}");
        }
    }

    #[test]
    fn every_path_has_an_address() {
        use std::os::unix::ffi::OsStringExt;
        for bytes in
            [&b"/run/reverb/socket"[..], b"/a b,c", b"/50%25", b"/\xc3\xa4", b"/\xff", b"x"]
        {
            let path = PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()));
            let address = SocketPath::new(path.clone()).unwrap().address();
            assert!(address.is_ascii());
            assert_eq!(parsed(address.strip_prefix("unix:").unwrap()), path);
        }
        let plain = SocketPath::new("/run/reverb/socket".into()).unwrap();
        assert_eq!(plain.address(), "unix:///run/reverb/socket");
        assert_eq!(plain.to_string(), "unix:/run/reverb/socket");
    }

    #[test]
    fn a_path_may_be_as_long_as_the_system_allows() {
        let path = |bytes: usize| PathBuf::from(format!("/{}", "x".repeat(bytes - 1)));
        assert!(SocketPath::new(path(MAX_PATH_BYTES)).is_ok());
        let error = SocketPath::new(path(MAX_PATH_BYTES + 1)).unwrap_err();
        let text = format!(
            "has {} bytes, and the path of a Unix socket has at most {MAX_PATH_BYTES}",
            MAX_PATH_BYTES + 1
        );
        assert!(error.message().contains(&text), "{error}");
    }
}
