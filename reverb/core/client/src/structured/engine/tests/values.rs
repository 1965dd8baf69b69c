// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn conditions_see_the_value_at_the_current_step() {
    let nodes = || vec![at(0, -1)];
    let mut bench = Bench::new(&[
        config("t", nodes(), vec![data(1, 7)]),
        config("t", nodes(), vec![not(data(1, 7))]),
    ]);
    for (value, data) in [(0, Some(7)), (1, Some(8)), (2, None), (3, Some(7))] {
        bench.append(&[Some(value), data], false).unwrap();
    }
    assert_eq!(bench.taken(), [(0, vec![0]), (1, vec![1]), (0, vec![3])]);
    bench.append(&[Some(4), None], true).unwrap();
    assert_eq!(bench.taken(), []);
    bench.append(&[None, Some(7)], false).unwrap();
    assert_eq!(bench.taken(), [(0, vec![4])], "retried once the value is there");
}

#[test]
fn conditions_on_values_they_cannot_compare_are_false() {
    let nodes = || vec![at(0, -1)];
    let float = 1.0f32.to_le_bytes();
    let one = 1i32.to_le_bytes();
    let pair = [1u8, 1];
    for bad in [
        CellValue::Bytes { dtype: DType::Float32, shape: &[], bytes: &float },
        CellValue::Bytes { dtype: DType::UInt8, shape: &[2], bytes: &pair },
        CellValue::Strings { shape: &[], strings: vec![b"1".to_vec()] },
    ] {
        let mut bench = Bench::new(&[
            config("t", nodes(), vec![data(1, 1)]),
            config("t", nodes(), vec![not(data(1, 1))]),
        ]);
        bench.cells(vec![Some(int32(&one)), Some(bad)], false).unwrap();
        assert_eq!(bench.taken(), []);
    }
    let mut bench = Bench::new(&[config("t", nodes(), vec![data(1, 1)])]);
    let yes = CellValue::Bytes { dtype: DType::Bool, shape: &[1], bytes: &[1] };
    bench.cells(vec![Some(int32(&one)), Some(yes)], false).unwrap();
    assert_eq!(bench.taken().len(), 1, "a bool is as good as 1");
}

#[test]
fn td_errors_become_priorities() {
    let mut with_errors = config("t", vec![at(0, -1), last(1, -2)], vec![]);
    with_errors.priority = Some(td_error_priority(0.9, 1));
    let mut without = config("t", vec![at(0, -1)], vec![]);
    without.priority = Some(td_error_priority(0.9, 1));
    let mut bench = Bench::new(&[with_errors, without]);
    for (value, error) in [(0, 1), (1, -3), (2, 2)] {
        bench.append(&[Some(value), Some(error)], false).unwrap();
    }
    let priorities: Vec<(usize, f64)> = bench.items.iter().map(|item| (item.0, item.1)).collect();
    assert_eq!(priorities.len(), 5);
    for ((config, priority), expected) in
        priorities.into_iter().zip([(1, 0.0), (0, 2.9), (1, 0.0), (0, 2.95), (1, 0.0)])
    {
        assert_eq!(config, expected.0);
        assert!((priority - expected.1).abs() < 1e-12, "{priority}");
    }
}

#[test]
fn td_errors_of_a_strided_node_are_those_of_its_cells() {
    let mut strided = config("t", vec![slice(0, -3, None, Some(2))], vec![]);
    strided.priority = Some(td_error_priority(0.5, 0));
    let mut bench = Bench::new(&[strided]);
    bench.steps([4, 100, -2]);
    assert_eq!(bench.items, [Item(0, 0.5 * 4.0 + 0.5 * 3.0, vec![(vec![4, -2], false)])]);
}

#[test]
fn td_errors_must_be_numbers() {
    let mut proto = config("t", vec![at(0, -1)], vec![]);
    proto.priority = Some(td_error_priority(0.9, 0));
    let half = [0u8, 0x3c];
    for (dtype, shape, bytes, text) in [
        (
            DType::Float16,
            &[][..],
            &half[..],
            "got dtype half and shape [] in column 0 (path=('e',)).",
        ),
        (DType::Int32, &[2], &[0; 8], "got dtype int32 and shape [2] in column 0 (path=('e',))."),
    ] {
        let mut bench = Bench::new(std::slice::from_ref(&proto));
        bench.engine.set_paths(vec!["('e',)".to_owned()]);
        let error =
            bench.cells(vec![Some(CellValue::Bytes { dtype, shape, bytes })], false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().ends_with(text), "{error}");
    }
    for (dtype, bytes) in [
        (DType::Float32, 1.5f32.to_le_bytes().to_vec()),
        (DType::Float64, (-1.5f64).to_le_bytes().to_vec()),
        (DType::Int64, 2i64.to_le_bytes().to_vec()),
    ] {
        let mut engine = PatternEngine::new(Configs::new(std::slice::from_ref(&proto)).unwrap());
        let mut priorities = Vec::new();
        let value = CellValue::Bytes { dtype, shape: &[1], bytes: &bytes };
        let mut take = |item: &PatternItem<'_>| {
            priorities.push(item.priority.value);
            Ok(())
        };
        engine.append(vec![Some(value)], false, &mut take).unwrap();
        assert_eq!(priorities, [if dtype == DType::Int64 { 2.0 } else { 1.5 }]);
    }
}

#[test]
fn leaves_that_nothing_reads_are_dropped() {
    let mut bench = Bench::new(&[config("t", vec![at(2, -1)], vec![])]);
    bench.append(&[Some(0), Some(1), Some(2)], false).unwrap();
    let text = CellValue::Strings { shape: &[], strings: vec![b"any".to_vec()] };
    let five = 5i32.to_le_bytes();
    bench.cells(vec![Some(text), None, Some(int32(&five))], true).unwrap();
    bench.append(&[Some(0), Some(1), None], true).unwrap();
    bench.append(&[Some(0), Some(1), None], false).unwrap();
    assert_eq!(bench.values(), [[2], [5]]);
    assert_eq!(bench.engine.history.num_columns(), 1);
}

#[test]
fn the_number_of_leaves_is_that_of_the_first_step() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![])]);
    bench.append(&[Some(0), None], false).unwrap();
    for leaves in [&[Some(1)][..], &[Some(1), None, None]] {
        let error = bench.append(leaves, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.message(),
            format!("Flattened data has an unexpected length, got {} but wanted 2.", leaves.len())
        );
    }
    bench.append(&[Some(1), Some(2)], false).unwrap();
    assert_eq!(bench.values(), [[0], [1]]);
}

#[test]
fn a_refused_step_changes_nothing() {
    let mut bench = Bench::new(&[config("t", vec![last(3, -2), at(5, -1)], vec![])]);
    bench.engine.set_paths((0..6).map(|i| format!("('leaf', {i})")).collect());
    let one = 1i32.to_le_bytes();
    let two = 2i32.to_le_bytes();
    let step = |a, b| vec![None, None, None, Some(a), None, Some(b)];
    bench.cells(step(int32(&one), int32(&one)), false).unwrap();
    let wrong = |dtype, shape, bytes| CellValue::Bytes { dtype, shape, bytes };
    let error = bench.cells(step(int32(&two), wrong(DType::Float32, &[], &one)), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SignatureMismatch);
    assert_eq!(
        error.message(),
        "Tensor of wrong dtype provided for column 5 (path=('leaf', 5)). Got float but expected int32."
    );
    let error = bench.cells(step(int32(&two), wrong(DType::Int32, &[1], &one)), true).unwrap_err();
    assert_eq!(
        error.message(),
        "Tensor of incompatible shape provided for column 5 (path=('leaf', 5)). Got [1] which is incompatible with []."
    );
    assert!(!bench.engine.step_is_open());
    bench.cells(step(int32(&two), int32(&two)), false).unwrap();
    assert_eq!(bench.values(), [[1, 2, 2]]);
}

#[test]
fn a_leaf_has_one_value_per_step() {
    let mut bench = Bench::new(&[config("t", vec![at(0, -1)], vec![])]);
    bench.append(&[Some(0)], true).unwrap();
    let error = bench.append(&[Some(1)], false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(bench.engine.step_is_open(), "nothing happened");
    bench.append(&[None], false).unwrap();
    bench.append(&[Some(2)], false).unwrap();
    assert_eq!(bench.values(), [[0], [2]]);
}

#[test]
fn long_strings_and_values_pass_through_untouched() {
    let mut engine = PatternEngine::new(
        Configs::new(&[config("t", vec![last(0, -2), at(1, -2)], vec![])]).unwrap(),
    );
    let mut seen = Vec::new();
    for i in 0..3u8 {
        let big = vec![i; 10_000];
        let cells = vec![
            Some(CellValue::Bytes { dtype: DType::UInt8, shape: &[100, 100], bytes: &big }),
            Some(CellValue::Strings { shape: &[2], strings: vec![vec![i], vec![]] }),
        ];
        let mut take = |item: &PatternItem<'_>| {
            seen.push(item.columns.iter().map(|c| c.cells[0].read().unwrap()).collect::<Vec<_>>());
            Ok(())
        };
        engine.append(cells, false, &mut take).unwrap();
    }
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1][0].data, TensorData::Bytes(vec![1; 10_000]));
    assert_eq!(seen[1][0].shape.as_slice(), [100, 100]);
    assert_eq!(seen[1][1].data, TensorData::Strings(vec![vec![1], vec![]]));
}

#[test]
fn cleared_values_are_forgotten() {
    let mut errors = config("t", vec![last(0, -2)], vec![]);
    errors.priority = Some(td_error_priority(0.0, 0));
    let seldom = config("t", vec![last(0, -6)], vec![]);
    let by_data = config("t", vec![at(0, -1)], vec![not(data(1, 0))]);
    let mut bench = Bench::new(&[errors, seldom, by_data]);
    for (error, data) in [(10, 0), (20, 0), (30, 1)] {
        bench.append(&[Some(error), Some(data)], false).unwrap();
    }
    bench.end_episode(true);
    bench.items.clear();
    for (error, data) in [(1, None), (2, None), (3, None), (4, Some(1))] {
        bench.append(&[Some(error), data], false).unwrap();
    }
    let pair = |a: i32, b: i32| Item(0, f64::from(a + b) / 2.0, vec![(vec![a, b], false)]);
    let single = Item(2, 1.0, vec![(vec![4], true)]);
    assert_eq!(bench.items, [pair(1, 2), pair(2, 3), pair(3, 4), single]);
}
