// SPDX-License-Identifier: Apache-2.0
//! Name by which a server recognises its own checkpoints.

use std::fmt;
use std::str::FromStr;

use reverb_base::{Error, Result};

const MAX_LENGTH: usize = 64;

/// Name of a server. It is written into its checkpoints, and is part of a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerName(String);

impl ServerName {
    /// The name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0)
    }
}

impl FromStr for ServerName {
    type Err = Error;

    /// # Errors
    ///
    /// `InvalidArgument` if it is too long or has characters that some file systems do not accept.
    fn from_str(name: &str) -> Result<Self> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if (1..=MAX_LENGTH).contains(&name.len()) && name.chars().all(is_allowed) {
            return Ok(Self(name.to_owned()));
        }
        Err(Error::invalid_argument(format!(
            "name must have 1 to {MAX_LENGTH} characters, each of A-Z, a-z, 0-9, '_', '-' or '.', \
             got {name:?}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_in_file_names_and_lines() {
        for name in ["a", "replay-0.train_2", "..", &"x".repeat(64)] {
            assert_eq!(name.parse::<ServerName>().unwrap().as_str(), name);
        }
        for name in ["", "a/b", "a\\b", "a b", "a\n", "a\0", "a=b", "é", &"x".repeat(65)] {
            let error = name.parse::<ServerName>().unwrap_err();
            assert!(error.message().ends_with(&format!("got {name:?}")), "{error}");
        }
    }
}
