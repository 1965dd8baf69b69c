// SPDX-License-Identifier: Apache-2.0

use reverb_base::ErrorKind;
use reverb_data::{DType, TensorData};
use reverb_wire::generated::StructuredWriterConfig;

use super::*;
use crate::structured::testing::*;

/// Random calls, compared with a simple model of the rules.
mod model;
/// Values: conditions on them, priorities computed from them, and rejected values.
mod values;

/// An item: its config, priority, and per column the values and whether it is squeezed.
#[derive(Debug, Clone, PartialEq)]
struct Item(usize, f64, Vec<(Vec<i32>, bool)>);

struct Bench {
    engine: PatternEngine,
    items: Vec<Item>,
}

impl Bench {
    fn new(protos: &[StructuredWriterConfig]) -> Self {
        let engine = PatternEngine::new(Configs::new(protos).unwrap());
        Self { engine, items: Vec::new() }
    }

    fn cells(&mut self, cells: Vec<Option<CellValue<'_>>>, partial: bool) -> Result<()> {
        let items = &mut self.items;
        self.engine.append(cells, partial, &mut |item| {
            items.push(read(item));
            Ok(())
        })
    }

    fn append(&mut self, leaves: &[Option<i32>], partial: bool) -> Result<()> {
        let bytes: Vec<_> = leaves.iter().map(|leaf| leaf.map(i32::to_le_bytes)).collect();
        self.cells(bytes.iter().map(|bytes| bytes.as_ref().map(int32)).collect(), partial)
    }

    fn steps(&mut self, values: impl IntoIterator<Item = i32>) {
        for value in values {
            self.append(&[Some(value)], false).unwrap();
        }
    }

    fn end_episode(&mut self, clear_buffers: bool) {
        let items = &mut self.items;
        self.engine
            .apply_at_end(&mut |item| {
                items.push(read(item));
                Ok(())
            })
            .unwrap();
        self.engine.end_episode(clear_buffers);
    }

    /// The values of all items so far, per config, columns one after another.
    fn taken(&mut self) -> Vec<(usize, Vec<i32>)> {
        let flat =
            |columns: Vec<(Vec<i32>, bool)>| columns.into_iter().flat_map(|(v, _)| v).collect();
        self.items.drain(..).map(|Item(config, _, columns)| (config, flat(columns))).collect()
    }

    /// The values of all items so far, of a single config with a single column.
    fn values(&mut self) -> Vec<Vec<i32>> {
        self.taken().into_iter().map(|(_, values)| values).collect()
    }
}

fn read(item: &PatternItem<'_>) -> Item {
    let columns = item
        .columns
        .iter()
        .map(|column| (column.cells.iter().map(read_int32).collect(), column.squeeze));
    Item(item.config, item.priority.value, columns.collect())
}

#[test]
fn every_form_of_a_node_takes_its_cells() {
    let nodes = vec![
        at(0, -1),
        at(0, -3),
        last(0, -2),
        slice(0, -4, Some(-2), None),
        slice(0, -5, None, Some(2)),
        slice(0, -5, Some(-1), Some(3)),
    ];
    let mut bench = Bench::new(&[config("t", nodes, vec![])]);
    bench.steps(0..4);
    assert_eq!(bench.items, [], "the longest node needs 5 steps");
    bench.steps(4..6);
    assert_eq!(
        bench.items[1],
        Item(
            0,
            1.0,
            vec![
                (vec![5], true),
                (vec![3], true),
                (vec![4, 5], false),
                (vec![2, 3], false),
                (vec![1, 3, 5], false),
                (vec![1, 4], false),
            ]
        )
    );
    assert_eq!(bench.items.len(), 2);
}

#[test]
fn strided_patterns_come_back_right_over_a_long_episode() {
    let mut bench = Bench::new(&[config("t", vec![slice(0, -20, None, Some(3))], vec![])]);
    bench.steps(0..3000);
    let expected: Vec<Vec<i32>> =
        (19..3000).map(|now| (now - 19..=now).step_by(3).collect()).collect();
    assert_eq!(bench.values(), expected);
}

#[test]
fn steps_since_applied_survive_the_end_of_an_episode() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![steps_since_applied(2)])]);
    bench.steps(0..3);
    bench.end_episode(true);
    bench.steps(10..13);
    assert_eq!(bench.values(), [[1], [10], [12]]);
}

#[test]
fn patterns_span_episodes_only_if_buffers_are_kept() {
    let mut bench = Bench::new(&[config("t", vec![last(0, -3)], vec![])]);
    bench.steps(0..2);
    bench.end_episode(false);
    bench.steps(10..12);
    assert_eq!(bench.values(), [[0, 1, 10], [1, 10, 11]]);

    let mut bench = Bench::new(&[config("t", vec![last(0, -2)], vec![])]);
    bench.steps(0..2);
    bench.end_episode(true);
    bench.steps(10..12);
    assert_eq!(bench.values(), [[0, 1], [10, 11]]);
}

#[test]
fn parts_of_a_step_are_applied_as_they_come() {
    let mut bench = Bench::new(&[
        config("t", vec![at(0, -1), at(1, -1)], vec![]),
        config("t", vec![at(0, -1)], vec![]),
    ]);
    bench.append(&[Some(0), None], true).unwrap();
    assert!(bench.engine.step_is_open());
    bench.append(&[None, Some(5)], false).unwrap();
    assert!(!bench.engine.step_is_open());
    bench.append(&[Some(1), Some(6)], false).unwrap();
    assert_eq!(bench.taken(), [(1, vec![0]), (0, vec![0, 5]), (0, vec![1, 6]), (1, vec![1])]);
}

#[test]
fn a_pattern_is_retried_in_its_step_only() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1), at(1, -1)], vec![])]);
    bench.append(&[Some(0), None], true).unwrap();
    bench.append(&[None, None], false).unwrap();
    bench.append(&[None, Some(5)], false).unwrap();
    assert_eq!(bench.taken(), []);
    bench.append(&[Some(1), None], true).unwrap();
    bench.append(&[None, Some(6)], true).unwrap();
    bench.append(&[None, None], true).unwrap();
    assert_eq!(bench.taken(), [(0, vec![1, 6])], "once per step");
}

#[test]
fn a_missing_cell_breaks_the_patterns_that_need_it() {
    let mut bench = Bench::new(&[config("t", vec![last(0, -2)], vec![])]);
    for value in [Some(0), None, Some(2), Some(3)] {
        bench.append(&[value], false).unwrap();
    }
    assert_eq!(bench.values(), [[2, 3]]);
}

#[test]
fn a_step_without_values_is_not_counted_but_has_its_place() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![steps_since_applied(2)])]);
    for value in [Some(0), None, Some(2), Some(3)] {
        bench.append(&[value], false).unwrap();
    }
    assert_eq!(bench.values(), [[2]]);

    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![step_index(2)])]);
    for value in [Some(0), None, Some(2), Some(3)] {
        bench.append(&[value], false).unwrap();
    }
    assert_eq!(bench.values(), [[2]]);
}

#[test]
fn the_step_index_restarts_with_every_episode() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![step_index_modulo(2, 1)])]);
    bench.steps(0..4);
    bench.end_episode(false);
    bench.steps(10..13);
    assert_eq!(bench.values(), [[1], [3], [11]]);
}

#[test]
fn the_end_of_an_episode_is_a_condition_at_its_last_step() {
    let mut bench = Bench::new(&[
        config("t", vec![at(0, -1)], vec![is_end_episode()]),
        config("t", vec![last(0, -2)], vec![]),
    ]);
    bench.steps(0..3);
    bench.end_episode(false);
    bench.end_episode(false);
    assert_eq!(
        bench.taken(),
        [(1, vec![0, 1]), (1, vec![1, 2]), (0, vec![2])],
        "a second end without new steps makes nothing"
    );
    bench.end_episode(true);
    bench.end_episode(true);
    bench.steps(5..6);
    bench.end_episode(true);
    assert_eq!(bench.taken(), [(0, vec![5])]);
}

#[test]
fn the_end_of_an_episode_closes_an_open_step() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![is_end_episode()])]);
    for clear_buffers in [true, false] {
        bench.append(&[Some(1)], true).unwrap();
        bench.end_episode(clear_buffers);
        assert!(!bench.engine.step_is_open());
        bench.append(&[Some(2)], true).unwrap();
        bench.end_episode(clear_buffers);
        assert_eq!(bench.values(), [[1], [2]]);
    }
}

#[test]
fn an_item_that_is_not_taken_is_offered_again() {
    let mut bench =
        Bench::new(&[config("t", vec![at(0, -1)], vec![]), config("t", vec![at(0, -1)], vec![])]);
    let one = 1i32.to_le_bytes();
    let mut offered = 0;
    let result = bench.engine.append(vec![Some(int32(&one))], true, &mut |item| {
        offered += 1;
        if item.config == 1 { Err(Error::unavailable("full")) } else { Ok(()) }
    });
    assert_eq!((result.unwrap_err().message(), offered), ("full", 2));
    bench.append(&[None], false).unwrap();
    assert_eq!(bench.taken(), [(1, vec![1])]);
}

#[test]
fn episodes_of_a_dataset() {
    let run = |configs: Configs| {
        let engine = PatternEngine::new(configs);
        let mut bench = Bench { engine, items: Vec::new() };
        for value in 0..8 {
            bench.steps([value]);
            if value % 4 == 3 {
                bench.end_episode(true);
            }
        }
        bench.values()
    };
    let configs = |protos: &[StructuredWriterConfig]| Configs::new(protos).unwrap();
    let triple = || config("t", vec![last(0, -3)], vec![]);
    let single = |conditions| config("t", vec![last(0, -1)], conditions);
    let mut shared = configs(&[triple(), single(vec![])]);
    shared.configs[1].require_buffer_length(3);
    assert_eq!(
        run(shared),
        [
            vec![0, 1, 2],
            vec![2],
            vec![1, 2, 3],
            vec![3],
            vec![4, 5, 6],
            vec![6],
            vec![5, 6, 7],
            vec![7]
        ]
    );
    assert_eq!(
        run(configs(&[single(vec![]), triple()])),
        [
            vec![0],
            vec![1],
            vec![2],
            vec![0, 1, 2],
            vec![3],
            vec![1, 2, 3],
            vec![4],
            vec![5],
            vec![6],
            vec![4, 5, 6],
            vec![7],
            vec![5, 6, 7]
        ]
    );
    assert_eq!(run(configs(&[single(vec![is_end_episode()])])), [[3], [7]]);
    let strided = config("t", vec![slice(0, -4, None, Some(2))], vec![]);
    assert_eq!(run(configs(&[strided])), [[0, 2], [4, 6]]);
}
