// SPDX-License-Identifier: Apache-2.0
//! Reads the record of a table, whose message may grow when it is decoded.
//!
//! A nested message of two bytes may become an object of hundreds. Only two fields can have many of
//! them: the items of early releases, which stay encoded here, and the signature, whose parts are
//! counted first.

use std::result::Result;

use prost::Message;
use prost::bytes::Bytes;
use reverb_data::proto_bytes::{Field, Reader};
use reverb_wire::generated::PriorityTableCheckpoint;

const ITEM: u32 = 2;
const SIGNATURE: u32 = 9;
const ROLLOUTS: u32 = 1006;
/// Number of the field in the message of rollouts.
const GROWING_ITEM: u32 = 10;

/// The record of a table has room for fewer.
const MAX_GROWING_ITEMS: usize = 1 << 20;

/// Maximum size of a signature with its nested fields. Ten thousand columns take a quarter of it.
const MAX_SIGNATURE_BYTES: usize = 4 << 20;
const MAX_SIGNATURE_PARTS: usize = 1 << 18;

/// Message of a table without its items, and its items, which stay encoded.
///
/// # Errors
///
/// Text that describes the problem.
pub(crate) fn read_table(record: &[u8]) -> Result<(PriorityTableCheckpoint, Vec<&[u8]>), String> {
    let mut rest = Vec::new();
    let mut items = Vec::new();
    let mut signature = SignatureSize::default();
    let mut reader = Reader::new(record);
    loop {
        let before = reader.rest();
        let field = reader.field().map_err(|error| error.message().to_owned())?;
        match field {
            None => break,
            Some((ITEM, Field::Bytes([]))) => return Err("it has an empty item".to_owned()),
            Some((ITEM, Field::Bytes(item))) => items.push(item),
            Some((number, value)) => {
                if let (SIGNATURE, Field::Bytes(message)) = (number, value) {
                    signature.add(message)?;
                }
                if let (ROLLOUTS, Field::Bytes(message)) = (number, value) {
                    check_rollouts(message)?;
                }
                rest.extend_from_slice(&before[..before.len() - reader.rest().len()]);
            }
        }
    }
    let message =
        PriorityTableCheckpoint::decode(Bytes::from(rest)).map_err(|error| error.to_string())?;
    Ok((message, items))
}

/// Counts the items with rollouts, which stay encoded, each in memory of its own.
fn check_rollouts(message: &[u8]) -> Result<(), String> {
    let mut num_items = 0;
    let mut reader = Reader::new(message);
    while let Some(field) = reader.field().map_err(|error| error.message().to_owned())? {
        num_items += usize::from(matches!(field, (GROWING_ITEM, Field::Bytes(_))));
    }
    if num_items > MAX_GROWING_ITEMS {
        return Err(format!("it has more than {MAX_GROWING_ITEMS} items with rollouts"));
    }
    Ok(())
}

#[derive(Debug, Default)]
struct SignatureSize {
    bytes: usize,
    parts: usize,
}

impl SignatureSize {
    /// Counts a message and everything nested in it. Strings count as if they had parts.
    fn add(&mut self, message: &[u8]) -> Result<(), String> {
        self.bytes += message.len();
        if self.bytes > MAX_SIGNATURE_BYTES {
            return Err(format!("its signature has more than {MAX_SIGNATURE_BYTES} bytes"));
        }
        let mut waiting = vec![message];
        while let Some(message) = waiting.pop() {
            let mut reader = Reader::new(message);
            // Bytes that do not parse are a string, or an error that the decoder reports.
            while let Ok(Some((_, value))) = reader.field() {
                let Field::Bytes(part) = value else { continue };
                self.parts += 1;
                if self.parts > MAX_SIGNATURE_PARTS {
                    return Err(format!("its signature has more than {MAX_SIGNATURE_PARTS} parts"));
                }
                waiting.push(part);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use reverb_data::proto_bytes::put_bytes_field;

    use super::*;

    #[test]
    fn what_grows_is_refused_or_left_encoded() {
        // A list of values without a kind.
        let list = |bytes: usize| {
            let mut value = Vec::new();
            put_bytes_field(&mut value, 51, &[1 << 3 | 2, 0].repeat(bytes / 2));
            let mut record = Vec::new();
            put_bytes_field(&mut record, SIGNATURE, &value);
            record
        };
        assert!(read_table(&list(100_000)).is_ok());
        assert_eq!(
            read_table(&list(1 << 20)).unwrap_err(),
            format!("its signature has more than {MAX_SIGNATURE_PARTS} parts")
        );
        assert_eq!(
            read_table(&list(MAX_SIGNATURE_BYTES)).unwrap_err(),
            format!("its signature has more than {MAX_SIGNATURE_BYTES} bytes")
        );
        let mut record = Vec::new();
        put_bytes_field(&mut record, 1, b"name");
        put_bytes_field(&mut record, ITEM, b"item");
        let (message, items) = read_table(&record).unwrap();
        assert_eq!((message.table_name.as_str(), items), ("name", vec![&b"item"[..]]));
        put_bytes_field(&mut record, ITEM, b"");
        assert_eq!(read_table(&record).unwrap_err(), "it has an empty item");
        assert!(read_table(&record[..record.len() - 1]).is_err());
    }
}
