// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use reverb_data::codec::{Compression, Encoding};
use reverb_data::{DType, Shape};

use super::columns::LARGE_CELL_BYTES;
use super::*;
use crate::writer::capture::cell::CellSpec;

const AUTO: Encoding = Encoding { delta: false, compression: Compression::Auto };

fn columns(widths: &[usize], encoding: Encoding) -> Arc<BlockColumns> {
    let spec = |&width: &usize| {
        let shape = Shape::from_slice(&[width]);
        (Arc::new(CellSpec { dtype: DType::UInt8, shape }), Arc::default())
    };
    Arc::new(BlockColumns::new(widths.iter().map(spec), encoding))
}

/// The value of a column at a step. All values differ.
fn value(column: usize, step: i32, width: usize) -> Vec<u8> {
    let mut state = (column as u32 + 1) * 7919 + step as u32;
    // Values of even columns do not compress.
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..width)
        .map(|i| if column.is_multiple_of(2) { noise() } else { (i + step as usize) as u8 })
        .collect()
}

/// A block with these steps; `has` selects the columns with a value in each step.
fn block(
    columns: &Arc<BlockColumns>,
    widths: &[usize],
    first: usize,
    steps: &[i32],
    has: impl Fn(usize, i32) -> bool,
) -> Arc<Block> {
    let block = Block::new(columns, 5, false);
    for &step in steps {
        let chosen: Vec<usize> = (0..widths.len()).filter(|&i| has(i, step)).collect();
        let rows: Vec<Vec<u8>> =
            chosen.iter().map(|&i| value(first + i, step, widths[i])).collect();
        let shapes: Vec<[usize; 1]> = chosen.iter().map(|&i| [widths[i]]).collect();
        let mut values: Vec<CellValue<'_>> = rows
            .iter()
            .zip(&shapes)
            .map(|(bytes, shape)| CellValue::Bytes { dtype: DType::UInt8, shape, bytes })
            .collect();
        if chosen.len() == widths.len() && step % 2 == 0 {
            let (appended, index) = block.append_row(step, values.iter(), usize::MAX);
            if appended != Appended::Nothing {
                assert_eq!(index as usize, block.open_len(0) - 1);
                continue;
            }
        }
        let mut cells: Vec<(usize, &mut CellValue<'_>)> =
            chosen.iter().copied().zip(&mut values).collect();
        let appended = block.append(step, &mut cells, usize::MAX, |_, _| ());
        assert_eq!(appended, Appended::AndOpen);
    }
    block
}

#[test]
fn steps_with_a_gap_are_sparse() {
    for (steps, is_sparse) in [(&[4][..], false), (&[4, 5, 6], false), (&[4, 6, 7], true)] {
        let block = block(&columns(&[3], AUTO), &[3], 0, steps, |_, _| true);
        let (chunk, _) = block.closed(&mut || 1).only_chunk().unwrap();
        let range = chunk.range();
        let ends = (steps[0], steps[steps.len() - 1]);
        assert_eq!((range.start, range.end, range.sparse), (ends.0, ends.1, is_sparse));
    }
}

proptest! {
    /// A block's chunks do not depend on earlier blocks, and its cells are unchanged by encoding.
    #[test]
    fn a_block_is_encoded_as_if_it_were_alone(
        widths in prop_oneof![
            prop::collection::vec(prop_oneof![0usize..40, 100usize..140], 1..5),
            // A column of large cells gets separate blocks.
            prop::collection::vec(LARGE_CELL_BYTES - 2..LARGE_CELL_BYTES + 70_000, 1..2),
        ],
        first_column in 0usize..2,
        lengths in prop::collection::vec(1usize..4, 1..6),
        referenced in prop::collection::vec(any::<bool>(), 5),
        holes in prop::collection::vec(any::<bool>(), 15),
        sparse in 1i32..3,
        delta in any::<bool>(),
        compression in prop::sample::select(vec![Compression::Auto, Compression::None]),
    ) {
        let encoding = Encoding { delta, compression };
        let shared = columns(&widths, encoding);
        let marked = |columns: &Arc<BlockColumns>| {
            let marked = columns.as_slice().iter().zip(&referenced).filter(|(_, it)| **it);
            marked.for_each(|(column, _)| column.mark_referenced());
        };
        marked(&shared);
        let mut first = 0;
        for (i, &length) in lengths.iter().enumerate() {
            let steps: Vec<i32> = (0..length as i32).map(|step| first + step * sparse).collect();
            first = steps[length - 1] + 1;
            // Some blocks lack values in some columns at their last step.
            let has = |column: usize, step: i32| {
                step != steps[length - 1] || !holes[(i * 5 + column) % 15] || i % 3 != 2
            };
            let in_row = block(&shared, &widths, first_column, &steps, has);
            let own = columns(&widths, encoding);
            marked(&own);
            let alone = block(&own, &widths, first_column, &steps, has);
            let mut keys = 1u64..;
            let mut own_keys = 1u64..;
            for (position, &width) in widths.iter().enumerate() {
                let present: Vec<i32> =
                    steps.iter().copied().filter(|&step| has(position, step)).collect();
                let check = |block: &Block| {
                    for (index, &step) in present.iter().enumerate() {
                        let cell = block.cell(position, index).unwrap();
                        assert_eq!(cell, TensorData::Bytes(value(first_column + position, step, width)));
                    }
                };
                check(&in_row);
                if present.is_empty() {
                    continue;
                }
                let (chunk, tensor) = in_row.closed(&mut || keys.next().unwrap()).chunk_and_tensor(position);
                let (expected, at) = alone.closed(&mut || own_keys.next().unwrap()).chunk_and_tensor(position);
                prop_assert_eq!(tensor, at);
                prop_assert_eq!(chunk.key(), expected.key());
                prop_assert_eq!(chunk.payload(), expected.payload());
                prop_assert_eq!(chunk.range(), expected.range());
                prop_assert_eq!(chunk.is_delta_encoded(), expected.is_delta_encoded());
                check(&in_row);
                if widths.len() == 1 {
                    let cells: Vec<u8> =
                        present.iter().flat_map(|&step| value(first_column, step, width)).collect();
                    let mut plain = Vec::new();
                    put_tensor(&mut plain, DType::UInt8, &[present.len(), width], &cells, encoding);
                    prop_assert_eq!(&chunk.payload()[..], &plain[..]);
                }
            }
        }
    }
}

proptest! {
    /// Each row of a step has the chunks that a block of its own would have.
    #[test]
    fn a_row_of_a_step_is_encoded_as_if_it_were_alone(
        widths in prop::collection::vec(prop_oneof![1usize..40, 100usize..140], 1..5),
        num_rows in 1usize..5,
        num_steps in 1i32..4,
        referenced in prop::collection::vec(any::<bool>(), 5),
        delta in any::<bool>(),
        compression in prop::sample::select(vec![Compression::Auto, Compression::None]),
    ) {
        let encoding = Encoding { delta, compression };
        let shared = columns(&widths, encoding);
        let own = columns(&widths, encoding);
        for columns in [&shared, &own] {
            let marked = columns.as_slice().iter().zip(&referenced).filter(|(_, it)| **it);
            marked.for_each(|(column, _)| column.mark_referenced());
        }
        // The first step teaches the template.
        for at in 0..num_steps {
            let step_of = |row: usize| at + 10 * row as i32;
            let values: Vec<(Vec<u8>, [usize; 2])> = widths
                .iter()
                .enumerate()
                .map(|(i, &width)| {
                    let rows = (0..num_rows).flat_map(|row| value(i, step_of(row), width));
                    (rows.collect(), [num_rows, width])
                })
                .collect();
            let cells: Vec<CellValue<'_>> = values
                .iter()
                .map(|(bytes, shape)| CellValue::Bytes { dtype: DType::UInt8, shape, bytes })
                .collect();
            let origins = (0..num_rows).map(|row| (5, step_of(row)));
            let step = StepBlock::new(&shared, cells.iter(), origins).unwrap();
            let mut keys = 1u64..;
            let mut own_keys = 1u64..;
            for row in 0..num_rows {
                let alone = block(&own, &widths, 0, &[step_of(row)], |_, _| true);
                let row = BlockRef::Row(Arc::clone(&step), row as u32);
                let alone = BlockRef::Own(alone);
                prop_assert!(row.is_ready() && !row.is_same(&alone) && row.is_same(&row.clone()));
                let closed = row.closed(&mut || keys.next().unwrap());
                let expected = alone.closed(&mut || own_keys.next().unwrap());
                for position in 0..widths.len() {
                    let (chunk, tensor) = closed.chunk_and_tensor(position);
                    let (other, at) = expected.chunk_and_tensor(position);
                    prop_assert_eq!(tensor, at);
                    prop_assert_eq!(chunk.key(), other.key());
                    prop_assert_eq!(chunk.payload(), other.payload());
                    prop_assert_eq!(chunk.range(), other.range());
                    prop_assert_eq!(chunk.is_delta_encoded(), other.is_delta_encoded());
                    prop_assert!(row.holds(chunk) && !alone.holds(chunk));
                    prop_assert_eq!(row.cell(position, 0).unwrap(), alone.cell(position, 0).unwrap());
                    let counted = [row.mark_queued(position, 1), row.mark_queued(position, 1)];
                    prop_assert_eq!(counted, [1, 0]);
                }
            }
            let weak = BlockRef::Row(Arc::clone(&step), 0).downgrade();
            prop_assert!(weak.is_alive() && weak.is_of(&BlockRef::Row(Arc::clone(&step), 0)));
            prop_assert!(!weak.is_of(&BlockRef::Row(Arc::clone(&step), 1)));
            drop(step);
            prop_assert!(!weak.is_alive());
        }
    }
}

#[test]
fn a_step_of_strings_or_many_columns_has_no_block() {
    let spec = |dtype| (Arc::new(CellSpec { dtype, shape: Shape::new() }), Arc::default());
    let strings = Arc::new(BlockColumns::new([spec(DType::String)], AUTO));
    assert!(StepBlock::new(&strings, std::iter::empty(), std::iter::empty()).is_none());
    for (num_columns, is_made) in [(32, true), (33, false)] {
        let columns =
            Arc::new(BlockColumns::new((0..num_columns).map(|_| spec(DType::Int8)), AUTO));
        let cell = CellValue::Bytes { dtype: DType::Int8, shape: &[1], bytes: &[7] };
        let cells = std::iter::repeat_n(&cell, num_columns);
        let step = StepBlock::new(&columns, cells, std::iter::once((1, 1)));
        assert_eq!(step.is_some(), is_made);
    }
}

#[test]
fn blocks_of_a_few_lengths_have_templates() {
    let widths = [4, 1];
    let shared = columns(&widths, AUTO);
    for i in 0..10 {
        let steps: Vec<i32> = (0..=i % 3).map(|step| i * 3 + step).collect();
        let block = block(&shared, &widths, 0, &steps, |_, _| true);
        block.closed(&mut || i as u64);
        let mut templates = shared.encoders.templates.lock();
        for num_rows in 1..=3 {
            let is_known = templates.find(|known| known.num_rows == num_rows).is_some();
            assert_eq!(is_known, i as usize + 1 >= num_rows);
        }
    }
}

#[test]
fn large_cells_are_copied_once() {
    let widths = [LARGE_CELL_BYTES];
    let shared = columns(&widths, AUTO);
    let block = block(&shared, &widths, 0, &[1], |_, _| true);
    let buffer = match &*block.state.lock() {
        State::Open(Buffers::Rows(rows)) => rows.column(&shared, 0).as_ptr(),
        _ => panic!("the block is open"),
    };
    let (chunk, _) = block.closed(&mut || 1).chunk_and_tensor(0);
    assert_eq!(chunk.tensor(0).unwrap().values_in_place().unwrap().as_ptr(), buffer);
    assert!(shared.encoders.templates.lock().find(|_| true).is_none());
}

#[test]
fn only_blocks_of_the_same_columns_share_their_encoders() {
    let one = columns(&[4, 8], AUTO);
    let specs = || one.as_slice().iter().map(|column| (Arc::clone(&column.spec), Arc::default()));
    let shares = |columns: BlockColumns| {
        Arc::ptr_eq(&columns.encoded_like(Some(&one)).encoders, &one.encoders)
    };
    assert!(shares(BlockColumns::new(specs(), AUTO)));
    assert!(!shares(BlockColumns::new(specs(), Encoding { delta: true, ..AUTO })));
    let raw = Encoding { compression: Compression::None, ..AUTO };
    assert!(!shares(BlockColumns::new(specs(), raw)));
    assert!(!shares(BlockColumns::new(specs().take(1), AUTO)));
    assert!(!shares(BlockColumns::new(specs().rev(), AUTO)));
}

#[test]
fn blocks_without_compression_hold_the_values_as_they_are() {
    for width in [200, 7056, LARGE_CELL_BYTES] {
        let raw = Encoding { compression: Compression::None, ..AUTO };
        let raw = columns(&[width], raw);
        let packed = columns(&[width], AUTO);
        let zeros = |shared: &Arc<BlockColumns>| {
            let block = Block::new(shared, 1, false);
            for step in 0..3 {
                let bytes = vec![step as u8; width];
                let cell =
                    &mut CellValue::Bytes { dtype: DType::UInt8, shape: &[width], bytes: &bytes };
                block.append(step, &mut [(0, cell)], 3, |_, _| {});
            }
            block.closed(&mut || 1).chunk_and_tensor(0).0.clone()
        };
        for _ in 0..2 {
            let raw = zeros(&raw);
            let packed = zeros(&packed);
            assert!(raw.payload_len() >= 3 * width && packed.payload_len() < width, "{width}");
            let values = |chunk: &Chunk| chunk.tensor(0).unwrap().rows(0, 3).unwrap();
            assert!(raw.tensor(0).unwrap().values_in_place().is_some());
            assert!(packed.tensor(0).unwrap().values_in_place().is_none());
            assert_eq!(values(&raw), values(&packed));
        }
    }
}
