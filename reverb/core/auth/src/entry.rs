// SPDX-License-Identifier: Apache-2.0
//! An entry of the tokens file: `name  rights  tables  sha256:HEX  until=2027-01-31T00:00:00Z`.
//!
//! Fields are separated by white space; `#` at the beginning of a field begins a comment. Tables
//! are separated by commas, and characters that a name may not contain are percent-encoded: a space
//! is `%20`, a comma `%2C`, a per cent sign `%25`, and a table that is called `*` is `%2A`.
//!
//! A user may have put a token where its hash belongs, or anywhere. So messages never quote a
//! field, unless it cannot be a secret.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use reverb_base::Result;
use reverb_data::Right;

use crate::access::{Access, TableSet};
use crate::access_list::AccessList;
use crate::expiry::Expiry;
use crate::rights::Rights;
use crate::token::{PREFIX, TokenHash, is_token};

/// Characters that are encoded in names of tables. Other white space is not ASCII, so it is encoded
/// too.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b',').add(b'%').add(b'*').add(b'#');

/// Form of an entry, for messages about a wrong one.
const FORM: &str = "name  rights  tables  sha256:HEX";

/// An entry of the file, on one line.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) access: Access,
    pub(crate) key: Key,
    pub(crate) until: Option<Expiry>,
}

/// Identification of a caller.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Token(TokenHash),
    /// A subject alternative name.
    Certificate(String),
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Certificate(_) => "Certificate",
        })
    }
}

impl Key {
    /// Key of a name in a certificate. Host names are compared without case.
    pub(crate) fn of_certificate(name: &str) -> Self {
        let is_uri = name.contains(':');
        Self::Certificate(if is_uri { name.to_owned() } else { name.to_ascii_lowercase() })
    }
}

/// Entry for a new token, as text.
///
/// # Errors
///
/// `InvalidArgument` if the name cannot be written, or if there is no right or no table.
pub fn hash_line(name: &str, rights: Rights, tables: &TableSet, token: &str) -> Result<String> {
    let tables = match tables {
        TableSet::All => "*".to_owned(),
        TableSet::Named(tables) => {
            let tables = tables.iter().map(|table| utf8_percent_encode(table, ENCODED).to_string());
            tables.collect::<Vec<_>>().join(",")
        }
    };
    let hash = TokenHash::of(token).to_hex();
    let line = format!("{name}  {rights}  {tables}  sha256:{hash}");
    AccessList::parse(&line).map_err(|error| error.context("new token"))?;
    Ok(line)
}

impl Entry {
    /// Parses a line; `None` if it is empty, or a comment.
    ///
    /// # Errors
    ///
    /// All problems of the line.
    pub(crate) fn parse(line: &str) -> Option<std::result::Result<Self, Vec<String>>> {
        let fields = line.split_whitespace().take_while(|field| !field.starts_with('#'));
        let fields: Vec<&str> = fields.collect();
        match fields[..] {
            [] => None,
            [name, rights, tables, key] => Some(Self::new(name, rights, tables, key, None)),
            [name, rights, tables, key, until] => {
                Some(Self::new(name, rights, tables, key, Some(until)))
            }
            _ => Some(Err(vec![format!(
                "there {} of the four or five of a line: {FORM}  until=2027-01-31T00:00:00Z \
                 (the last may be absent; a space in the name of a table is %20)",
                match fields.len() {
                    1 => "is one field instead".to_owned(),
                    count => format!("are {count} fields instead"),
                }
            )])),
        }
    }

    fn new(
        name: &str,
        rights: &str,
        tables: &str,
        key: &str,
        until: Option<&str>,
    ) -> std::result::Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let name = noted(parse_name(name), &mut problems);
        let rights = noted(parse_rights(rights), &mut problems);
        let tables = noted(parse_tables(tables), &mut problems);
        let key = noted(parse_key(key), &mut problems);
        let until = noted(until.map(parse_until).transpose(), &mut problems);
        let (Some(name), Some(rights), Some(tables), Some(key), Some(until)) =
            (name, rights, tables, key, until)
        else {
            return Err(problems);
        };
        let kind = match key {
            Key::Token(_) => "token",
            Key::Certificate(_) => "certificate",
        };
        let access = Access::new(format!("{kind} {name}"), rights, tables, key.clone());
        Ok(Self { access, key, until })
    }
}

fn noted<T>(parsed: std::result::Result<T, String>, problems: &mut Vec<String>) -> Option<T> {
    parsed.map_err(|problem| problems.push(problem)).ok()
}

fn parse_name(name: &str) -> std::result::Result<&str, String> {
    if name.contains(PREFIX) {
        return Err(token_in("first", "the name"));
    }
    if name.chars().any(char::is_control) {
        return Err("the name, which is the first field, has control characters".to_owned());
    }
    Ok(name)
}

fn parse_rights(text: &str) -> std::result::Result<Rights, String> {
    let right = |name: &str| {
        Right::ALL.into_iter().find(|right| right.name() == name).ok_or_else(|| {
            if name.contains(PREFIX) {
                return token_in("second", "rights");
            }
            // A token is longer, and has digits.
            let is_word = name.len() <= 16 && name.bytes().all(|byte| byte.is_ascii_alphabetic());
            let got = if is_word { format!(", got \"{name}\"") } else { String::new() };
            format!(
                "the second field lists rights out of sample, insert, update and admin, separated \
                 by commas{got}"
            )
        })
    };
    text.split(',').map(right).collect()
}

fn parse_tables(text: &str) -> std::result::Result<TableSet, String> {
    if text == "*" {
        return Ok(TableSet::All);
    }
    let table = |encoded: &str| match encoded {
        "" => Err("the third field lists tables, separated by commas; the name of one is empty"
            .to_owned()),
        "*" => Err("the third field is * for all tables, or lists tables; it cannot do both (a \
                    table that is called * is %2A)"
            .to_owned()),
        encoded if is_token(encoded) => Err(token_in("third", "tables")),
        encoded => decoded(encoded).ok_or_else(|| {
            "the name of a table has a % that is not followed by two hexadecimal digits of UTF-8; \
             a per cent sign is %25"
                .to_owned()
        }),
    };
    text.split(',').map(table).collect::<std::result::Result<_, _>>().map(TableSet::Named)
}

fn decoded(encoded: &str) -> Option<String> {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = encoded.as_bytes();
    let is_good = (0..bytes.len())
        .all(|at| bytes[at] != b'%' || is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2)));
    let text = percent_decode_str(encoded).decode_utf8().ok()?;
    is_good.then(|| text.into_owned())
}

fn parse_key(text: &str) -> std::result::Result<Key, String> {
    if let Some(name) = text.strip_prefix("cert:") {
        let is_name = !name.is_empty() && !name.contains(PREFIX);
        // Clients cannot be identified by patterns or addresses.
        let is_pattern = name.contains('*') || name.parse::<std::net::IpAddr>().is_ok();
        return (is_name && !is_pattern).then(|| Key::of_certificate(name)).ok_or_else(|| {
            "cert: must be followed by a subject alternative name of the certificate: the name of \
             a host without *, or a URI; addresses do not count"
                .to_owned()
        });
    }
    if text.contains(PREFIX) {
        return Err(format!(
            "{}; write sha256: and the output of: printf %s TOKEN | sha256sum. Anyone who could \
             read this file knows the token now: better make a new one (reverb token new)",
            token_in("fourth", "its hash")
        ));
    }
    let Some(hex) = text.strip_prefix("sha256:") else {
        return Err(
            "the fourth field must be sha256: and the hash of a token, or cert: and a name \
                    in a certificate; it is not shown here, as it may be a secret"
                .to_owned(),
        );
    };
    let hash = TokenHash::from_hex(hex).ok_or_else(|| {
        let got = hex.chars().count();
        format!("sha256: must be followed by 64 hexadecimal digits, got {got} characters")
    })?;
    if hash == TokenHash::of("") {
        return Err("this is the hash of an empty text, not of a token".to_owned());
    }
    Ok(Key::Token(hash))
}

fn parse_until(text: &str) -> std::result::Result<Expiry, String> {
    text.strip_prefix("until=").and_then(Expiry::parse).ok_or_else(|| {
        "the fifth field must be a time in UTC such as until=2027-01-31T00:00:00Z".to_owned()
    })
}

fn token_in(field: &str, what: &str) -> String {
    format!("a token stands in the {field} field, where {what} should be")
}
