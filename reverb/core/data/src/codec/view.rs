// SPDX-License-Identifier: Apache-2.0
//! Encoded tensors for reading: rows in place, or decompressed.

use super::{SCRATCH, Scratch, snappy, trim};
use crate::dtype::DType;
use crate::proto_bytes::{Field, Reader};
use crate::tensor::{Shape, Tensor, TensorData};
use crate::tensor_head::TensorHead;
use crate::{delta, literal};
use reverb_base::error::{Error, Result};

/// A snappy element of 2 bytes yields at most 64, so larger claimed lengths are false.
const MAX_EXPANSION: usize = 32;

/// A tensor inside a chunk. Its header is parsed, its content is not decoded yet.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the dimensions; the first counts the steps of the chunk.
    pub shape: Shape,
    content: Content<'a>,
    delta: bool,
}

#[derive(Debug, Clone)]
enum Content<'a> {
    Packed(&'a [u8]),
    /// Elements, not encoded.
    Raw(&'a [u8]),
    /// The message of a tensor with this many fields `string_val`, one for each string. They are
    /// not listed: an empty one takes two bytes of a message, and sixteen in a list.
    StringValues(&'a [u8], usize),
}

/// Bytes of a string in memory, in addition to its content.
const STRING_BYTES: usize = size_of::<Vec<u8>>();

impl Content<'_> {
    /// Upper bound on the number of strings.
    fn max_strings(&self) -> usize {
        match self {
            // Every string takes at least the byte of its length.
            Self::Packed(stored) | Self::Raw(stored) => stored.len(),
            Self::StringValues(_, count) => *count,
        }
    }
}

/// The tensors of a payload in order, with their headers parsed. `delta` is the flag of its chunk.
pub(crate) fn tensors_of(
    payload: &[u8],
    delta: bool,
) -> impl Iterator<Item = Result<TensorView<'_>>> {
    let mut reader = Reader::new(payload);
    std::iter::from_fn(move || {
        loop {
            match reader.field() {
                Ok(None) => return None,
                Ok(Some((1, Field::Bytes(tensor)))) => {
                    return Some(TensorView::parse(tensor, delta));
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    reader = Reader::new(&[]);
                    return Some(Err(error));
                }
            }
        }
    })
}

const STRING_VALUE: u32 = 8;

fn damaged(what: &str) -> Error {
    Error::data_loss(format!("The tensor in the chunk is damaged: {what}."))
}

fn corrupt(_: snappy::Corrupt) -> Error {
    damaged("its snappy block is corrupt")
}

pub(crate) fn no_memory(num_bytes: usize) -> Error {
    Error::resource_exhausted(format!("There is no memory for {num_bytes} bytes of an item."))
}

pub(crate) fn zeros(num_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(num_bytes).map_err(|_| no_memory(num_bytes))?;
    bytes.resize(num_bytes, 0);
    Ok(bytes)
}

impl<'a> TensorView<'a> {
    /// Reads the header of a `TensorProto`. `delta` is the flag of the chunk around it.
    pub fn parse(message: &'a [u8], delta: bool) -> Result<Self> {
        let mut number = 0;
        let mut shape = Shape::new();
        let mut packed: &[u8] = &[];
        let mut num_values = 0;
        let mut reader = Reader::new(message);
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Varint(value)) => number = value as i32,
                (2, Field::Bytes(bytes)) => shape = parse_shape(bytes)?,
                (4, Field::Bytes(bytes)) => packed = bytes,
                (STRING_VALUE, Field::Bytes(_)) => num_values += 1,
                _ => {}
            }
        }
        let dtype = DType::from_number(number)?;
        let content = match num_values {
            0 => Content::Packed(packed),
            _ => Content::StringValues(message, num_values),
        };
        Ok(Self { dtype, shape, content, delta })
    }

    pub(crate) fn raw(dtype: DType, shape: Shape, elements: &'a [u8]) -> Self {
        Self { dtype, shape, content: Content::Raw(elements), delta: false }
    }

    /// Number of steps. A tensor in a chunk has at least one dimension.
    pub fn num_rows(&self) -> Result<usize> {
        num_rows_of(&self.shape)
    }

    /// Shape of one step.
    pub fn row_shape(&self) -> &[usize] {
        self.shape.get(1..).unwrap_or_default()
    }

    /// Bytes of one step in memory; 0 for strings.
    pub fn row_bytes(&self) -> Result<usize> {
        Tensor::num_bytes(self.dtype, self.row_shape())
            .ok_or_else(|| damaged("its shape overflows"))
    }

    /// Checks that rows `[offset, offset + length)` exist.
    pub fn check_rows(&self, offset: usize, length: usize) -> Result<()> {
        check_rows_of(self.num_rows()?, offset, length)
    }

    /// Its head, without the content.
    #[inline]
    pub fn into_head(self) -> TensorHead<'a> {
        TensorHead::of_shape(self.dtype, self.shape)
    }

    /// Returns true if some rows can be copied without decoding the others.
    pub fn has_rows_in_place(&self) -> bool {
        self.stored_as_is().is_some()
    }

    /// Elements of all rows, if they have a fixed size and are stored without encoding.
    pub fn values_in_place(&self) -> Option<&'a [u8]> {
        if self.dtype == DType::String { None } else { self.stored_as_is() }
    }

    fn stored_as_is(&self) -> Option<&'a [u8]> {
        match self.content {
            Content::Packed(block) if self.delta_width().is_none() => literal::body(block),
            Content::Raw(elements) => Some(elements),
            _ => None,
        }
    }

    /// Copies rows `[offset, offset + length)` of fixed-size elements to `out`, which has exactly
    /// their length.
    pub fn copy_rows(&self, offset: usize, length: usize, out: &mut [u8]) -> Result<()> {
        self.check_rows(offset, length)?;
        let row_bytes = self.row_bytes()?;
        let total = row_bytes
            .checked_mul(self.num_rows()?)
            .ok_or_else(|| damaged("its shape overflows"))?;
        if self.dtype == DType::String || length * row_bytes != out.len() {
            return Err(Error::internal("copy_rows was given a buffer of the wrong size"));
        }
        let wanted = offset * row_bytes..offset * row_bytes + out.len();
        let block = match self.content {
            Content::Packed(block) => block,
            Content::Raw(elements) => {
                out.copy_from_slice(&elements[wanted]);
                return Ok(());
            }
            Content::StringValues(..) => {
                return Err(damaged("its values are not in tensor_content"));
            }
        };
        let delta = self.delta_width().is_some();
        if !delta && let Some(body) = literal::body(block) {
            if body.len() != total {
                return Err(damaged("its content is shorter or longer than its shape says"));
            }
            out.copy_from_slice(&body[wanted]);
            return Ok(());
        }
        let claimed = snap::raw::decompress_len(block).map_err(|_| damaged("no snappy block"))?;
        if claimed != total || total > block.len().saturating_mul(MAX_EXPANSION) {
            return Err(damaged("its content is shorter or longer than its shape says"));
        }
        if !delta && out.len() == total {
            return snappy::decompress(block, out).map_err(corrupt);
        }
        SCRATCH.with_borrow_mut(|Scratch { decoded, block: copy, .. }| {
            let room = snappy::room_for_first(wanted.end, total);
            if decoded.len() < room {
                let missing = room - decoded.len();
                decoded.try_reserve_exact(missing).map_err(|_| no_memory(room))?;
                decoded.resize(room, 0);
            }
            snappy::decompress_first(block, wanted.end, total, &mut decoded[..room], copy)
                .map_err(corrupt)?;
            trim(copy);
            if delta {
                let mut shape = self.shape.clone();
                shape[0] = offset + length;
                delta::decode(self.dtype, &shape, &mut decoded[..wanted.end]);
            }
            out.copy_from_slice(&decoded[wanted]);
            trim(decoded);
            Ok(())
        })
    }

    /// Rows `[offset, offset + length)` of a tensor of strings, flat.
    pub fn string_rows(&self, offset: usize, length: usize) -> Result<Vec<Vec<u8>>> {
        let mut rows = Vec::new();
        self.put_string_rows(offset, length, &mut rows, &mut { usize::MAX })?;
        Ok(rows)
    }

    /// Appends rows `[offset, offset + length)` of a tensor of strings, flat. They may take `room`
    /// bytes, from which their bytes are subtracted.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if `room` or the memory is too small; `DataLoss` if the tensor is
    /// damaged.
    pub fn put_string_rows(
        &self,
        offset: usize,
        length: usize,
        out: &mut Vec<Vec<u8>>,
        room: &mut usize,
    ) -> Result<()> {
        self.check_rows(offset, length)?;
        let overflows = || damaged("its shape overflows");
        let per_row = Tensor::num_elements(self.row_shape()).ok_or_else(overflows)?;
        let count = per_row.checked_mul(self.num_rows()?).ok_or_else(overflows)?;
        if count != self.num_strings(count)? {
            return Err(damaged("it holds more or fewer strings than its shape says"));
        }
        let wanted = offset * per_row..(offset + length) * per_row;
        out.try_reserve(wanted.len()).map_err(|_| no_memory(wanted.len() * STRING_BYTES))?;
        self.for_each_string(count, |at, string| {
            if !wanted.contains(&at) {
                return Ok(());
            }
            let num_bytes = STRING_BYTES + string.len();
            *room = room.checked_sub(num_bytes).ok_or_else(|| no_memory(num_bytes))?;
            let mut copy = Vec::new();
            copy.try_reserve_exact(string.len()).map_err(|_| no_memory(num_bytes))?;
            copy.extend_from_slice(string);
            out.push(copy);
            Ok(())
        })
    }

    /// Number of strings, checked to be `count`.
    fn num_strings(&self, count: usize) -> Result<usize> {
        match self.content {
            Content::StringValues(_, num_values) => Ok(num_values),
            // Every string takes at least the byte of its length.
            Content::Packed(packed) if count <= packed.len() => Ok(count),
            _ => Err(damaged("it holds fewer strings than its shape says")),
        }
    }

    /// Calls `each` with the index and the bytes of each of `count` strings.
    fn for_each_string(
        &self,
        count: usize,
        mut each: impl FnMut(usize, &'a [u8]) -> Result<()>,
    ) -> Result<()> {
        let packed = match self.content {
            Content::StringValues(message, _) => {
                let mut reader = Reader::new(message);
                let mut at = 0;
                while let Some((field, value)) = reader.field()? {
                    if let (STRING_VALUE, Field::Bytes(string)) = (field, value) {
                        each(at, string)?;
                        at += 1;
                    }
                }
                return Ok(());
            }
            Content::Packed(packed) => packed,
            Content::Raw(_) => unreachable!("strings are not raw"),
        };
        // All lengths come first, then all strings.
        let ends_early = |_| damaged("its strings end too early");
        let mut lengths = Reader::new(packed);
        let mut strings = lengths.clone();
        for _ in 0..count {
            strings.varint().map_err(ends_early)?;
        }
        for at in 0..count {
            let length = lengths.varint().map_err(ends_early)?;
            each(at, strings.take(length as usize).map_err(ends_early)?)?;
        }
        if strings.is_empty() { Ok(()) } else { Err(damaged("bytes are left behind its strings")) }
    }

    /// Rows `[offset, offset + length)` as a tensor of their own.
    pub fn rows(&self, offset: usize, length: usize) -> Result<Tensor> {
        self.check_rows(offset, length)?;
        let mut shape = self.shape.clone();
        shape[0] = length;
        let data = if self.dtype == DType::String {
            TensorData::Strings(self.string_rows(offset, length)?)
        } else {
            let mut bytes = zeros(self.plausible_bytes(length)?)?;
            self.copy_rows(offset, length, &mut bytes)?;
            TensorData::Bytes(bytes)
        };
        Ok(Tensor { dtype: self.dtype, shape, data })
    }

    /// Bytes of `length` rows; 0 for strings. Fails if the stored content is too short for them.
    /// Zero rows count as one, because the size of their steps cannot be checked.
    pub fn plausible_bytes(&self, length: usize) -> Result<usize> {
        let least = length.max(1);
        let (row, most) = match (self.dtype, &self.content) {
            (DType::String, content) => {
                let row = Tensor::num_elements(self.row_shape());
                (row, content.max_strings())
            }
            (_, Content::Packed(stored) | Content::Raw(stored)) => {
                (Some(self.row_bytes()?), stored.len().saturating_mul(MAX_EXPANSION))
            }
            (_, Content::StringValues(..)) => (Some(self.row_bytes()?), 0),
        };
        let is_plausible =
            row.and_then(|row| row.checked_mul(least)).is_some_and(|bytes| bytes <= most);
        if is_plausible {
            return Ok(self.row_bytes()? * length);
        }
        Err(damaged("its content is shorter or longer than its shape says"))
    }

    /// Bytes of the whole tensor in memory as dm-reverb counts them: strings take 24 bytes and
    /// their length.
    pub fn uncompressed_bytes(&self) -> usize {
        if self.dtype != DType::String {
            return Tensor::num_bytes(self.dtype, &self.shape).unwrap_or(0);
        }
        let mut num_bytes = 0;
        let count = Tensor::num_elements(&self.shape).unwrap_or(usize::MAX);
        let counted = self.num_strings(count).and_then(|count| {
            self.for_each_string(count, |_, string| {
                num_bytes += STRING_BYTES + string.len();
                Ok(())
            })
        });
        if counted.is_ok() { num_bytes } else { 0 }
    }

    fn delta_width(&self) -> Option<usize> {
        if self.delta && self.shape.len() >= 2 { self.dtype.delta_width() } else { None }
    }
}

/// Number of steps of a tensor in a chunk, which has at least one dimension.
pub(crate) fn num_rows_of(shape: &[usize]) -> Result<usize> {
    shape.first().copied().ok_or_else(|| damaged("it has no dimensions, not even steps"))
}

/// Checks that rows `[offset, offset + length)` exist.
pub(crate) fn check_rows_of(rows: usize, offset: usize, length: usize) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= rows => Ok(()),
        _ => Err(Error::invalid_argument(format!(
            "Cannot slice steps [{offset}, {offset} + {length}) from a chunk of {rows} steps."
        ))),
    }
}

fn parse_shape(message: &[u8]) -> Result<Shape> {
    let mut shape = Shape::new();
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (2, Field::Bytes(dim)) => shape.push(parse_dim(dim)?),
            (3, Field::Varint(unknown)) if unknown != 0 => {
                return Err(damaged("its rank is unknown"));
            }
            _ => {}
        }
    }
    Ok(shape)
}

fn parse_dim(message: &[u8]) -> Result<usize> {
    let mut size = 0;
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        if let (1, Field::Varint(value)) = (field, value) {
            size = value;
        }
    }
    i64::try_from(size)
        .ok()
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(|| damaged("a dimension is negative"))
}
