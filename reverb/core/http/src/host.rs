// SPDX-License-Identifier: Apache-2.0
//! Host names that a port accepts.

use std::net::IpAddr;

/// Values of the header `Host` that a port accepts.
///
/// A web page can make a name of its own point to 127.0.0.1 and let the browser send requests there
/// (DNS rebinding). A port that only this machine can reach therefore accepts only names of this
/// machine.
#[derive(Debug, Clone)]
pub enum AllowedHosts {
    /// Any name: other machines can reach the port, under unknown names.
    Any,
    /// Addresses, `localhost`, and this name.
    Local(String),
}

impl AllowedHosts {
    /// Names for a port that listens on `host`.
    pub fn of(host: &str) -> Self {
        let is_loopback = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        };
        if is_loopback { Self::Local(host.to_owned()) } else { Self::Any }
    }

    /// Returns true if the port accepts this value of `Host`, with or without a port.
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
        // An IPv6 address in brackets contains colons, too.
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
