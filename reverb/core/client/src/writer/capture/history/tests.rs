// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

fn int(bytes: &[u8]) -> CellValue<'_> {
    CellValue::Bytes { dtype: DType::Int32, shape: &[], bytes }
}

fn history(columns: usize, keep: usize) -> History {
    let mut history = History::new(keep);
    (0..columns).for_each(|i| {
        history.add_column(i, None);
    });
    history
}

fn value(cell: Cell<'_>) -> i32 {
    let reverb_data::TensorData::Bytes(bytes) = cell.to_ref().read().unwrap().data else {
        panic!()
    };
    i32::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn cells_are_found_by_step_and_expire() {
    let mut history = history(2, 2);
    for i in 0..5i32 {
        let bytes = i.to_le_bytes();
        let mut cells = vec![(0, int(&bytes))];
        if i % 2 == 0 {
            cells.push((1, int(&bytes)));
        }
        history.append(&mut cells, false).unwrap();
    }
    assert_eq!(history.num_steps(), 5);
    assert_eq!(value(history.cell(0, 4).unwrap()), 4);
    assert!(history.cell(0, 2).is_none(), "only the last 2 values are kept");
    assert_eq!(value(history.cell(1, 2).unwrap()), 2);
    assert!(history.cell(1, 3).is_none(), "absent in that step");
    let kept = history.cell(0, 4).unwrap().to_ref();
    history.end_episode(true);
    assert!(kept.is_expired());
    assert_eq!((history.num_steps(), history.episode_steps()), (0, 0));
}

#[test]
fn a_failed_append_changes_nothing() {
    let mut history = history(2, 4);
    let one = 1i32.to_le_bytes();
    history.append(&mut [(0, int(&one)), (1, int(&one))], false).unwrap();
    let wrong = CellValue::Bytes { dtype: DType::Float32, shape: &[], bytes: &one };
    let error = history.append(&mut [(0, int(&one)), (1, wrong)], false).unwrap_err();
    assert_eq!(
        error.message(),
        "Tensor of wrong dtype provided for column 1. Got float but expected int32."
    );
    assert_eq!((history.num_steps(), history.cells(0).len()), (1, 1));
    history.append(&mut [(0, int(&one)), (1, int(&one))], false).unwrap();
    assert_eq!(history.num_steps(), 2);
}

#[test]
fn partial_steps_share_one_step() {
    let mut history = history(2, 4);
    let one = 1i32.to_le_bytes();
    history.append(&mut [(0, int(&one))], true).unwrap();
    assert_eq!((history.num_steps(), history.episode_steps()), (1, 0));
    assert!(history.append(&mut [(0, int(&one))], true).is_err());
    history.append(&mut [(1, int(&one))], false).unwrap();
    assert_eq!((history.num_steps(), history.episode_steps()), (1, 1));
    assert!(history.cell(0, 0).is_some() && history.cell(1, 0).is_some());
}

#[test]
fn small_columns_of_the_same_steps_share_a_chunk() {
    let mut history = history(3, 8);
    for i in 0..3i32 {
        let bytes = i.to_le_bytes();
        history.append(&mut [(0, int(&bytes)), (1, int(&bytes)), (2, int(&bytes))], false).unwrap();
    }
    let mut keys = KeyGenerator::new();
    let mut next = || keys.next_key();
    let cells: Vec<CellRef> = (0..3).map(|c| history.cell(c, 2).unwrap().to_ref()).collect();
    cells[0].mark_referenced();
    cells[2].mark_referenced();
    let (a, at_a) = cells[0].block.closed(&mut next).chunk_and_tensor(0);
    let (b, at_b) = cells[1].block.closed(&mut next).chunk_and_tensor(1);
    let (c, at_c) = cells[2].block.closed(&mut next).chunk_and_tensor(2);
    assert!(a.is_same(c) && !a.is_same(b), "a column that no item refers to is not sent");
    assert_eq!((at_a, at_b, at_c), (0, 0, 1));
    assert_eq!(value(cells[1].as_cell()), 2);
}

#[test]
fn steps_without_a_column_may_follow_rows() {
    let mut history = history(2, 3);
    let append = |history: &mut History, i: i32, columns: &[usize]| {
        let bytes = i.to_le_bytes();
        let mut cells: Vec<_> = columns.iter().map(|&column| (column, int(&bytes))).collect();
        history.append(&mut cells, false).unwrap();
    };
    let kept = |history: &History, column| -> Vec<(u64, i32)> {
        history.cells(column).map(|(step, cell)| (step, value(cell))).collect()
    };
    for round in 0..2 {
        (0..4).for_each(|i| append(&mut history, i, &[0, 1]));
        assert_eq!(history.small.rows.len(), 3, "an entry for both columns, in round {round}");
        assert_eq!(kept(&history, 0), [(1, 1), (2, 2), (3, 3)]);
        let refs: Vec<CellRef> = history.cells(1).map(|(_, cell)| cell.to_ref()).collect();
        append(&mut history, 4, &[1]);
        assert!(history.small.rows.is_empty());
        append(&mut history, 5, &[0, 1]);
        assert_eq!(kept(&history, 0), [(2, 2), (3, 3), (5, 5)], "three values, not three steps");
        assert_eq!(kept(&history, 1), [(3, 3), (4, 4), (5, 5)]);
        assert!(history.cell(0, 4).is_none());
        let expired: Vec<bool> = refs.iter().map(CellRef::is_expired).collect();
        assert_eq!(expired, [true, true, false]);
        history.end_episode(true);
        assert!(refs.iter().all(CellRef::is_expired));
    }
}

#[test]
fn a_column_may_join_or_leave_the_rows() {
    let mut history = history(3, 4);
    let bytes = 7i32.to_le_bytes();
    let append = |history: &mut History, columns: &[usize]| {
        let mut cells: Vec<_> = columns.iter().map(|&column| (column, int(&bytes))).collect();
        history.append(&mut cells, false).unwrap();
    };
    append(&mut history, &[0, 1]);
    append(&mut history, &[0, 1, 2]);
    assert_eq!((history.cells(0).len(), history.cells(2).len()), (2, 1));
    assert!(history.cell(2, 0).is_none());
    history.end_episode(true);
    append(&mut history, &[0, 1, 2]);
    history.end_episode(false);
    let options = ColumnOptions { num_keep_alive_refs: 1, max_chunk_length: Some(1) };
    history.configure(1, options).unwrap();
    append(&mut history, &[0, 1, 2]);
    assert_eq!((history.cells(0).len(), history.cells(1).len(), history.cells(2).len()), (2, 1, 2));
    assert_eq!((0..3).map(|column| value(history.cell(column, 1).unwrap())).sum::<i32>(), 21);
}

/// A step: the columns with values, a flag for staying open, and the event after it.
fn steps() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..20u8, 0..20u8), 0..60)
}

proptest! {
    #[test]
    fn rows_are_what_steps_of_all_columns_are(
        keep in 1..5usize,
        columns in 1..4usize,
        steps in steps(),
    ) {
        let mut by_rows = history(columns, keep);
        let mut by_steps = history(columns, keep);
        let mut known = history(columns, keep);
        let zero = 0i32.to_le_bytes();
        let mut row: Vec<_> = (0..columns).map(|column| (column, int(&zero))).collect();
        known.append(&mut row, false).unwrap();
        for (i, (kind, after)) in steps.into_iter().enumerate() {
            let bytes = (i as i32).to_le_bytes();
            let (count, is_partial) = match kind {
                0 => (1, false),
                1 => (1, true),
                _ => (columns, false),
            };
            let mut cells: Vec<_> = (0..count).map(|column| (column, int(&bytes))).collect();
            let by_row = !is_partial && by_rows.append_row(Some(&known), &cells);
            let one = by_row
                || by_rows.append_like(Some(&known), &mut cells, is_partial).is_ok();
            let two = by_steps.append_like(Some(&known), &mut cells, is_partial).is_ok();
            prop_assert_eq!(one, two);
            match after {
                0 | 1 => {
                    by_rows.end_episode(after == 0);
                    by_steps.end_episode(after == 0);
                }
                // The send task freezes blocks like this, at any time.
                2 => {
                    by_rows.end_blocks();
                }
                3 => {
                    for history in [&mut by_rows, &mut by_steps] {
                        history.end_blocks();
                        let num_keep_alive_refs = 2;
                        let options = ColumnOptions { num_keep_alive_refs, max_chunk_length: None };
                        history.configure(0, options).unwrap();
                    }
                }
                _ => {}
            }
            for column in 0..columns {
                let values = |history: &History| -> Vec<(u64, i32)> {
                    history.cells(column).map(|(step, cell)| (step, value(cell))).collect()
                };
                prop_assert_eq!(values(&by_rows), values(&by_steps));
            }
            prop_assert_eq!(by_rows.num_steps(), by_steps.num_steps());
            prop_assert_eq!(by_rows.episode_steps(), by_steps.episode_steps());
        }
    }
}

#[test]
fn a_row_is_taken_after_the_first_step() {
    let mut history = history(2, 4);
    let one = 1i32.to_le_bytes();
    let mut row = [(0, int(&one)), (1, int(&one))];
    assert!(!history.append_row(None, &row));
    history.append(&mut row, false).unwrap();
    assert!(history.append_row(None, &row));
    history.end_episode(true);
    assert!(history.append_row(None, &row));
    assert_eq!((history.num_steps(), history.episode_steps()), (1, 1));
}

#[test]
fn a_row_of_another_spec_is_left_to_be_refused() {
    let mut history = history(1, 4);
    let one = 1i32.to_le_bytes();
    history.append(&mut [(0, int(&one))], false).unwrap();
    let wrong = CellValue::Bytes { dtype: DType::Float32, shape: &[], bytes: &one };
    assert!(!history.append_row(None, &[(0, wrong)]));
    assert!(history.append_row(None, &[(0, int(&one))]));
    assert_eq!(history.num_steps(), 2);
}
