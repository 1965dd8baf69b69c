// SPDX-License-Identifier: Apache-2.0
//! Compares whole steps with the signatures of tables.

use std::sync::Arc;

use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{DType, NewItem, Shape, Signature, TensorSpec};

use super::cell::CellValue;
use crate::session::{Session, Signatures};

/// Compares a step of an item of `num_timesteps` steps with the signature of its table, which
/// describes either a step or the whole item.
pub(in crate::writer) fn check_steps(
    signature: &Signature,
    table: &str,
    columns: &[(DType, &[usize])],
    num_timesteps: usize,
) -> Result<()> {
    let item_shape = |shape: &[usize]| -> Shape {
        std::iter::once(num_timesteps).chain(shape.iter().copied()).collect()
    };
    let is_like = |want: &TensorSpec, shape: &[usize]| {
        want.shape_matches(shape) || want.shape_matches(&item_shape(shape))
    };
    signature.check_by(table, columns, is_like).or_else(|error| {
        // The text compares each column with the signature in the form that the signature has.
        if signature.0.len() != columns.len() {
            return Err(error);
        }
        let shown = signature.0.iter().zip(columns).map(|(want, (dtype, shape))| {
            let item = item_shape(shape);
            let is_item = want.shape_matches(&item) || describes_items(want, &item);
            (*dtype, if is_item { item } else { Shape::from_slice(shape) })
        });
        let shown: Vec<(DType, Shape)> = shown.collect();
        let shown: Vec<_> = shown.iter().map(|(dtype, shape)| (*dtype, &shape[..])).collect();
        signature.check(table, &shown)
    })
}

/// True if a spec that fits neither a step nor an item was rather meant for items of this shape.
fn describes_items(want: &TensorSpec, item: &[usize]) -> bool {
    want.shape.as_ref().is_some_and(|dims| {
        dims.len() == item.len()
            && dims.first().is_some_and(|dim| dim.is_none_or(|size| size == item[0]))
    })
}

/// Checks columns `[T, ...]`, whose lengths may differ, with a signature of items or of steps.
///
/// # Errors
///
/// `SignatureMismatch`.
pub(in crate::writer) fn check_sequences(
    signature: &Signature,
    table: &str,
    columns: &[(DType, &[usize])],
) -> Result<()> {
    signature.check(table, columns).or_else(|error| {
        let is_step = |want: &TensorSpec, shape: &[usize]| want.shape_matches(&shape[1..]);
        signature.check_by(table, columns, is_step).or_else(|_| {
            let fit = |(want, (_, shape)): (&TensorSpec, &(DType, &[usize]))| is_step(want, shape);
            if signature.0.len() != columns.len() || !signature.0.iter().zip(columns).all(fit) {
                return Err(error);
            }
            // Only dtypes differ, so the text has steps, too.
            let steps: Vec<_> =
                columns.iter().map(|(dtype, shape)| (*dtype, &shape[1..])).collect();
            signature.check(table, &steps)
        })
    })
}

/// Checks one column `[T, ...]` of an item that grows; a `single` step is declared without that
/// dimension.
///
/// # Errors
///
/// `SignatureMismatch`.
pub(in crate::writer) fn check_part(
    signature: &Signature,
    table: &str,
    column: u32,
    value: &CellValue<'_>,
    single: bool,
) -> Result<()> {
    // The server says which columns there are.
    let Some(spec) = signature.0.get(column as usize) else { return Ok(()) };
    let shape = if single { &value.shape()[1..] } else { value.shape() };
    Signature(vec![spec.clone()]).check(table, &[(value.dtype(), shape)])
}

/// Compares items, which fit the `checked` signatures, with those of the server that is at the
/// address now: it may be another one, with other tables. Several servers are taken for the same.
pub(in crate::writer) async fn check_again(
    session: &Session,
    checked: &Arc<Signatures>,
    items: &[NewItem],
) -> Result<()> {
    if session.has_several_servers() {
        return Ok(());
    }
    session.server_info_once().await?;
    let signatures = session.signatures().await?;
    if Arc::ptr_eq(&signatures, checked) {
        return Ok(());
    }
    for NewItem { table, trajectory, change, .. } in items {
        match signatures.get(&**table) {
            None => unknown_table(table, session, &signatures)?,
            Some(None) => {}
            // The server checks the parts of an item.
            Some(Some(_)) if change.is_some() => {}
            Some(Some(signature)) => {
                let specs: Result<Vec<_>> =
                    trajectory.columns().map(|column| trajectory.column_spec(&column)).collect();
                let specs = specs?;
                let specs: Vec<(DType, &[usize])> =
                    specs.iter().map(|(dtype, shape)| (*dtype, &**shape)).collect();
                check_sequences(signature, table, &specs)?;
            }
        }
    }
    Ok(())
}

/// Handles a table without a known signature.
///
/// # Errors
///
/// `TableNotFound`, unless this client has a token: the server may then hide the table, and reports
/// the missing right when it gets the item.
pub(in crate::writer) fn unknown_table(
    table: &str,
    session: &Session,
    signatures: &Signatures,
) -> Result<()> {
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
