// SPDX-License-Identifier: Apache-2.0
//! The address of a group: `shards:///a:8000,b:8000?writers=local`.

use std::time::Duration;

use reverb_base::{Error, Result};

/// Largest number of shards that serve one request. Larger groups use random shards.
const MAX_SHARDS_PER_BATCH: usize = 32;

/// Time that a writer tries to reach its lost shard before it continues at another one.
const FAILOVER_AFTER: Duration = Duration::from_secs(10);

/// Choice of the shard that a writer starts at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// The shard with the emptiest tables. The writer moves later if another shard is much emptier.
    Even,
    /// The shards in rotation, by weight.
    RoundRobin,
    /// A shard on this machine, or else the shards in rotation.
    Local,
    /// The shard with fewer streams of this client, out of two random shards.
    LeastLoaded,
}

/// Shards that items are sampled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleFrom {
    /// All shards, as if they were one table.
    All,
    /// A shard on this machine. Meant for several learners that have one shard each.
    Local,
}

/// A parsed address of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupAddress {
    /// Scheme of the shards' addresses: `grpcs://`, `grpc://` or empty.
    pub scheme: &'static str,
    /// Addresses of some shards, at least one. Each shard can name all others.
    pub seeds: Vec<String>,
    /// Choice of the shard that a writer starts at.
    pub writers: Writers,
    /// Shards that items are sampled from.
    pub sample_from: SampleFrom,
    /// Largest number of shards that serve one batch, at least 1.
    pub max_shards_per_batch: usize,
    /// Time that a writer waits for its lost shard before it continues at another one.
    pub failover_after: Duration,
}

/// Prefixes of group addresses, each with the scheme of its shards.
const SCHEMES: [(&str, &str); 3] =
    [("shards:///", ""), ("shards+grpcs:///", "grpcs://"), ("shards+grpc:///", "grpc://")];

impl GroupAddress {
    /// True if the text is meant to be the address of a group, valid or not.
    pub fn is_one(text: &str) -> bool {
        text.starts_with("shards:") || text.starts_with("shards+")
    }

    /// Parses an address.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the part of the address that is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let malformed = |what: &str| {
            Error::invalid_argument(format!(
                "Address {text:?} {what}; write shards:///host:port,host:port, or \
                 shards+grpcs:/// for TLS."
            ))
        };
        let found = SCHEMES
            .iter()
            .find_map(|&(prefix, scheme)| text.strip_prefix(prefix).map(|rest| (scheme, rest)));
        let Some((scheme, rest)) = found else {
            return Err(malformed("begins with neither shards:/// nor shards+grpcs:///"));
        };
        let (host_ports, query) = rest.split_once('?').unwrap_or((rest, ""));
        let seeds: Vec<String> = host_ports.split(',').map(|seed| seed.trim().to_owned()).collect();
        if seeds.iter().any(String::is_empty) {
            return Err(malformed("has an empty host:port"));
        }
        if let Some(twice) = seeds.iter().enumerate().find(|(i, seed)| seeds[..*i].contains(seed)) {
            return Err(malformed(&format!("names {} twice", twice.1)));
        }
        if seeds.iter().any(|it| it.contains("://") && !it.starts_with("unix:")) {
            return Err(malformed("has a scheme in its middle, and it stands once, in front"));
        }
        let mut address = Self {
            scheme,
            seeds,
            writers: Writers::Even,
            sample_from: SampleFrom::All,
            max_shards_per_batch: MAX_SHARDS_PER_BATCH,
            failover_after: FAILOVER_AFTER,
        };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            address.set(name, value).map_err(|what| malformed(&what))?;
        }
        Ok(address)
    }

    fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        let bad = |allowed: &str| format!("has {name}={value}, and {name} is {allowed}");
        match name {
            "writers" => {
                self.writers = match value {
                    "even" => Writers::Even,
                    "round_robin" => Writers::RoundRobin,
                    "local" => Writers::Local,
                    "least_loaded" => Writers::LeastLoaded,
                    _ => return Err(bad("even, round_robin, local or least_loaded")),
                };
            }
            "sample_from" => {
                self.sample_from = match value {
                    "all" => SampleFrom::All,
                    "local" => SampleFrom::Local,
                    _ => return Err(bad("all or local")),
                };
            }
            "max_shards_per_batch" => {
                let number = value.parse().ok().filter(|&number| number >= 1);
                self.max_shards_per_batch =
                    number.ok_or_else(|| bad("a whole number of at least 1"))?;
            }
            "failover_after_s" => {
                let seconds = value.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
                self.failover_after =
                    seconds.ok_or_else(|| bad("a number of seconds of at least 0"))?;
            }
            _ => {
                return Err(format!(
                    "has the option {name:?}; there are writers, sample_from, \
                     max_shards_per_batch and failover_after_s"
                ));
            }
        }
        Ok(())
    }

    /// The address of the shard at this `host:port` or `unix:` path.
    pub fn shard(&self, host_port: &str) -> String {
        if host_port.starts_with("unix:") {
            host_port.to_owned()
        } else {
            format!("{}{host_port}", self.scheme)
        }
    }

    /// The seeds as one address with several servers, without Unix sockets if there are others.
    pub fn seeds_as_target(&self) -> String {
        let host_ports: Vec<&str> = self
            .seeds
            .iter()
            .filter(|seed| !seed.starts_with("unix:"))
            .map(String::as_str)
            .collect();
        if host_ports.is_empty() {
            self.seeds.first().cloned().unwrap_or_default()
        } else {
            format!("{}{}", self.scheme, host_ports.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_seeds_and_options() {
        let address = GroupAddress::parse("shards:///a:1, b:2").unwrap();
        assert_eq!((address.scheme, address.seeds.len()), ("", 2));
        assert_eq!(address.shard("b:2"), "b:2");
        assert_eq!(address.writers, Writers::Even);
        let address = GroupAddress::parse(
            "shards+grpcs:///a:1?writers=least_loaded&max_shards_per_batch=4&failover_after_s=0.5",
        )
        .unwrap();
        assert_eq!(address.writers, Writers::LeastLoaded);
        assert_eq!(address.max_shards_per_batch, 4);
        assert_eq!(address.failover_after, Duration::from_millis(500));
        assert_eq!(address.shard("b:2"), "grpcs://b:2");
        assert_eq!(address.seeds_as_target(), "grpcs://a:1");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, what) in [
            ("shards:a:1", "begins with neither"),
            ("shards://a:1", "begins with neither"),
            ("shards+http:///a:1", "begins with neither"),
            ("shards:///a:1,,b:2", "an empty host:port"),
            ("shards:///", "an empty host:port"),
            ("shards:///a:1,b:1,a:1", "names a:1 twice"),
            ("shards:///a:1,grpcs://b:2", "a scheme in its middle"),
            ("shards:///a:1?writers=all", "even, round_robin, local or least_loaded"),
            ("shards:///a:1?max_shards_per_batch=0", "at least 1"),
            ("shards:///a:1?failover_after_s=-1", "at least 0"),
            ("shards:///a:1?shards=3", "the option \"shards\""),
        ] {
            let error = GroupAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
        assert!(!GroupAddress::is_one("shards:8000x") || GroupAddress::parse("shards:80").is_err());
    }
}
