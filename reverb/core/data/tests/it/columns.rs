// SPDX-License-Identifier: Apache-2.0
//! Storage of items' columns. Alone in its process, because it fills the intern table.

use reverb_data::{Chunk, SequenceRange, Trajectory, TrajectoryBuilder};

/// An item of one column: the steps from `offset` of a chunk.
fn item(chunk: &Chunk, offset: usize) -> Trajectory {
    let mut builder = TrajectoryBuilder::new();
    builder.slice(chunk, 0, offset, 3);
    builder.end_column(false);
    builder.finish().unwrap()
}

#[test]
fn items_of_one_chunk_share_their_columns_while_there_is_room() {
    let chunk = |key| Chunk::from_slice(key, SequenceRange::default(), false, &[0; 10]);
    let (first, second) = (chunk(1), chunk(2));
    let kept = item(&first, 7);
    assert_eq!(kept.bytes(), 0);
    assert!(std::ptr::eq(kept.stored_columns(), item(&second, 7).stored_columns()));

    let all: Vec<_> = (0..50_000).map(|offset| item(&first, offset)).collect();
    let count = all.iter().filter(|item| item.bytes() == 0).count();
    assert!((2000..=4096).contains(&count), "{count} were kept");
    // The others are stored with their item, and behave the same otherwise.
    for (offset, item) in all.iter().enumerate() {
        let slice = item.columns().next().unwrap().single_slice().unwrap();
        assert_eq!((slice.chunk, slice.tensor, slice.offset, slice.length), (0, 0, offset, 3));
        assert_eq!((item.num_columns(), item.chunks().len()), (1, 1));
        let moved = item.with_chunk(second.clone());
        assert_eq!((moved.stored_columns(), moved.bytes()), (item.stored_columns(), item.bytes()));
        assert!(moved.chunks()[0].is_same(&second));
    }
    // Known ones stay known.
    assert_eq!(item(&second, 7).bytes(), 0);

    // Long ones are never interned.
    let mut builder = TrajectoryBuilder::new();
    for offset in 0..100 {
        builder.slice(&first, 0, 2 * offset, 1);
        builder.end_column(true);
    }
    assert!(builder.finish().unwrap().bytes() > 400);
}
