// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use reverb_data::KeyGenerator;

use super::*;
use crate::writer::capture::cell::{CellRef, CellValue};
use crate::writer::capture::history::History;
use crate::writer::capture::item_encoder::ItemEncoder;

/// Bytes of cells of two small columns, which share blocks, and a column of large cells.
const WIDTHS: [usize; 3] = [1, 2, 300];

/// A history of these steps; some end the episode, and some have no value in one of the first
/// columns.
fn history(keep: usize, steps: &[u8], seed: u8) -> History {
    let mut history = History::new(keep);
    WIDTHS.iter().enumerate().for_each(|(column, _)| _ = history.add_column(column, None));
    for (i, template) in steps.iter().enumerate() {
        let values = WIDTHS.map(|width| vec![seed ^ i as u8; width]);
        let shapes = WIDTHS.map(|width| [width]);
        let mut cells: Vec<(usize, CellValue<'_>)> = (0..WIDTHS.len())
            .filter(|&column| (column, *template) != (1, 1) && (column, *template) != (0, 3))
            .map(|column| {
                let shape = &shapes[column][..];
                let bytes = &values[column][..];
                (column, CellValue::Bytes { dtype: DType::UInt8, shape, bytes })
            })
            .collect();
        history.append(&mut cells, false).unwrap();
        if *template == 0 {
            history.end_episode(false);
        }
    }
    history
}

/// Cells of an item: for each column, some of the steps that are kept.
fn cells(history: &History, columns: &[(usize, usize, usize, usize)]) -> Vec<(Vec<CellRef>, bool)> {
    let cells = |&(column, first, length, stride): &(usize, usize, usize, usize)| {
        let kept = history.cells(column).map(|(_, cell)| cell.to_ref());
        let cells: Vec<CellRef> = kept.skip(first).step_by(stride).take(length).collect();
        let squeeze = stride == 1 && cells.len() == 1;
        (cells, squeeze)
    };
    columns.iter().map(cells).collect()
}

fn refs(
    columns: &[(Vec<CellRef>, bool)],
) -> impl Iterator<Item = (impl ExactSizeIterator<Item = Cell<'_>> + Clone, bool)> + Clone {
    columns.iter().map(|(cells, squeeze)| (cells.iter().map(CellRef::as_cell), *squeeze))
}

fn numbered_refs(
    columns: &[(Vec<CellRef>, bool)],
) -> impl Iterator<Item = (usize, impl ExactSizeIterator<Item = Cell<'_>> + Clone, bool)> + Clone {
    refs(columns).enumerate().map(|(i, (cells, squeeze))| (i, cells, squeeze))
}

proptest! {
    /// An item has the same slices of the same chunks, with and without a known template.
    #[test]
    fn an_item_of_a_known_template_is_that_of_its_cells(
        keep in 1usize..9,
        steps in prop::collection::vec(prop::collection::vec(0u8..7, 9..14), 1..4),
        columns in prop::collection::vec((0..WIDTHS.len(), 0usize..3, 1usize..6, 1usize..3), 1..4),
        others in prop::collection::vec((0..WIDTHS.len(), 0usize..3, 1usize..6, 1usize..3), 1..4),
    ) {
        let histories: Vec<History> =
            steps.iter().enumerate().map(|(i, it)| history(keep, it, i as u8)).collect();
        let table: Arc<str> = "table".into();
        let mut keys = KeyGenerator::new();
        let mut next_key = || keys.next_key();
        let mut encoder = ItemEncoder::default();
        for columns in [&columns, &others] {
            let mut known: Vec<Arc<ItemTemplate>> = Vec::new();
            for history in &histories {
                let columns = cells(history, columns);
                if columns.iter().any(|(cells, _)| cells.is_empty()) {
                    continue;
                }
                let (template, cells) =
                    ItemTemplate::of(Arc::clone(&table), refs(&columns)).unwrap();
                let alone = ItemEncoder::default().trajectory(&template, &cells, &mut next_key).unwrap();
                known.push(template);
                let find =
                    |known: &Arc<ItemTemplate>| Some((known.clone(), known.find(numbered_refs(&columns))?));
                let (found, cells) = known.iter().find_map(find).expect("the last is its own");
                let trajectory = encoder.trajectory(&found, &cells, &mut next_key).unwrap();
                prop_assert_eq!(trajectory.stored_columns(), alone.stored_columns());
                prop_assert_eq!(trajectory.num_columns(), alone.num_columns());
                prop_assert_eq!(trajectory.chunks().len(), alone.chunks().len());
                for (one, other) in trajectory.chunks().iter().zip(alone.chunks()) {
                    prop_assert!(one.is_same(other));
                }
                for ((cells, _), column) in columns.iter().zip(trajectory.decode().unwrap()) {
                    let reverb_data::TensorData::Bytes(bytes) = column.data else { panic!() };
                    let expected: Vec<u8> = cells.iter().flat_map(bytes_of).collect();
                    prop_assert_eq!(bytes, expected);
                }
            }
        }
    }
}

fn bytes_of(cell: &CellRef) -> Vec<u8> {
    let reverb_data::TensorData::Bytes(bytes) = cell.read().unwrap().data else { panic!() };
    bytes
}

#[test]
fn items_at_other_places_of_their_blocks_have_one_template() {
    let histories = [history(8, &[2, 2, 2, 2, 2], 0), history(8, &[2, 2, 0, 2, 2, 2, 2, 2], 0)];
    let window = |history: &History, first| cells(history, &[(0, first, 2, 1), (1, first, 2, 1)]);
    let (template, _) = ItemTemplate::of("table".into(), refs(&window(&histories[0], 1))).unwrap();
    for (history, first) in [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (1, 6)] {
        assert!(template.find(numbered_refs(&window(&histories[history], first))).is_some());
    }
    let across_episodes = window(&histories[1], 2);
    assert!(template.find(numbered_refs(&across_episodes)).is_none());
    let expired = window(&histories[0], 3);
    histories[0].cells(1).for_each(|(_, cell)| cell.to_ref().expire());
    assert!(template.find(numbered_refs(&expired)).is_none());
}

#[test]
fn columns_of_the_same_blocks_refer_to_each_block_once() {
    // One block of the first two steps, and another block.
    let history = history(2, &[2, 2, 2], 0);
    let columns = cells(&history, &[(0, 0, 2, 1), (1, 0, 2, 1)]);
    let (template, cells) = ItemTemplate::of("table".into(), refs(&columns)).unwrap();
    let runs = template.columns.iter().flat_map(|column| &column.runs);
    let blocks: Vec<u32> = runs.map(|run| run.block).collect();
    assert_eq!((blocks, cells.blocks.len()), (vec![0, 1, 0, 1], 2));
}

#[test]
fn items_of_one_template_may_differ_in_the_places_of_tensors() {
    // The last block of the first history has no value in its first column.
    let histories = [history(1, &[2, 3], 0), history(1, &[2, 2], 0)];
    let columns = histories.each_ref().map(|history| cells(history, &[(1, 0, 1, 1)]));
    let (template, _) = ItemTemplate::of("table".into(), refs(&columns[0])).unwrap();
    let mut keys = KeyGenerator::new();
    let mut encoder = ItemEncoder::default();
    for (history, tensor) in [(0, 0), (1, 1), (0, 0)] {
        let cells = template.find(numbered_refs(&columns[history])).unwrap();
        let mut next_key = || keys.next_key();
        let trajectory = encoder.trajectory(&template, &cells, &mut next_key).unwrap();
        let column = trajectory.columns().next().unwrap();
        assert_eq!(column.single_slice().unwrap().tensor, tensor);
    }
}
