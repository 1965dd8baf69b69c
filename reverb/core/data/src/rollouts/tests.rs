// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::tensor::{Shape, Tensor, TensorData};
use crate::{Chunk, ChunkBuilder, DType, SequenceRange};

const COLUMNS: u32 = 5;

fn settings() -> RolloutSettings {
    RolloutSettings {
        num_columns: COLUMNS,
        item_columns: [1, 4].into(),
        num_rollouts: 4,
        min_rollouts: 4,
        ahead: None,
        items_per_version: None,
        max_staleness: None,
        on_stale: OnStale::Again,
        open_timeout: None,
        max_attempts: 5,
    }
}

/// A chunk of one int64 column `[length]`.
fn chunk(key: u64, length: usize) -> Chunk {
    let mut chunk = ChunkBuilder::new(false);
    chunk.push(&Tensor {
        dtype: DType::Int64,
        shape: Shape::from_slice(&[length]),
        data: TensorData::Bytes(vec![0; length * 8]),
    });
    chunk.finish(key, SequenceRange::default())
}

/// A piece whose parts have chunks with these keys and numbers of steps; 0: a single step without
/// the leading dimension.
fn piece(parts: &[(Part, u64, usize)]) -> Result<Piece> {
    let mut builder = TrajectoryBuilder::new();
    for &(_, key, length) in parts {
        builder.slice(&chunk(key, length.max(1)), 0, 0, length.max(1));
        builder.end_column(length == 0);
    }
    Piece::new(builder.finish()?, parts.iter().map(|part| part.0).collect(), &settings())
}

fn of_item(column: u32) -> Part {
    Part { sequence: None, column }
}

fn of(rollout: u32, number: u32, column: u32) -> Part {
    Part { sequence: Some(SequenceOf { rollout, number }), column }
}

/// Keys and lengths of the slices of each column.
fn slices(trajectory: &Trajectory) -> Vec<Vec<(u64, usize)>> {
    let of = |column: Column<'_>| {
        let keys = column.slices().map(|it| (trajectory.chunks()[it.chunk].key(), it.length));
        keys.collect()
    };
    trajectory.columns().map(of).collect()
}

#[test]
fn pieces_with_odd_parts_are_refused() {
    let refused = |parts: &[(Part, u64, usize)]| piece(parts).unwrap_err().message().to_owned();
    for (parts, text) in [
        (vec![(of_item(0), 1, 2)], "column 0 is one of sequences, not of items."),
        (vec![(of(0, 0, 1), 1, 2)], "column 1 is one of items, not of sequences."),
        (vec![(of(0, 0, 5), 1, 2)], "column 5 must be below 5, the number of columns."),
        (
            vec![(of(4, 0, 0), 1, 2)],
            "rollout must be at least 0 and below num_rollouts (4), got 4.",
        ),
        (vec![(of(1, 1, 0), 1, 2)], "rollout 1 has a sequence 1 where 0 follows."),
        (
            vec![(of(0, 0, 0), 1, 2), (of(0, 0, 2), 2, 2), (of(0, 1, 0), 3, 2)],
            "rollout 0: sequence 1 lacks column 2, which sequence 0 has.",
        ),
        (
            vec![(of(0, 0, 0), 1, 2), (of(0, 1, 0), 2, 2), (of(0, 1, 3), 3, 0)],
            "rollout 0: sequence 0 lacks column 3, which sequence 1 has.",
        ),
        (
            vec![(of(2, 0, 0), 1, 2), (of(2, 0, 2), 2, 3)],
            "rollout 2: the columns of sequence 0 have 2 and 3 steps; they must have the same \
             number.",
        ),
        (
            vec![(of(1, 0, 0), 1, 2), (of(0, 0, 0), 2, 2)],
            "a change of 2 columns names 2 parts, which must be as many, sorted, each once.",
        ),
    ] {
        assert_eq!(refused(&parts), text);
    }
}

#[test]
fn settings_are_checked() {
    type Change = fn(&mut RolloutSettings);
    let cases: [(Change, &str); 9] = [
        (|it| it.num_rollouts = 0, "num_rollouts must be at least 1 and at most 1024, got 0."),
        (
            |it| it.min_rollouts = 5,
            "min_rollouts must be at least 1 and at most num_rollouts (4), got 5.",
        ),
        (|it| it.ahead = Some(1), "ahead needs items_per_version."),
        (|it| it.items_per_version = Some(1), "items_per_version needs ahead or max_staleness."),
        (
            |it| {
                (it.ahead, it.items_per_version) = (Some(2), Some(8));
                it.max_staleness = Some(1);
            },
            "max_staleness (1) must be at least ahead (2).",
        ),
        (|it| it.items_per_version = Some(0), "items_per_version must be at least 1, got 0."),
        (
            |it| it.item_columns = [5].into(),
            "item has the columns [5], which must be different positions below 5.",
        ),
        (
            |it| it.item_columns = [0, 1, 2, 3, 4].into(),
            "item has all columns; at least one must be of sequences.",
        ),
        (
            |it| it.max_attempts = 0,
            "max_attempts must be at least 1 and at most 4294967295, got 0.",
        ),
    ];
    assert!(settings().validate().is_ok());
    for (change, text) in cases {
        let mut settings = settings();
        change(&mut settings);
        assert_eq!(settings.validate().unwrap_err().message(), text);
    }
}

#[test]
fn the_backlog_is_that_of_the_batches_ahead_and_the_one_that_is_trained() {
    let backlog = |ahead, max_staleness, items_per_version| {
        RolloutSettings { ahead, items_per_version, max_staleness, ..settings() }.backlog()
    };
    assert_eq!(backlog(None, None, None), None);
    assert_eq!(backlog(None, Some(2), None), None);
    assert_eq!(backlog(Some(0), None, Some(64)), Some(64));
    assert_eq!(backlog(Some(1), Some(3), Some(64)), Some(128));
    assert_eq!(backlog(None, Some(2), Some(64)), Some(192));
}

/// Lengths of the sequences of each rollout, and whether late columns have come.
fn rollouts() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(1..5usize, 1..4), 1..5)
}

proptest! {
    /// Whatever the order in which rollouts and late columns come, and whatever a replaced try
    /// had, the item is the same.
    #[test]
    fn a_joined_item_has_the_sequences_in_order(
        rollouts in rollouts(),
        order in any::<prop::sample::Index>(),
        has_late in any::<bool>(),
    ) {
        let mut key = 0;
        let mut next = || { key += 1; key };
        let prompt = [(of_item(1), next(), 0), (of_item(4), next(), 3)];
        let mut pieces = Vec::new();
        let mut late = Vec::new();
        // Column 0 has steps, column 2 a number for each sequence, column 3 comes late.
        let mut expected = vec![Vec::new(); 3];
        let mut sequences = Vec::new();
        for (rollout, lengths) in (0..).zip(&rollouts) {
            let mut parts = Vec::new();
            for (number, &length) in (0..).zip(lengths) {
                let [steps, one, other] = [next(), next(), next()];
                parts.push((of(rollout, number, 0), steps, length));
                parts.push((of(rollout, number, 2), one, 0));
                late.push((of(rollout, number, 3), other, length));
                expected[0].push((steps, length));
                expected[1].push((one, 1));
                expected[2].push((other, length));
                sequences.push(SequenceInfo { rollout, length: length as u32 });
            }
            pieces.push(piece(&parts).unwrap());
        }
        // One rollout comes later than the others.
        let moved = pieces.remove(order.index(rollouts.len()));
        pieces.push(moved);
        if has_late {
            pieces.push(piece(&late).unwrap());
        }
        pieces.insert(0, piece(&prompt).unwrap());
        let joined = join(&pieces).unwrap();
        let mut columns = vec![0, 1, 2, 3, 4];
        let mut all = vec![
            expected[0].clone(),
            vec![(prompt[0].1, 1)],
            expected[1].clone(),
            expected[2].clone(),
            vec![(prompt[1].1, 3)],
        ];
        if !has_late {
            columns.remove(3);
            all.remove(3);
        }
        prop_assert_eq!(&joined.columns, &columns);
        prop_assert_eq!(slices(&joined.trajectory), all);
        prop_assert_eq!(&joined.sequences, &sequences);
        let squeezed: Vec<bool> = joined.trajectory.columns().map(|it| it.squeeze).collect();
        prop_assert_eq!(squeezed[1], true);
        prop_assert_eq!(squeezed.iter().filter(|&&it| it).count(), 1);
        // A rollout that is made again replaces all that it had.
        let (gone, left): (Vec<_>, Vec<_>) =
            pieces.iter().map(|piece| (piece.without(0), piece.only(&[1, 4]))).unzip();
        let left: Vec<Piece> = left.into_iter().flatten().collect();
        prop_assert_eq!(slices(&join(&left).unwrap().trajectory), slices(&left[0].trajectory));
        let gone: Vec<Piece> = gone.into_iter().flatten().collect();
        let rest = join(&gone).unwrap();
        prop_assert_eq!(rest.sequences, &sequences[rollouts[0].len()..]);
    }
}

#[test]
fn a_column_that_a_sequence_lacks_is_left_out() {
    let first = piece(&[(of(0, 0, 0), 1, 2), (of(0, 0, 2), 2, 0)]).unwrap();
    let second = piece(&[(of(1, 0, 0), 3, 4)]).unwrap();
    let joined = join(&[first.clone(), second]).unwrap();
    assert_eq!(joined.columns, [0]);
    assert_eq!(slices(&joined.trajectory), [[(1, 2), (3, 4)]]);
    assert_eq!(join(&[]).unwrap_err().message(), "Item trajectory must not be empty.");
    // Late columns that come again count.
    let again = piece(&[(of(0, 0, 2), 5, 0)]).unwrap();
    assert_eq!(slices(&join(&[first, again]).unwrap().trajectory), [[(1, 2)], [(5, 1)]]);
}
