// SPDX-License-Identifier: Apache-2.0
//! Callers of a test, in a tokens file that is removed at its end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use reverb_auth::{Authenticator, Right, TableSet, hash_line, new_token};
use reverb_server::ServerOptions;

/// A name, its rights, and its tables.
pub(crate) type Line<'a> = (&'static str, &'a [Right], &'a [&'a str]);

pub(crate) struct Callers {
    pub path: PathBuf,
    tokens: BTreeMap<&'static str, String>,
}

impl Callers {
    pub(crate) fn new(lines: &[Line<'_>]) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("reverb-callers-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut callers = Self { path, tokens: BTreeMap::default() };
        callers.write(lines);
        callers
    }

    /// Replaces the file. A name that was there keeps its token.
    pub(crate) fn write(&mut self, lines: &[Line<'_>]) {
        let mut text = String::new();
        for (name, rights, tables) in lines {
            let tables = match tables {
                ["*"] => TableSet::All,
                _ => TableSet::Named(tables.iter().map(ToString::to_string).collect()),
            };
            let token = self.tokens.entry(name).or_insert_with(|| new_token().unwrap());
            let rights = rights.iter().copied().collect();
            text += &(hash_line(name, rights, &tables, token).unwrap() + "\n");
        }
        std::fs::write(&self.path, text).unwrap();
    }

    pub(crate) fn token(&self, name: &str) -> &str {
        &self.tokens[name]
    }

    /// Those of a server without TLS.
    pub(crate) fn options(&self) -> ServerOptions {
        ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            authenticator: Some(Authenticator::open(&self.path).unwrap()),
            ..ServerOptions::default()
        }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
