// SPDX-License-Identifier: Apache-2.0
//! Tests of batches of items with a valid structure and false numbers.

use proptest::prelude::*;
use reverb_base::ErrorKind;
use reverb_data::proto_bytes::{put_bytes_field, put_varint, put_varint_field};
use reverb_data::trajectory::{Run, Slice};
use reverb_data::{Chunk, DType, Sampled, SequenceRange, Tensor, TensorData, TrajectoryBuilder};

use crate::sampler::batch::BatchBuilder;
use crate::sampler::batch_column::{BatchColumn, ColumnData};
use crate::sampler::batch_size::BatchBounds;
use crate::sampler::ragged::RaggedForm;
use crate::sampler::testing;

/// Size limit of batches in these tests, so that a false number cannot use up memory.
const MAX_BYTES: usize = 1 << 20;

const SIZES: [u64; 10] = [0, 1, 2, 3, 4, 1 << 20, 1 << 31, 1 << 40, 1 << 62, i64::MAX as u64];

/// A serialized tensor with any shape and content.
fn tensor(dtype: DType, shape: &[u64], content: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    let mut dims = Vec::new();
    for &size in shape {
        let mut dim = Vec::new();
        put_varint_field(&mut dim, 1, size);
        put_bytes_field(&mut dims, 2, &dim);
    }
    put_varint_field(&mut message, 1, dtype.number() as u64);
    put_bytes_field(&mut message, 2, &dims);
    put_bytes_field(&mut message, 4, content);
    message
}

/// A snappy block of zeros: a literal, or a zero and copies of it.
fn zeros(len: usize) -> Vec<u8> {
    let mut block = Vec::new();
    put_varint(&mut block, len as u64);
    if len == 0 {
        return block;
    }
    block.extend([0, 0]);
    let mut missing = len - 1;
    while missing > 0 {
        let now = missing.min(64);
        block.extend([(now as u8 - 1) << 2 | 2, 1, 0]);
        missing -= now;
    }
    block
}

fn chunk(key: u64, delta: bool, tensor: &[u8]) -> Chunk {
    let mut payload = Vec::new();
    put_bytes_field(&mut payload, 1, tensor);
    Chunk::from_slice(key, SequenceRange::default(), delta, &payload)
}

#[derive(Debug, Clone)]
struct Item {
    dtype: DType,
    shape: Vec<u64>,
    content: Vec<u8>,
    delta: bool,
    slices: Vec<(usize, usize, usize)>,
    squeeze: bool,
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let dtype = prop::sample::select(vec![DType::UInt8, DType::Int64, DType::String]);
    let size = prop::sample::select(SIZES.to_vec());
    let content = prop_oneof![
        (0usize..200).prop_map(zeros),
        prop::collection::vec(0u8..3, 0..20),
        Just(b"\x01\x01\x01abc".to_vec()),
    ];
    let number = prop::sample::select(vec![0_usize, 0, 1, 1, 2, 3, 1 << 20, i32::MAX as usize]);
    let times = prop::sample::select(vec![1_usize, 1, 1, 2, 65_536]);
    let slices = prop::collection::vec((number.clone(), number, times), 1..3);
    let shape = prop::collection::vec(size, 0..4);
    let parts = (dtype, shape, content, any::<bool>(), slices, any::<bool>());
    let item = parts.prop_map(|(dtype, shape, content, delta, slices, squeeze)| Item {
        dtype,
        shape,
        content,
        delta,
        slices,
        squeeze,
    });
    let honest = (prop::sample::select(vec![DType::UInt8, DType::String]), 1usize..4).prop_map(
        |(dtype, steps)| {
            let content = match dtype {
                DType::String => vec![0; steps * 2],
                _ => zeros(steps * 2),
            };
            let shape = vec![steps as u64, 2];
            let slices = vec![(0, steps, 1)];
            Item { dtype, shape, content, delta: false, slices, squeeze: false }
        },
    );
    prop::collection::vec(prop_oneof![item, honest], 1..5)
}

/// Steps without values, or none, so often that a loop over them would not end.
#[test]
fn repeats_of_nothing_take_no_time() {
    for dtype in [DType::UInt8, DType::String] {
        for (width, length) in [(0, 1), (2, 0)] {
            // Strings, or a block with a literal, whose layout is known.
            let content = match (dtype, width) {
                (DType::String, _) => vec![0; width],
                (_, 0) => zeros(0),
                _ => b"\x02\x04ab".to_vec(),
            };
            let mut slices = vec![(0, length, 65_536); 30_000];
            slices.push((0, 1, 1));
            let shape = vec![1, width as u64];
            let squeeze = false;
            let item = Item { dtype, shape, content, delta: false, slices, squeeze };
            let samples = [sampled(1, &item), sampled(2, &item), sampled(3, &item)];
            for form in [RaggedForm::Refuse, RaggedForm::Packed] {
                let bounds = BatchBounds { batch_size: 3, max_bytes: MAX_BYTES };
                // An error, or hardly a byte.
                if let Ok(columns) = BatchBuilder::new(bounds, form, None).finish(&samples) {
                    assert!(columns[0].shape.iter().product::<usize>() <= 6);
                }
            }
        }
    }
}

fn sampled(key: u64, item: &Item) -> Sampled {
    let chunk = chunk(key, item.delta, &tensor(item.dtype, &item.shape, &item.content));
    let mut builder = TrajectoryBuilder::new();
    for &(offset, length, times) in &item.slices {
        let slice = Slice { chunk: 0, tensor: 0, offset, length };
        builder.run(&chunk, Run { slice, times });
    }
    builder.end_column(item.squeeze);
    testing::sampled(key, builder.finish().unwrap())
}

fn batch(
    samples: &[Sampled],
    form: RaggedForm,
    max_bytes: usize,
) -> reverb_base::Result<Vec<BatchColumn>> {
    let bounds = BatchBounds { batch_size: samples.len(), max_bytes };
    let mut builder = BatchBuilder::new(bounds, form, None);
    builder.add(&samples[..samples.len() / 2]);
    builder.finish(samples)
}

const FORMS: [RaggedForm; 5] = [
    RaggedForm::Refuse,
    RaggedForm::Squeezed,
    RaggedForm::Packed,
    RaggedForm::Padded(1),
    RaggedForm::Padded(1 << 40),
];

proptest! {
    /// A batch is equal to its items or fails; memory never follows a false number.
    #[test]
    fn false_numbers_are_errors(items in items()) {
        let samples: Vec<Sampled> = (0..).zip(&items).map(|(key, it)| sampled(key, it)).collect();
        let decoded: Vec<_> = samples.iter().map(|it| it.trajectory.decode()).collect();
        for form in FORMS {
            let Ok(mut columns) = batch(&samples, form, MAX_BYTES) else { continue };
            // Values that cannot be read alone cannot be read in a batch.
            let column = columns.remove(0);
            let mut values: Vec<Tensor> = Vec::new();
            for item in &decoded {
                values.push(item.clone().unwrap().remove(0));
            }
            prop_assert!(values.iter().all(|it| it.dtype == column.dtype));
            match column.data {
                ColumnData::Memory(mut memory) => {
                    let len = Tensor::num_bytes(column.dtype, &column.shape).unwrap_or(0);
                    prop_assert!(len <= MAX_BYTES);
                    if form == RaggedForm::Packed {
                        let bytes = |it: Tensor| match it.data {
                            TensorData::Bytes(bytes) => bytes,
                            TensorData::Strings(_) => unreachable!(),
                        };
                        let whole: Vec<u8> = values.into_iter().flat_map(bytes).collect();
                        prop_assert_eq!(memory.bytes_mut(len), &whole[..]);
                    }
                }
                ColumnData::Strings(strings) => prop_assert!(strings.len() * 24 <= MAX_BYTES),
                ColumnData::Given => unreachable!(),
            }
        }
    }
}

#[test]
fn a_slice_without_steps_hides_no_large_step() {
    let good = Item {
        dtype: DType::UInt8,
        shape: vec![1, 4],
        content: zeros(4),
        delta: false,
        slices: vec![(0, 1, 1)],
        squeeze: false,
    };
    for dtype in [DType::UInt8, DType::String] {
        let shape = vec![1, 1 << 40];
        let bad =
            Item { dtype, shape, content: b"x".to_vec(), slices: vec![(0, 0, 1)], ..good.clone() };
        let samples = [sampled(1, &bad), sampled(2, &good)];
        for form in FORMS {
            let error = batch(&samples, form, usize::MAX).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss, "{form:?}: {error}");
        }
    }
}

#[test]
fn a_batch_above_its_limit_names_the_longest_item() {
    let item = |steps: usize| Item {
        dtype: DType::UInt8,
        shape: vec![steps as u64, 2],
        content: zeros(2 * steps),
        delta: false,
        slices: vec![(0, steps, 1)],
        squeeze: false,
    };
    let samples = [sampled(7, &item(3)), sampled(8, &item(500)), sampled(9, &item(2))];
    assert!(batch(&samples, RaggedForm::Padded(1), 3000).is_ok());
    let error = batch(&samples, RaggedForm::Padded(1), 2999).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    let text = "A batch of 3 items takes 3000 bytes, more than max_batch_bytes, 2999: the longest \
                item, 8, has 500 steps. Sample with ragged=\"packed\", which pads nothing, fewer \
                items, or with a larger max_batch_bytes.";
    assert_eq!(error.message(), text);
    assert!(batch(&samples, RaggedForm::Packed, 1010).is_ok());
    let error = batch(&samples, RaggedForm::Packed, 1009).unwrap_err();
    assert!(error.message().contains("takes 1010 bytes"), "{error}");
    let error = batch(&samples[..1], RaggedForm::Refuse, 5).unwrap_err();
    assert!(error.message().contains("the longest item, 7, has 3 steps"), "{error}");
}

#[test]
fn texts_count_with_their_bytes() {
    let mut content = Vec::new();
    put_varint(&mut content, 1000);
    content.extend([7; 1000]);
    let text = Item {
        dtype: DType::String,
        shape: vec![1],
        content,
        delta: false,
        slices: vec![(0, 1, 1)],
        squeeze: false,
    };
    let samples = [sampled(1, &text), sampled(2, &text)];
    for form in [RaggedForm::Refuse, RaggedForm::Packed, RaggedForm::Padded(1)] {
        assert!(batch(&samples, form, 2 * (24 + 1000)).is_ok(), "{form:?}");
        let error = batch(&samples, form, 2 * (24 + 1000) - 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{form:?}");
    }
}
