// SPDX-License-Identifier: Apache-2.0
//! Conversion of the older layouts that early releases of dm-reverb wrote.

use prost::Message;
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{Field, Reader, put_bytes_field};
use reverb_data::{Chunk, Trajectory, TrajectoryBuilder};
use reverb_wire::generated::PrioritizedItem;

/// Payload of a chunk whose tensors are in field 3 instead of field 5.
///
/// # Errors
///
/// `DataLoss` if it has both.
pub(crate) fn chunk_payload(message: &[u8], has_payload: bool) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        if let (3, Field::Bytes(tensor)) = (field, value) {
            put_bytes_field(&mut payload, 1, tensor);
        }
    }
    if has_payload {
        return Err(Error::data_loss(
            "the chunk has its data in the old field and in the new one.",
        ));
    }
    Ok(payload)
}

/// Trajectory of an item that refers to steps `[offset, offset + length)` of all columns of a list
/// of chunks.
///
/// # Errors
///
/// `DataLoss` if it also has references in the new layout, or if the chunks lack the steps; and
/// errors of `find`.
pub(crate) fn item_trajectory<'c>(
    message: &[u8],
    mut find: impl FnMut(u64) -> Result<&'c Chunk>,
) -> Result<Trajectory> {
    let item = PrioritizedItem::decode(message)
        .map_err(|error| Error::data_loss(format!("it is no item: {error}.")))?;
    if item.flat_trajectory.is_some() {
        return Err(Error::data_loss(
            "the item refers to steps in the old way and in the new one.",
        ));
    }
    #[expect(deprecated, reason = "this file reads deprecated fields")]
    let PrioritizedItem { deprecated_chunk_keys: keys, deprecated_sequence_range: range, .. } =
        item;
    let range = range.unwrap_or_default();
    let chunks: Vec<&Chunk> = keys.into_iter().map(&mut find).collect::<Result<_>>()?;
    let num_columns = match chunks.first() {
        Some(chunk) => chunk.tensors().count(),
        None => return Err(Error::data_loss("the item refers to no chunks.")),
    };
    let mut builder = TrajectoryBuilder::new();
    for column in 0..num_columns {
        let mut missing = i64::from(range.length);
        let mut offset = i64::from(range.offset);
        for chunk in &chunks {
            let steps = i64::from(chunk.range().end) - i64::from(chunk.range().start) + 1;
            let length = (steps - offset).min(missing);
            if length > 0 && offset >= 0 {
                builder.slice(chunk, column, offset as usize, length as usize);
                missing -= length;
            }
            offset = 0;
        }
        if missing != 0 || range.length <= 0 {
            return Err(Error::data_loss(format!(
                "the item refers to {} steps from step {} of its chunks, which do not have them.",
                range.length, range.offset
            )));
        }
        builder.end_column(false);
    }
    builder.finish()
}
