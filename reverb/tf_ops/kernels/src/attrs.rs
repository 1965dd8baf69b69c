// SPDX-License-Identifier: Apache-2.0
//! Attributes of an op, read from its `NodeDef`, because the C API cannot read lists of shapes
//! otherwise.

#![allow(unsafe_code)]

use std::collections::HashMap;

use reverb_base::Result;
use reverb_data::DType;
use reverb_data::proto_bytes::{Field, Reader};

use crate::api::{Opaque, Status, api};
use crate::failure::{Failure, Outcome};

/// A shape with possibly unknown dimensions, or an unknown rank (`None`).
pub(crate) type PartialShape = Option<Vec<Option<usize>>>;

/// Attributes by name, as serialised `tensorflow.AttrValue`.
pub(crate) struct Attrs(HashMap<String, Vec<u8>>);

impl Attrs {
    /// Reads the attributes from a `TF_OpKernelConstruction`.
    pub(crate) fn read(construction: Opaque) -> Outcome<Self> {
        let status = Status::new();
        // SAFETY: TensorFlow passes a construction that lives during the call, and the buffer is
        // freed once.
        let attrs = unsafe {
            let buffer = (api().TF_OpKernelConstruction_GetNodeDef)(construction, status.raw());
            status.check()?;
            let Some(held) = buffer.as_ref() else {
                return Err(Failure::internal("TensorFlow returned no NodeDef"));
            };
            let bytes = std::slice::from_raw_parts(held.data.cast::<u8>(), held.length);
            let attrs = Self::parse(bytes);
            (api().TF_DeleteBuffer)(buffer);
            attrs
        };
        Ok(attrs?)
    }

    /// Parses a serialised `NodeDef`: field 5 is a map of attributes.
    fn parse(node_def: &[u8]) -> Result<Self> {
        let mut attrs = HashMap::new();
        for field in fields(node_def)? {
            let (5, Field::Bytes(entry)) = field else { continue };
            let mut name = String::new();
            let mut value = Vec::new();
            for field in fields(entry)? {
                match field {
                    (1, Field::Bytes(bytes)) => name = String::from_utf8_lossy(bytes).into_owned(),
                    (2, Field::Bytes(bytes)) => value = bytes.to_vec(),
                    _ => {}
                }
            }
            attrs.insert(name, value);
        }
        Ok(Self(attrs))
    }

    /// An `int`.
    pub(crate) fn int(&self, name: &str) -> Outcome<i64> {
        Ok(self.varint(name, 3)? as i64)
    }

    /// A `bool`.
    pub(crate) fn bool(&self, name: &str) -> Outcome<bool> {
        Ok(self.varint(name, 5)? != 0)
    }

    /// A `list(type)`.
    pub(crate) fn types(&self, name: &str) -> Outcome<Vec<DType>> {
        let mut types = Vec::new();
        for list in self.lists(name)? {
            for field in fields(list)? {
                match field {
                    (6, Field::Varint(number)) => types.push(dtype(number)?),
                    (6, Field::Bytes(packed)) => {
                        let mut reader = Reader::new(packed);
                        while !reader.is_empty() {
                            types.push(dtype(reader.varint()?)?);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(types)
    }

    /// A `list(string)`.
    pub(crate) fn strings(&self, name: &str) -> Outcome<Vec<Vec<u8>>> {
        let mut strings = Vec::new();
        for list in self.lists(name)? {
            for field in fields(list)? {
                if let (2, Field::Bytes(bytes)) = field {
                    strings.push(bytes.to_vec());
                }
            }
        }
        Ok(strings)
    }

    /// A `list(shape)`.
    pub(crate) fn shapes(&self, name: &str) -> Outcome<Vec<PartialShape>> {
        let mut shapes = Vec::new();
        for list in self.lists(name)? {
            for field in fields(list)? {
                if let (7, Field::Bytes(bytes)) = field {
                    shapes.push(shape(bytes)?);
                }
            }
        }
        Ok(shapes)
    }

    fn value(&self, name: &str) -> Outcome<&[u8]> {
        let value = self.0.get(name);
        value.map(Vec::as_slice).ok_or_else(|| {
            Failure::internal(format!(
                "the op has no attribute '{name}': was it made by another version of reverb?"
            ))
        })
    }

    /// A number; protobuf may omit a zero.
    fn varint(&self, name: &str, number: u32) -> Outcome<u64> {
        let mut found = 0;
        for field in fields(self.value(name)?)? {
            if let (at, Field::Varint(value)) = field
                && at == number
            {
                found = value;
            }
        }
        Ok(found)
    }

    /// The `ListValue`s of an attribute: one, or none if the list is empty.
    fn lists(&self, name: &str) -> Outcome<Vec<&[u8]>> {
        let mut lists = Vec::new();
        for field in fields(self.value(name)?)? {
            if let (1, Field::Bytes(list)) = field {
                lists.push(list);
            }
        }
        Ok(lists)
    }
}

fn dtype(number: u64) -> Result<DType> {
    DType::from_number(i32::try_from(number).unwrap_or(-1))
}

/// A `TensorShapeProto`: field 2 a dimension with its size in field 1, field 3 an unknown rank.
fn shape(bytes: &[u8]) -> Result<PartialShape> {
    let mut dims = Vec::new();
    for field in fields(bytes)? {
        match field {
            (2, Field::Bytes(dim)) => {
                let mut size = 0;
                for field in fields(dim)? {
                    if let (1, Field::Varint(value)) = field {
                        size = value as i64;
                    }
                }
                dims.push(usize::try_from(size).ok());
            }
            (3, Field::Varint(1)) => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(dims))
}

/// The fields of a message in order.
fn fields(message: &[u8]) -> Result<Vec<(u32, Field<'_>)>> {
    let mut reader = Reader::new(message);
    let mut fields = Vec::new();
    while let Some(field) = reader.field()? {
        fields.push(field);
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reverb_data::proto_bytes::{put_bytes_field, put_varint_field};

    fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    fn node_def(name: &str, value: &[u8]) -> Vec<u8> {
        let entry = message(|out| {
            put_bytes_field(out, 1, name.as_bytes());
            put_bytes_field(out, 2, value);
        });
        message(|out| {
            put_bytes_field(out, 1, b"the node's name");
            put_bytes_field(out, 5, &entry);
        })
    }

    fn list(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let list = message(write);
        message(|out| put_bytes_field(out, 1, &list))
    }

    #[test]
    fn numbers_are_read_and_zeros_may_be_left_out() {
        let attrs =
            Attrs::parse(&node_def("a", &message(|out| put_varint_field(out, 3, -5i64 as u64))))
                .unwrap();
        assert_eq!(attrs.int("a").unwrap(), -5);
        let attrs = Attrs::parse(&node_def("a", &[])).unwrap();
        assert_eq!(attrs.int("a").unwrap(), 0);
        assert!(!attrs.bool("a").unwrap());
        assert!(attrs.int("b").unwrap_err().message.contains("no attribute 'b'"));
    }

    #[test]
    fn types_are_read_packed_and_one_by_one() {
        for packed in [true, false] {
            let value = list(|out| {
                if packed {
                    put_bytes_field(out, 6, &[1, 23]);
                } else {
                    put_varint_field(out, 6, 1);
                    put_varint_field(out, 6, 23);
                }
            });
            let attrs = Attrs::parse(&node_def("t", &value)).unwrap();
            assert_eq!(attrs.types("t").unwrap(), [DType::Float32, DType::UInt64]);
        }
        let attrs =
            Attrs::parse(&node_def("t", &list(|out| put_varint_field(out, 6, 99)))).unwrap();
        assert!(attrs.types("t").is_err());
    }

    #[test]
    fn shapes_may_be_known_in_part_or_not_at_all() {
        let dim = |size: i64| message(|out| put_varint_field(out, 1, size as u64));
        let known = message(|out| {
            put_bytes_field(out, 2, &dim(3));
            put_bytes_field(out, 2, &dim(-1));
            put_bytes_field(out, 2, &dim(0));
        });
        let unknown = message(|out| put_varint_field(out, 3, 1));
        let value = list(|out| {
            put_bytes_field(out, 7, &known);
            put_bytes_field(out, 7, &unknown);
            put_bytes_field(out, 7, &[]);
        });
        let attrs = Attrs::parse(&node_def("s", &value)).unwrap();
        let expected = [Some(vec![Some(3), None, Some(0)]), None, Some(vec![])];
        assert_eq!(attrs.shapes("s").unwrap(), expected);
    }

    #[test]
    fn damaged_messages_are_errors() {
        assert!(Attrs::parse(&[0x2a, 0x7f, 1]).is_err());
    }
}
