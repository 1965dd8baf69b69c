// SPDX-License-Identifier: Apache-2.0
//! The item that keeps a batch from being stacked.

use reverb_base::{Error, ErrorKind};
use reverb_data::stacking::ColumnSpec;
use reverb_data::{Sampled, Trajectory};

/// Adds the key of the item that differs from most to the error of a batch, if there is one.
///
/// The error is about the first item and another one; the odd one may be either of them. With
/// `lengths_differ`, items may have different numbers of steps.
#[cold]
pub(crate) fn naming_odd_item(error: Error, samples: &[Sampled], lengths_differ: bool) -> Error {
    if error.kind() != ErrorKind::InvalidArgument {
        return error;
    }
    let column = error.column();
    let mut kinds: Vec<(String, usize, u64)> = Vec::new();
    for sampled in samples {
        let text = description(&sampled.trajectory, column, lengths_differ);
        match kinds.iter_mut().find(|(known, ..)| *known == text) {
            Some((_, count, _)) => *count += 1,
            None => kinds.push((text, 1, sampled.key)),
        }
    }
    // The last one of the rarest: with two kinds that are equally rare, the first item is right.
    let rarest = kinds.iter().rev().min_by_key(|(_, count, _)| *count);
    let Some((text, count, key)) = rarest.filter(|_| kinds.len() > 1) else { return error };
    error.followed_by(&format!(
        "The item with key {key} has {text}, as {count} of {} items. See \"One item fails every \
         batch\" on the page of troubleshooting.",
        samples.len()
    ))
}

/// The part of an item in which items of a batch differ.
fn description(trajectory: &Trajectory, column: Option<usize>, lengths_differ: bool) -> String {
    let num_columns = trajectory.num_columns();
    let found = column.and_then(|index| trajectory.columns().nth(index));
    let Some(column) = found else { return format!("{num_columns} columns") };
    match trajectory.column_spec(&column) {
        Err(_) => "damaged chunks".to_owned(),
        Ok((dtype, shape)) => {
            let squeeze = column.squeeze || lengths_differ;
            let spec = ColumnSpec { dtype, shape, squeeze };
            format!("{}{}", spec.description(), if column.squeeze { " in one step" } else { "" })
        }
    }
}
