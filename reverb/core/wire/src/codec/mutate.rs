// SPDX-License-Identifier: Apache-2.0
//! `MutatePrioritiesRequest`.

use bytes::Bytes;
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{
    Field, Reader, put_bytes_field, put_double_field, put_nested, put_packed_field,
    put_varint_field,
};
use reverb_rpc::message::{Message, MessageBuilder};

use crate::codec::insert::{packed_len, read_packed};
use crate::decoded_size;

/// Tag and length of an update, and its key and priority with theirs.
const MAX_UPDATE_BYTES: usize = 2 + 11 + 9;

/// New priorities and keys to delete, for one table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mutation {
    /// Name of the table.
    pub table: String,
    /// Keys and their new priorities.
    pub updates: Vec<(u64, f64)>,
    /// Keys of items to delete.
    pub deletes: Vec<u64>,
}

/// Encodes a request.
pub fn encode_mutation(table: &str, updates: &[(u64, f64)], deletes: &[u64]) -> Message {
    let bytes = table.len() + 16 + updates.len() * MAX_UPDATE_BYTES + deletes.len() * 10;
    let mut builder = MessageBuilder::with_capacity(bytes);
    let out = builder.out();
    if !table.is_empty() {
        put_bytes_field(out, 1, table.as_bytes());
    }
    for &(key, priority) in updates {
        put_nested(out, 2, |out| {
            put_varint_field(out, 1, key);
            put_double_field(out, 2, priority);
        });
    }
    put_packed_field(out, 3, deletes);
    builder.finish()
}

/// Reads a request.
///
/// # Errors
///
/// `InvalidArgument` if it is malformed, or if nearly all of its updates are empty.
pub fn parse_mutation(message: &Bytes) -> Result<Mutation> {
    let (num_updates, num_deletes) = count(message)?;
    decoded_size::check(
        message.len(),
        num_updates * size_of::<(u64, f64)>() + num_deletes * size_of::<u64>(),
    )?;
    let mut mutation = Mutation {
        updates: Vec::with_capacity(num_updates),
        deletes: Vec::with_capacity(num_deletes),
        ..Mutation::default()
    };
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Bytes(table)) => {
                let table = std::str::from_utf8(table).map_err(|_| {
                    Error::invalid_argument("Malformed message: the name of a table is not UTF-8.")
                })?;
                table.clone_into(&mut mutation.table);
            }
            (2, Field::Bytes(update)) => mutation.updates.push(parse_update(update)?),
            (3, Field::Varint(key)) => mutation.deletes.push(key),
            (3, Field::Bytes(packed)) => read_packed(packed, &mut mutation.deletes)?,
            (1..=3, _) => {
                return Err(Error::invalid_argument(format!(
                    "Malformed message: field {field} has another type than it should have."
                )));
            }
            _ => {}
        }
    }
    Ok(mutation)
}

fn count(message: &[u8]) -> Result<(usize, usize)> {
    let mut updates = 0;
    let mut deletes = 0;
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (2, Field::Bytes(_)) => updates += 1,
            (3, Field::Varint(_)) => deletes += 1,
            (3, Field::Bytes(packed)) => deletes += packed_len(packed),
            _ => {}
        }
    }
    Ok((updates, deletes))
}

fn parse_update(message: &[u8]) -> Result<(u64, f64)> {
    let mut key = 0;
    let mut priority = 0.0;
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Varint(value)) => key = value,
            (2, Field::Fixed64(bits)) => priority = f64::from_bits(bits),
            (1 | 2, _) => {
                return Err(Error::invalid_argument(format!(
                    "Malformed message: field {field} of an update has another type than it should \
                     have."
                )));
            }
            _ => {}
        }
    }
    Ok((key, priority))
}
