// SPDX-License-Identifier: Apache-2.0
//! Encoding of stored and sent tensors: a `TensorProto` whose content is one raw snappy block.
//!
//! The format has no "uncompressed" marker, but a snappy block may consist of a single literal: the
//! raw bytes after a header of at most ten bytes. We write such a block where compression does not
//! pay, or is not wanted. Every reader of the format understands it. Our reader recognises it and
//! slices rows out of it without decompressing.

mod long_copies;
mod snappy;
mod view;

use std::cell::RefCell;

use crate::dtype::DType;
use crate::proto_bytes::{put_bytes_field, put_tag, put_varint, put_varint_field, varint_len};
use crate::tensor::Tensor;
use crate::{delta, literal};

pub use view::TensorView;
pub(crate) use view::{check_rows_of, no_memory, num_rows_of, tensors_of, zeros};

/// Smaller contents are not compressed: the header would cost what compression saves.
const MIN_COMPRESSIBLE_BYTES: usize = 128;
/// Above this size, a few samples of `TRIAL_BYTES` are compressed first, to estimate whether
/// compressing everything pays.
const TRIAL_THRESHOLD_BYTES: usize = 64 * 1024;
const TRIAL_BYTES: usize = 4 * 1024;
/// Compression pays if it saves at least one byte in this many.
const MIN_SAVING_DIVISOR: usize = 8;

/// Compression of the tensors that a writer stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// Compresses a tensor if that saves at least an eighth of it.
    #[default]
    Auto,
    /// Stores every tensor as it is.
    None,
}

impl Compression {
    /// Returns true if a content of this size is never compressed.
    pub fn leaves_raw(self, num_bytes: usize) -> bool {
        self == Self::None || num_bytes < MIN_COMPRESSIBLE_BYTES
    }
}

/// Encoding of the tensors of a chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoding {
    /// True if integers are stored as differences between neighbours.
    pub delta: bool,
    /// Compression of the values, or of their differences.
    pub compression: Compression,
}

struct Scratch {
    encoder: snap::raw::Encoder,
    compressed: Vec<u8>,
    decoded: Vec<u8>,
    block: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        encoder: snap::raw::Encoder::new(),
        compressed: Vec::new(),
        decoded: Vec::new(),
        block: Vec::new(),
    });
}

/// Bytes of scratch memory that a thread keeps between calls.
const MAX_KEPT_SCRATCH_BYTES: usize = 4 * 1024 * 1024;

/// Appends a tensor of fixed-size elements as one `tensors` field of a `ChunkData.Data` message.
///
/// `bytes` are the stacked rows; with `delta` they are delta encoded first, if the rule of the
/// format applies to them.
pub fn put_tensor(
    out: &mut Vec<u8>,
    dtype: DType,
    shape: &[usize],
    bytes: &[u8],
    encoding: Encoding,
) {
    debug_assert_eq!(Tensor::num_bytes(dtype, shape), Some(bytes.len()));
    if encoding.delta
        && let Some(encoded) = delta::encode(dtype, shape, bytes)
    {
        put_tensor(out, dtype, shape, &encoded, Encoding { delta: false, ..encoding });
        return;
    }
    if !put_compressed_tensor(out, dtype, shape, bytes, encoding.compression) {
        put_raw_tensor_head(out, dtype, shape, bytes.len());
        out.extend_from_slice(bytes);
    }
}

/// Appends a tensor as `put_tensor` does if it is to be compressed and that pays; returns true
/// if so.
pub fn put_compressed_tensor(
    out: &mut Vec<u8>,
    dtype: DType,
    shape: &[usize],
    bytes: &[u8],
    compression: Compression,
) -> bool {
    if compression.leaves_raw(bytes.len()) {
        return false;
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let compressed = compress_if_it_pays(scratch, bytes);
        if let Some(compressed) = compressed {
            put_tensor_header(out, dtype, shape, compressed.len());
            out.extend_from_slice(compressed);
        }
        let pays = compressed.is_some();
        trim(&mut scratch.compressed);
        pays
    })
}

/// Appends the bytes before the values of a tensor that is not compressed.
pub fn put_raw_tensor_head(out: &mut Vec<u8>, dtype: DType, shape: &[usize], num_bytes: usize) {
    put_tensor_header(out, dtype, shape, literal::header_len(num_bytes) + num_bytes);
    literal::put_header(out, num_bytes);
}

/// Appends a tensor of strings as one `tensors` field of a `ChunkData.Data` message.
pub fn put_string_tensor<S: AsRef<[u8]>>(out: &mut Vec<u8>, shape: &[usize], strings: &[S]) {
    if strings.is_empty() {
        let mut tensor = Vec::new();
        put_dtype_and_shape(&mut tensor, DType::String, shape);
        put_bytes_field(out, 1, &tensor);
        return;
    }
    let content_len: usize =
        strings.iter().map(|s| varint_len(s.as_ref().len() as u64) + s.as_ref().len()).sum();
    put_tensor_header(out, DType::String, shape, content_len);
    for string in strings {
        put_varint(out, string.as_ref().len() as u64);
    }
    for string in strings {
        out.extend_from_slice(string.as_ref());
    }
}

fn put_tensor_header(out: &mut Vec<u8>, dtype: DType, shape: &[usize], content_len: usize) {
    let mut head = Vec::with_capacity(64);
    put_dtype_and_shape(&mut head, dtype, shape);
    put_tag(&mut head, 4, 2);
    put_varint(&mut head, content_len as u64);
    put_tag(out, 1, 2);
    put_varint(out, (head.len() + content_len) as u64);
    out.reserve(head.len() + content_len);
    out.extend_from_slice(&head);
}

fn put_dtype_and_shape(out: &mut Vec<u8>, dtype: DType, shape: &[usize]) {
    put_varint_field(out, 1, dtype.number() as u64);
    put_tag(out, 2, 2);
    put_varint(out, shape.iter().map(|&dim| 2 + dim_len(dim) as u64).sum());
    put_dims(out, shape);
}

/// Appends dimensions as fields of a tensor's shape.
pub(crate) fn put_dims(out: &mut Vec<u8>, dims: &[usize]) {
    for &dim in dims {
        put_tag(out, 2, 2);
        put_varint(out, dim_len(dim) as u64);
        put_varint_field(out, 1, dim as u64);
    }
}

fn dim_len(dim: usize) -> usize {
    if dim == 0 { 0 } else { 1 + varint_len(dim as u64) }
}

fn compress_if_it_pays<'s>(scratch: &'s mut Scratch, bytes: &[u8]) -> Option<&'s [u8]> {
    // Snappy lengths are u32; a larger tensor is stored uncompressed.
    if bytes.len() >= u32::MAX as usize / 2 {
        return None;
    }
    let limit = |len: usize| len - len / MIN_SAVING_DIVISOR;
    let Scratch { encoder, compressed, .. } = scratch;
    let mut compress = |bytes: &[u8], compressed: &mut Vec<u8>| {
        let room = snap::raw::max_compress_len(bytes.len());
        if compressed.len() < room {
            compressed.resize(room, 0);
        }
        encoder.compress(bytes, compressed).ok()
    };
    if bytes.len() > TRIAL_THRESHOLD_BYTES {
        let starts = [0, bytes.len() / 2, bytes.len() - TRIAL_BYTES];
        let mut total = 0;
        for start in starts {
            total += compress(&bytes[start..start + TRIAL_BYTES], compressed)?;
        }
        if total > limit(TRIAL_BYTES * starts.len()) {
            return None;
        }
    }
    let len = compress(bytes, compressed)?;
    (len <= limit(bytes.len())).then(|| &compressed[..len])
}

fn trim(buffer: &mut Vec<u8>) {
    if buffer.len() > MAX_KEPT_SCRATCH_BYTES {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto_bytes::{Field, Reader};
    use crate::tensor::TensorData;

    const DELTA: Encoding = Encoding { delta: true, compression: Compression::Auto };

    fn view(message: &[u8], delta: bool) -> TensorView<'_> {
        let (number, field) = Reader::new(message).field().unwrap().unwrap();
        assert_eq!(number, 1);
        let Field::Bytes(tensor) = field else { panic!("not bytes") };
        TensorView::parse(tensor, delta).unwrap()
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        (0..digits.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn a_small_tensor_has_the_same_bytes_as_in_dm_reverb() {
        let mut out = Vec::new();
        let bytes: Vec<u8> = [5i32, 7, 4].iter().flat_map(|v| v.to_le_bytes()).collect();
        put_tensor(&mut out, DType::Int32, &[3], &bytes, Encoding::default());
        assert_eq!(out, hex("0a18 0803 1204 1202 0803 220e 0c2c 050000000700000004000000"));
    }

    #[test]
    fn delta_applies_to_rank_two_and_up_only() {
        let bytes: Vec<u8> = [5i32, 7, 4].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = Vec::new();
        put_tensor(&mut out, DType::Int32, &[3, 1], &bytes, DELTA);
        assert_eq!(
            out,
            hex("0a1c 0803 1208 1202 0803 1202 0801 220e 0c2c 05000000 02000000 fdffffff")
        );
        assert_eq!(view(&out, true).rows(0, 3).unwrap().data, TensorData::Bytes(bytes.clone()));
        let mut plain = Vec::new();
        put_tensor(&mut plain, DType::Int32, &[3], &bytes, DELTA);
        assert_eq!(view(&plain, true).rows(0, 3).unwrap().data, TensorData::Bytes(bytes));
    }

    #[test]
    fn strings_are_lengths_then_bytes() {
        let mut out = Vec::new();
        put_string_tensor(&mut out, &[3], &[&b"x"[..], b"yy", b""]);
        assert!(out.ends_with(&hex("01 02 00 78 79 79")));
        let rows = view(&out, false).string_rows(1, 2).unwrap();
        assert_eq!(rows, vec![b"yy".to_vec(), Vec::new()]);
    }

    #[test]
    fn false_lengths_and_corrupt_blocks_are_data_loss_without_allocation() {
        let huge = hex("0803 120a 1208 08ffffffffff7f 2202 0c2c");
        assert!(TensorView::parse(&huge, false).and_then(|v| v.rows(0, 1 << 40)).is_err());
        let zeros = vec![0u8; 4096];
        let mut out = Vec::new();
        put_tensor(&mut out, DType::UInt8, &[4096], &zeros, Encoding::default());
        assert!(out.len() < 400, "zeros compress");
        for cut in 0..out.len() {
            let mut broken = out.clone();
            broken[cut] ^= 0x55;
            // The result is a value or an error, never a panic.
            if let Ok(Some((1, Field::Bytes(tensor)))) = Reader::new(&broken).field() {
                let _ = TensorView::parse(tensor, false).and_then(|v| v.rows(0, 4096));
            }
        }
    }

    proptest! {
        #[test]
        fn any_rows_come_back(
            values in prop::collection::vec(0u16..40, 0..400),
            width in 1usize..5,
            delta in any::<bool>(),
            cut in any::<(u16, u16)>(),
        ) {
            let rows = values.len() / width;
            let bytes: Vec<u8> = values[..rows * width].iter().flat_map(|v| v.to_le_bytes()).collect();
            let mut out = Vec::new();
            put_tensor(&mut out, DType::UInt16, &[rows, width], &bytes, Encoding { delta, ..Encoding::default() });
            let offset = usize::from(cut.0) % (rows + 1);
            let length = usize::from(cut.1) % (rows - offset + 1);
            let tensor = view(&out, delta).rows(offset, length).unwrap();
            prop_assert_eq!(tensor.data, TensorData::Bytes(bytes[offset * width * 2..(offset + length) * width * 2].to_vec()));
        }
    }
}
