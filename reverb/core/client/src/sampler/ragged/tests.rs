// SPDX-License-Identifier: Apache-2.0
//! Tests of batches of items of different lengths.

use proptest::prelude::*;
use reverb_data::Chunk;

use super::*;
use crate::sampler::batch::tests::{WIDTHS, bounds, chunk, content, decoded, sampled};

fn history(compressible: &[bool]) -> Vec<Chunk> {
    compressible.iter().zip(0..).map(|(&it, key)| chunk(key, it)).collect()
}

proptest! {
    /// A packed batch consists of its items one after another; a padded one has zeros between them.
    #[test]
    fn ragged_batches_are_their_items_in_order(
        compressible in prop::collection::vec(any::<bool>(), 6..12),
        picks in prop::collection::vec((0usize..5, 1usize..5), 1..30),
        multiple in 1usize..9,
    ) {
        let history = history(&compressible);
        let window = |&(first, length): &(usize, usize)| {
            &history[first..(first + length).min(history.len())]
        };
        let samples: Vec<Sampled> =
            picks.iter().zip(0..).map(|(pick, key)| sampled(key, window(pick))).collect();
        let lengths: Vec<i32> = picks.iter().map(|pick| window(pick).len() as i32).collect();
        let (sum, longest) =
            (lengths.iter().sum::<i32>() as usize, *lengths.iter().max().unwrap() as usize);

        let packed = assemble(&samples, bounds(samples.len()), RaggedForm::Packed, None).unwrap();
        prop_assert!(Arc::ptr_eq(
            packed[0].lengths.as_ref().unwrap(), packed[1].lengths.as_ref().unwrap()
        ));
        for (i, column) in packed.into_iter().enumerate() {
            prop_assert_eq!(&column.shape[..], &[sum, WIDTHS[i]]);
            prop_assert_eq!(&column.lengths.as_ref().unwrap()[..], &lengths[..]);
            prop_assert_eq!(content(column), decoded(&samples, i).concat());
        }

        let length = longest.next_multiple_of(multiple);
        let padded =
            assemble(&samples, bounds(samples.len()), RaggedForm::Padded(multiple), None).unwrap();
        for (i, column) in padded.into_iter().enumerate() {
            prop_assert_eq!(&column.shape[..], &[samples.len(), length, WIDTHS[i]]);
            let rows = decoded(&samples, i).into_iter().map(|mut row| {
                row.resize(length * WIDTHS[i], 0);
                row
            });
            prop_assert_eq!(content(column), rows.collect::<Vec<_>>().concat());
        }
    }
}

/// Columns for three items of so many steps.
fn given(memory: &mut [Vec<u8>; 2], steps: usize) -> Vec<GivenColumn<'_>> {
    let columns = memory.iter_mut().enumerate().map(|(i, bytes)| GivenColumn {
        name: ["out[0]", "out[1]"][i],
        dtype: "uint8",
        shape: Shape::from_slice(&[3, steps, WIDTHS[i]]),
        bytes,
    });
    columns.collect()
}

#[test]
fn memory_of_the_caller_may_have_room_for_longer_items() {
    let history = history(&[false, true, false]);
    let samples = [sampled(1, &history[..2]), sampled(2, &history[..1])];
    let mut memory = WIDTHS.map(|width| vec![7_u8; 3 * 4 * width]);
    let columns = given(&mut memory, 4);
    let batch = assemble(&samples, bounds(3), RaggedForm::Padded(1), Some(columns)).unwrap();
    assert_eq!(batch[0].shape[..], [2, 4, WIDTHS[0]]);
    for (bytes, width) in memory.iter().zip(WIDTHS) {
        let rows: Vec<&[u8]> = bytes.chunks(4 * width).collect();
        let mut padding = rows[0][2 * width..].iter().chain(&rows[1][width..]);
        assert!(padding.all(|&byte| byte == 0), "what was there before is cleared");
    }

    let mut memory = WIDTHS.map(|width| vec![7_u8; 3 * width]);
    let columns = given(&mut memory, 1);
    let error = assemble(&samples, bounds(3), RaggedForm::Padded(1), Some(columns)).unwrap_err();
    let text = "out[0] must be uint8 [3, 2, 300], C-contiguous and writable; got uint8 [3, 1, 300]";
    assert_eq!(error.message(), text);
}
