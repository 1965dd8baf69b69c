// SPDX-License-Identifier: Apache-2.0
//! The process that wrote a checkpoint or has a server name, for messages to people.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use reverb_base::process::host_name;

/// Linux's list of locks and their holders.
const LOCKS: &str = "/proc/locks";

/// A process and its machine. Ownership is decided by locks, never by this value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    process: u32,
    host: String,
}

impl Owner {
    /// This process.
    pub fn here() -> Self {
        // The host name must be a single word.
        let host: String = host_name().split_whitespace().collect();
        let host = if host.is_empty() { "localhost".to_owned() } else { host };
        Self { process: std::process::id(), host }
    }

    /// The process on this machine that holds a lock on a file, if the system knows it.
    pub fn of_lock(path: &Path) -> Option<Self> {
        let inode = inode_of(path)?;
        let locks = fs::read_to_string(LOCKS).ok()?;
        let process = locks.lines().find_map(|line| holder(line, inode))?;
        Some(Self { process, ..Self::here() })
    }

    /// Formats it as one word, which `parse` reads.
    pub fn to_word(&self) -> String {
        format!("{}@{}", self.process, self.host)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::here() {
            return f.write_str("this process");
        }
        write!(f, "process {} on {}", self.process, self.host)
    }
}

impl FromStr for Owner {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let (process, host) = word.trim().split_once('@').ok_or(())?;
        let process = process.parse().map_err(|_| ())?;
        Ok(Self { process, host: host.to_owned() })
    }
}

/// Process in a line such as `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`, if the lock is on
/// this inode. The process is 0 if it is in another container.
fn holder(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[_, "FLOCK", _, "WRITE", process, inode_text, ..] = words.as_slice() else { return None };
    let (_, number) = inode_text.rsplit_once(':')?;
    let process = process.parse().ok().filter(|&process| process > 0)?;
    (number.parse() == Ok(inode)).then_some(process)
}

#[cfg(unix)]
fn inode_of(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(fs::metadata(path).ok()?.ino())
}

#[cfg(not(unix))]
fn inode_of(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_word() {
        let owner = Owner { process: 12, host: "a-host".to_owned() };
        assert_eq!(owner.to_word(), "12@a-host");
        assert_eq!("12@a-host\n".parse(), Ok(owner.clone()));
        assert_eq!(owner.to_string(), "process 12 on a-host");
        assert_eq!(Owner::here().to_string(), "this process");
        for word in ["", "12", "x@y", "-1@y"] {
            assert_eq!(word.parse::<Owner>(), Err(()), "{word}");
        }
    }

    #[test]
    fn holders_of_locks_are_read_from_the_systems_list() {
        let line = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF";
        assert_eq!(holder(line, 1234), Some(4711));
        assert_eq!(holder(line, 123), None);
        assert_eq!(holder(&line.replace("4711", "0"), 1234), None);
        assert_eq!(holder(&line.replace("FLOCK", "POSIX"), 1234), None);
        assert_eq!(holder("1: -> FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF", 1234), None);
        assert_eq!(holder("", 1234), None);
    }
}
