// SPDX-License-Identifier: Apache-2.0
//! All callers that a server knows.

use std::sync::Arc;
use std::time::SystemTime;

use hashbrown::HashMap;
use hashbrown::hash_map;
use reverb_base::{Error, Result};

use crate::access::Access;
use crate::entry::{Entry, Key};
use crate::expiry::Expiry;
use crate::refusal::Refusal;
use crate::token::{TokenHash, shown};

/// Maximum number of problems of a file that a message lists.
const MAX_PROBLEMS: usize = 20;

/// All callers that a server knows: the content of a tokens file.
#[derive(Debug)]
pub struct AccessList(HashMap<Key, Known>);

#[derive(Debug)]
struct Known {
    line: usize,
    access: Arc<Access>,
    until: Option<Expiry>,
}

impl AccessList {
    /// Reads the text of a tokens file.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with every problem and its line. It never contains a token.
    pub fn parse(text: &str) -> Result<Self> {
        let mut known: HashMap<Key, Known> = HashMap::new();
        let mut problems = Vec::new();
        // Some editors put this mark before UTF-8.
        let lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines();
        for (number, line) in (1..).zip(lines) {
            match Entry::parse(line) {
                None => {}
                Some(Err(of_line)) => {
                    problems.extend(of_line.into_iter().map(|problem| (number, problem)));
                }
                Some(Ok(Entry { access, key, until })) => match known.entry(key) {
                    hash_map::Entry::Occupied(other) => {
                        let what = match other.key() {
                            Key::Token(_) => "token",
                            Key::Certificate(_) => "certificate",
                        };
                        let line = other.get().line;
                        problems.push((number, format!("this is the {what} of line {line} again")));
                    }
                    hash_map::Entry::Vacant(vacant) => {
                        vacant.insert(Known { line: number, access: Arc::new(access), until });
                    }
                },
            }
        }
        if !problems.is_empty() {
            return Err(list_of(&problems));
        }
        if known.is_empty() {
            return Err(Error::invalid_argument(
                "it has no line, so nobody could use the server; `reverb token new` makes one",
            ));
        }
        Ok(Self(known))
    }

    /// Identifies a caller by the token, or else by the names in the certificate. If several names
    /// match, the first entry of the file counts.
    ///
    /// # Errors
    ///
    /// Reason of the refusal. A wrong token is refused even with a good certificate.
    pub fn authenticate(
        &self,
        token: Option<&str>,
        certificate_names: &[String],
        now: SystemTime,
    ) -> std::result::Result<Arc<Access>, Refusal> {
        let known = match token {
            Some("") => return Err(Refusal::no_bearer()),
            Some(token) => {
                let known = self.0.get(&Key::Token(TokenHash::of(token)));
                known.ok_or_else(|| Refusal::unknown_token(shown(token).as_deref()))?
            }
            None if certificate_names.is_empty() => return Err(Refusal::missing()),
            None => {
                let keys = certificate_names.iter().map(|name| Key::of_certificate(name));
                let known = keys.filter_map(|key| self.0.get(&key)).min_by_key(|entry| entry.line);
                known.ok_or_else(|| Refusal::unknown_certificate(certificate_names))?
            }
        };
        match &known.until {
            Some(until) if until.is_past(now) => Err(Refusal::expired(known.access.name(), until)),
            _ => Ok(Arc::clone(&known.access)),
        }
    }

    /// Returns true if the holder of this access would get the same access now.
    pub fn still_gives(&self, access: &Access, now: SystemTime) -> bool {
        self.0.get(access.key()).is_some_and(|known| {
            *known.access == *access
                && !known.until.as_ref().is_some_and(|until| until.is_past(now))
        })
    }
}

fn list_of(problems: &[(usize, String)]) -> Error {
    let lines = problems.iter().take(MAX_PROBLEMS);
    let mut text: Vec<String> =
        lines.map(|(line, problem)| format!("line {line}: {problem}.")).collect();
    if problems.len() > MAX_PROBLEMS {
        text.push(format!("There are {} more problems.", problems.len() - MAX_PROBLEMS));
    }
    Error::invalid_argument(text.join("\n"))
}

#[cfg(test)]
mod tests;
