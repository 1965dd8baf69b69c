// SPDX-License-Identifier: Apache-2.0
//! Rights of callers on tables.
//!
//! Design: `docs/design/security.md`.
//!
//! A file lists callers, one a line: a name, rights, tables, and the SHA-256 of a token or a name
//! in a certificate. An [`Authenticator`] holds the list and reads it again when the file changes;
//! an [`Access`] has the rights of one caller. No token is kept, and none is ever part of a
//! message, except for its first characters in the message to its owner that it is unknown.

#![forbid(unsafe_code)]

mod access;
mod access_list;
mod authenticator;
mod entry;
mod expiry;
mod header;
mod refusal;
mod rights;
mod token;

pub use access::{Access, TableSet};
pub use access_list::AccessList;
pub use authenticator::Authenticator;
pub use entry::hash_line;
pub use header::{bearer_token, password};
pub use refusal::{Reason, Refusal};
pub use reverb_data::Right;
pub use rights::Rights;
pub use token::{new_token, token_hash};
