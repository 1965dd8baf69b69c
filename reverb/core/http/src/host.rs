// SPDX-License-Identifier: Apache-2.0
//! Which names a port answers to.

use std::net::IpAddr;

/// The names in the header `Host` that a port answers to.
///
/// A page of the web can make a name of its own point to 127.0.0.1 and let the browser ask there
/// (DNS rebinding). A port that only this machine reaches therefore answers to names of this
/// machine alone.
#[derive(Debug, Clone)]
pub enum AllowedHosts {
    /// Any name: others reach the port too, under names that are not known here.
    Any,
    /// Addresses, `localhost`, and this name.
    Local(String),
}

impl AllowedHosts {
    /// Those of a port that listens on `host`.
    pub fn of(host: &str) -> Self {
        let is_loopback = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        };
        if is_loopback { Self::Local(host.to_owned()) } else { Self::Any }
    }

    /// Whether the port answers to this value of `Host`, with or without a port.
    pub(crate) fn allow(&self, host: &str) -> bool {
        let Self::Local(own) = self else { return true };
        let name = without_port(host);
        name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || name.eq_ignore_ascii_case(own)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // Colons also occur in an address of IPv6, in brackets.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_port_answers_to_names_of_this_machine() {
        for own in ["127.0.0.1", "::1", "[::1]", "localhost", "127.8.8.8"] {
            let hosts = AllowedHosts::of(own);
            for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8001", "[::1]:8001", "[::1]"] {
                assert!(hosts.allow(host), "{own} {host}");
            }
            for host in ["evil.example", "localhost.evil.example:8001", "127.0.0.1.nip.io", ""] {
                assert!(!hosts.allow(host), "{own} {host}");
            }
        }
    }

    #[test]
    fn other_ports_answer_to_any_name() {
        for own in ["0.0.0.0", "::", "learner-3", "10.0.0.1"] {
            assert!(AllowedHosts::of(own).allow("whatever.example"));
        }
    }
}
