// SPDX-License-Identifier: Apache-2.0
//! Targets: the server addresses that users write.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reverb_base::{Error, Result};

use crate::socket_path::SocketPath;

/// A parsed target: one or several addresses. A name that resolves to several addresses stands for
/// several servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// TLS, as the address demands it.
    pub scheme: Scheme,
    /// At least one, in the given order. A Unix socket is the only one.
    pub servers: Vec<ServerAddress>,
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// A port of a host.
    Host(HostPort),
    /// A Unix socket of this machine.
    Socket(SocketPath),
}

/// TLS demanded by an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `host:port`: no TLS, unless `REVERB_TLS` says otherwise. Unix sockets never use it.
    Unsaid,
    /// `grpc://host:port`: no TLS.
    Cleartext,
    /// `grpcs://host:port`: TLS.
    Tls,
}

/// A host name or an IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Without brackets.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

impl HostPort {
    /// Authority part of a URI.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns true if it can be a server in this process: a loopback address, or the unspecified
    /// address.
    pub fn is_loopback(&self) -> bool {
        if self.host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let Ok(address) = self.host.parse::<std::net::IpAddr>() else { return false };
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified()
    }
}

impl Target {
    /// Parses `host:port`, a comma-separated list of them, or the gRPC forms `dns:///host:port`,
    /// `ipv4:1.2.3.4:1,5.6.7.8:2` and `ipv6:[::1]:1`. They may begin with `grpcs://` for TLS, or
    /// `grpc://` for none. A Unix socket is `unix:///absolute/path` or `unix:path`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the problem.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = match (text.strip_prefix("grpcs://"), text.strip_prefix("grpc://")) {
            (Some(rest), _) => (Scheme::Tls, rest),
            (None, Some(rest)) => (Scheme::Cleartext, rest),
            (None, None) => (Scheme::Unsaid, text),
        };
        if rest.starts_with("unix:") || rest.starts_with("unix-abstract:") {
            return parse_socket(scheme, rest, text);
        }
        let servers = without_resolver(rest)
            .split(',')
            .map(|host_port| Ok(ServerAddress::Host(parse_host_port(host_port.trim(), text)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { scheme, servers })
    }

    /// Path of the Unix socket, if it is one.
    pub fn socket(&self) -> Option<&SocketPath> {
        match self.servers.as_slice() {
            [ServerAddress::Socket(path)] => Some(path),
            _ => None,
        }
    }
}

fn parse_socket(scheme: Scheme, rest: &str, text: &str) -> Result<Target> {
    let malformed = |what: &str| {
        Err(Error::invalid_argument(format!(
            "Server address {text:?} {what}; a Unix socket is written unix:///path/of/socket."
        )))
    };
    if scheme != Scheme::Unsaid {
        return malformed(
            "has grpc:// or grpcs:// before unix:, but a Unix socket has no TLS, because its data \
             never leaves the machine",
        );
    }
    let Some(path) = rest.strip_prefix("unix:") else {
        return malformed(
            "names an abstract socket, which every user of the machine may open or connect to: use \
             a socket with a path, in a directory of its own",
        );
    };
    match SocketPath::from_address(path) {
        Ok(path) => Ok(Target { scheme, servers: vec![ServerAddress::Socket(path)] }),
        Err(what) => malformed(&what),
    }
}

impl ServerAddress {
    /// Authority part of a URI. Unix sockets have the one that gRPC's own library sends.
    pub fn authority(&self) -> String {
        match self {
            Self::Host(host_port) => host_port.authority(),
            Self::Socket(_) => "localhost".to_owned(),
        }
    }
}

fn without_resolver(text: &str) -> &str {
    for scheme in ["dns:", "ipv4:", "ipv6:"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            // `dns://authority/host`: the authority is ignored. The system chooses the name server.
            return match rest.strip_prefix("//") {
                Some(rest) => rest.split_once('/').map_or(rest, |(_, host)| host),
                None => rest,
            };
        }
    }
    text
}

fn parse_host_port(host_port: &str, text: &str) -> Result<HostPort> {
    // The part before an @ may be a secret.
    let shown = if text.contains('@') { "(not shown)".to_owned() } else { format!("{text:?}") };
    let malformed = |what: &str| {
        Error::invalid_argument(format!(
            "Server address {shown} {what}; write host:port, for example localhost:8000, \
             grpcs://host:port for TLS, or unix:///path/of/socket."
        ))
    };
    if host_port.contains('@') {
        return Err(malformed("has a user name, which addresses do not have"));
    }
    if host_port.starts_with("unix:") || host_port.starts_with("unix-abstract:") {
        return Err(malformed("has a Unix socket in a list: it must be the only address"));
    }
    if host_port.contains("://") {
        let has_one = ["grpcs://", "grpc://"].iter().any(|scheme| host_port.starts_with(scheme));
        return Err(malformed(if has_one {
            "has a scheme in its middle: write it once, before all hosts"
        } else {
            "has a scheme that is neither grpc:// nor grpcs:// (in lower case)"
        }));
    }
    let (host, port) = host_port.rsplit_once(':').ok_or_else(|| malformed("has no port"))?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(|| malformed("has an open bracket"))?,
        None if host.contains(':') => {
            return Err(malformed("has an IPv6 address without brackets"));
        }
        None => host,
    };
    if host.is_empty() {
        return Err(malformed("has no host"));
    }
    if host.chars().any(|c| c.is_whitespace() || c.is_control() || "/@?#[]\\".contains(c)) {
        return Err(malformed("has a character that is not allowed in a host name"));
    }
    let port = port.parse().ok().filter(|&port| port != 0);
    let port = port.ok_or_else(|| malformed("has no port between 1 and 65535"))?;
    Ok(HostPort { host: host.to_owned(), port })
}

/// A host name or address of this machine, and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loopback {
    /// Address; `None` for `localhost`, which stands for both IPv4 and IPv6.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl Loopback {
    /// `localhost` with this port.
    pub fn localhost(port: u16) -> Self {
        Self { ip: None, port }
    }

    /// The loopback address of `target`, if it is a single host that can be a server in this
    /// process.
    pub fn of(target: &str) -> Option<Self> {
        match Target::parse(target).ok()?.servers.as_slice() {
            [ServerAddress::Host(host_port)] if host_port.is_loopback() => {
                let ip = host_port.host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
                Some(Self { ip, port: host_port.port })
            }
            _ => None,
        }
    }

    /// Returns true if it reaches a server that listens on this address and the same port. If not,
    /// another server may listen there.
    pub fn leads_to(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_default = address == Ipv4Addr::LOCALHOST
            || address == Ipv6Addr::LOCALHOST
            || address.is_unspecified();
        match self.ip {
            None => is_default,
            // The system treats it as the loopback address.
            Some(ip) if ip.is_unspecified() => is_default,
            Some(ip) if address.is_unspecified() => ip.is_ipv4() || address.is_ipv6(),
            Some(ip) => ip == address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Vec<String> {
        Target::parse(text).unwrap().servers.iter().map(ServerAddress::authority).collect()
    }

    #[test]
    fn every_form_of_an_address_is_understood() {
        assert_eq!(hosts("localhost:80"), ["localhost:80"]);
        assert_eq!(hosts("dns:///a.b:80"), ["a.b:80"]);
        assert_eq!(hosts("dns://8.8.8.8/a.b:80"), ["a.b:80"]);
        assert_eq!(hosts("dns:a.b:80"), ["a.b:80"]);
        assert_eq!(hosts("ipv4:1.2.3.4:1,5.6.7.8:2"), ["1.2.3.4:1", "5.6.7.8:2"]);
        assert_eq!(hosts("ipv6:[::1]:1"), ["[::1]:1"]);
        assert_eq!(hosts("h1:1, h2:2"), ["h1:1", "h2:2"]);
    }

    #[test]
    fn the_scheme_says_whether_there_is_tls() {
        for (text, scheme) in [
            ("a:1", Scheme::Unsaid),
            ("grpc://a:1", Scheme::Cleartext),
            ("grpcs://a:1,b:2", Scheme::Tls),
            ("grpcs://dns:///a:1", Scheme::Tls),
        ] {
            assert_eq!(Target::parse(text).unwrap().scheme, scheme, "{text}");
        }
        assert_eq!(hosts("grpcs://a:1,[::1]:2"), ["a:1", "[::1]:2"]);
        assert_eq!(Loopback::of("grpcs://localhost:5").unwrap().port, 5);
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_stands_alone() {
        for (text, path) in [("unix:///a/b", "/a/b"), ("unix:/a/b", "/a/b"), ("unix:b", "b")] {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.socket().unwrap().as_path(), std::path::Path::new(path), "{text}");
            assert_eq!(target.scheme, Scheme::Unsaid);
            assert_eq!(Loopback::of(text), None);
        }
        assert_eq!(Target::parse("a:1").unwrap().socket(), None);
        let long = format!("unix:/{}", "x".repeat(107));
        for (text, what) in [
            ("unix:", "has a path that is empty"),
            ("unix://a/b", "without a third slash"),
            ("unix:/a/", "has a path that is that of a directory"),
            ("unix:/a%00", "has a path that has a zero byte"),
            (long.as_str(), "has a path that has 108 bytes"),
            ("unix:/a,unix:/b", "has a comma"),
            ("unix:/a?b", "has a ? or a #"),
            ("a:1,unix:/b", "has a Unix socket in a list"),
            ("grpcs://unix:/a", "a Unix socket has no TLS"),
            ("grpc://unix:///a", "a Unix socket has no TLS"),
            ("unix-abstract:a", "names an abstract socket"),
        ] {
            let error = Target::parse(text).unwrap_err();
            assert!(error.message().contains(what), "{text}: {error}");
            assert!(error.message().contains("unix:///path/of/socket"), "{text}: {error}");
        }
    }

    #[test]
    fn a_bad_address_says_what_is_wrong() {
        for (text, what) in [
            ("localhost", "has no port"),
            ("localhost:", "has no port between"),
            ("localhost:0", "has no port between"),
            ("localhost:70000", "has no port between"),
            (":80", "has no host"),
            ("::1:80", "without brackets"),
            ("[::1:80", "open bracket"),
            ("a b:80", "has a character"),
            ("http://a:80", "has a scheme that is neither"),
            ("grpcs://a:80,grpcs://b:80", "has a scheme in its middle"),
            ("grpcs://user:secret@a:80", "(not shown) has a user"),
            ("grpcs://", "has no port"),
            ("a:1,,b:2", "has no port"),
            ("", "has no port"),
        ] {
            let error = Target::parse(text).unwrap_err();
            assert!(error.message().contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn only_a_single_loopback_host_can_be_this_process() {
        for text in ["localhost:5", "127.0.0.1:5", "[::1]:5", "0.0.0.0:5", "ipv4:127.0.0.1:5"] {
            assert_eq!(Loopback::of(text).unwrap().port, 5, "{text}");
        }
        for text in ["example.com:5", "10.0.0.1:5", "localhost:5,localhost:6", "localhost"] {
            assert_eq!(Loopback::of(text), None, "{text}");
        }
    }

    #[test]
    fn an_address_leads_to_the_server_that_listens_on_it() {
        for (text, leads_to, does_not) in [
            ("localhost:5", &["127.0.0.1", "::1", "0.0.0.0", "::"][..], &["127.0.0.2"][..]),
            ("127.0.0.1:5", &["127.0.0.1", "0.0.0.0", "::"], &["127.0.0.2", "::1"]),
            ("127.0.0.2:5", &["127.0.0.2", "::"], &["127.0.0.1"]),
            ("[::1]:5", &["::1", "::"], &["127.0.0.1", "0.0.0.0"]),
            ("0.0.0.0:5", &["127.0.0.1", "::"], &["127.0.0.2"]),
        ] {
            let loopback = Loopback::of(text).unwrap();
            for (addresses, expected) in [(leads_to, true), (does_not, false)] {
                for address in addresses {
                    let ip = address.parse().unwrap();
                    assert_eq!(loopback.leads_to(ip), expected, "{text} {address}");
                }
            }
        }
    }
}
