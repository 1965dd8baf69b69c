// SPDX-License-Identifier: Apache-2.0
//! Compares whole steps with the signatures of tables.

use reverb_data::{DType, Error, ErrorKind, Result, Signature};

use crate::session::{Session, Signatures};

/// Compares a step of an item of `num_timesteps` steps with the signature of its table, which
/// describes either a step or the whole item.
pub(super) fn check_steps(
    signature: &Signature,
    table: &str,
    columns: &[(DType, &[usize])],
    num_timesteps: usize,
) -> Result<()> {
    signature.check_by(table, columns, |want, shape| {
        want.shape_matches(shape) || {
            let batched: Vec<usize> =
                std::iter::once(num_timesteps).chain(shape.iter().copied()).collect();
            want.shape_matches(&batched)
        }
    })
}

/// Checks columns `[T, ...]`, whose lengths may differ, with a signature of items or of steps.
///
/// # Errors
///
/// `SignatureMismatch`.
pub(super) fn check_sequences(
    signature: &Signature,
    table: &str,
    columns: &[(DType, &[usize])],
) -> Result<()> {
    signature.check(table, columns).or_else(|error| {
        let are_steps =
            signature.check_by(table, columns, |want, shape| want.shape_matches(&shape[1..]));
        are_steps.map_err(|_| error)
    })
}

/// Handles a table without a known signature.
///
/// # Errors
///
/// `TableNotFound`, unless this client has a token: the server may then hide the table, and reports
/// the missing right when it gets the item.
pub(super) fn unknown_table(table: &str, session: &Session, signatures: &Signatures) -> Result<()> {
    if session.has_token() {
        return Ok(());
    }
    let mut known: Vec<&str> = signatures.keys().map(String::as_str).collect();
    known.sort_unstable();
    Err(Error::new(
        ErrorKind::TableNotFound,
        format!(
            "Unable to create an item in table '{table}': the server at {} has no table of that name. Its tables are: {}.",
            session.address(),
            known.join(", "),
        ),
    ))
}
