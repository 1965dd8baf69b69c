// SPDX-License-Identifier: Apache-2.0
//! Who may do what with which table.
//!
//! Design: `docs/design/security.md`.
//!
//! A file lists callers, one a line: a name, rights, tables, and the SHA-256 of a token or a name
//! in a certificate. An [`Authenticator`] holds the list and reads it again when the file changes;
//! an [`Access`] is what one caller may do. No token is kept, and none is ever part of a message,
//! except for its first characters where its owner is told that it is not known.

#![forbid(unsafe_code)]

mod access;
mod access_list;
mod authenticator;
mod header;
mod line;
mod refusal;
mod rights;
mod token;
mod until;

pub use access::{Access, TableSet};
pub use access_list::AccessList;
pub use authenticator::Authenticator;
pub use header::{bearer_token, password};
pub use line::hash_line;
pub use refusal::{Reason, Refusal};
pub use reverb_data::Right;
pub use rights::Rights;
pub use token::{new_token, token_hash};
