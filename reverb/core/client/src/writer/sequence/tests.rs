// SPDX-License-Identifier: Apache-2.0

use reverb_base::ErrorKind;
use reverb_data::column_names::ColumnPath;
use reverb_data::{DType, Signature, TensorSpec};

use super::*;
use crate::writer::testing::FakeServer;

const LABELS: [&str; 2] = ["obs/x", "reward"];

fn sliding(length: usize, stride: usize) -> ItemSteps {
    ItemSteps::Sliding { length, stride }
}

fn episodes(max_length: usize, drop_long: bool) -> ItemSteps {
    ItemSteps::Episode { max_length, drop_long }
}

fn writer_to(
    server: &FakeServer,
    item_steps: ItemSteps,
    batch_size: Option<usize>,
    signatures: Signatures,
) -> Result<SequenceWriter> {
    let tables = vec!["t".to_owned()];
    let options = SequenceOptions { tables, item_steps, batch_size };
    SequenceWriter::new(&server.client(), options, Arc::new(signatures))
}

fn writer(server: &FakeServer, item_steps: ItemSteps, batch_size: Option<usize>) -> SequenceWriter {
    writer_to(server, item_steps, batch_size, FakeServer::tables(&["t"])).unwrap()
}

/// Appends a value for each row, as two columns: `x` of shape `[1]`, `-x` of shape `[]`.
fn append(writer: &SequenceWriter, rows: &[i32], is_last: PerRow<'_, bool>) -> Result<usize> {
    let labels = LABELS.map(str::to_owned);
    let negative: Vec<i32> = rows.iter().map(|x| -x).collect();
    let x = bytes(rows);
    let reward = bytes(&negative);
    let (x_shape, reward_shape): (&[usize], &[usize]) = match writer.batch_size() {
        None => (&[1], &[]),
        Some(_) => (&[rows.len(), 1], &[rows.len()]),
    };
    let value = |shape, bytes| CellValue::Bytes { dtype: DType::Int32, shape, bytes };
    writer.append(Step {
        labels: Some(&labels),
        values: [value(x_shape, &x), value(reward_shape, &reward)].into_iter().collect(),
        is_last,
        priorities: PerRow::All(2.5),
        removal_priorities: None,
    })
}

const GOES_ON: PerRow<'static, bool> = PerRow::All(false);

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn item(values: &[i32]) -> (String, f64, Vec<Vec<u8>>) {
    let negative: Vec<i32> = values.iter().map(|x| -x).collect();
    ("t".to_owned(), 2.5, vec![bytes(values), bytes(&negative)])
}

#[tokio::test]
async fn windows_begin_at_their_length_and_go_on_by_their_stride() {
    let server = FakeServer::new(true);
    let writer = writer(&server, sliding(3, 2), None);
    let created: Vec<usize> = (0..8).map(|x| append(&writer, &[x], GOES_ON).unwrap()).collect();
    assert_eq!(created, [0, 0, 1, 0, 1, 0, 1, 0]);
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(*server.stored.lock(), [item(&[0, 1, 2]), item(&[2, 3, 4]), item(&[4, 5, 6])]);
}

#[tokio::test]
async fn rows_have_episodes_of_their_own() {
    let server = FakeServer::new(true);
    let writer = writer(&server, sliding(2, 1), Some(2));
    append(&writer, &[0, 100], GOES_ON).unwrap();
    append(&writer, &[1, 101], PerRow::Each(&[true, false])).unwrap();
    assert_eq!(writer.episode_steps(), [0, 2]);
    append(&writer, &[2, 102], GOES_ON).unwrap();
    append(&writer, &[3, 103], GOES_ON).unwrap();
    writer.queue().flush(0, None).await.unwrap();
    let expected = [[0, 1], [100, 101], [101, 102], [2, 3], [102, 103]];
    assert_eq!(*server.stored.lock(), expected.map(|values| item(&values)));
}

#[tokio::test]
async fn episodes_are_written_whole_when_they_end() {
    let server = FakeServer::new(true);
    let writer = writer(&server, episodes(3, false), Some(2));
    append(&writer, &[0, 100], PerRow::Each(&[false, true])).unwrap();
    append(&writer, &[1, 101], GOES_ON).unwrap();
    append(&writer, &[2, 102], PerRow::All(true)).unwrap();
    writer.queue().flush(0, None).await.unwrap();
    let expected = [item(&[100]), item(&[0, 1, 2]), item(&[101, 102])];
    assert_eq!(*server.stored.lock(), expected, "the longest one has just the length allowed");
}

#[tokio::test]
async fn a_long_episode_is_an_error_once_and_then_ignored_to_its_end() {
    let server = FakeServer::new(true);
    let writer = writer(&server, episodes(2, false), Some(2));
    append(&writer, &[0, 100], GOES_ON).unwrap();
    append(&writer, &[1, 101], PerRow::Each(&[false, true])).unwrap();
    let error = append(&writer, &[2, 102], GOES_ON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().starts_with(
        "The episode of row 0 is longer than max_sequence_length = 2 steps. Nothing of it is written"
    ));
    assert_eq!(writer.episode_steps(), [3, 1]);
    assert_eq!(append(&writer, &[3, 103], PerRow::All(true)).unwrap(), 1);
    assert_eq!(append(&writer, &[4, 104], PerRow::All(true)).unwrap(), 2);
    writer.queue().flush(0, None).await.unwrap();
    let expected = [item(&[100, 101]), item(&[102, 103]), item(&[4]), item(&[104])];
    assert_eq!(*server.stored.lock(), expected, "the other row missed nothing");
    assert_eq!(writer.num_dropped_episodes(), 1);
}

#[tokio::test]
async fn long_episodes_are_dropped_if_that_was_asked_for() {
    let server = FakeServer::new(true);
    let writer = writer(&server, episodes(1, true), None);
    assert_eq!(append(&writer, &[0], GOES_ON).unwrap(), 0);
    assert_eq!(append(&writer, &[1], PerRow::All(true)).unwrap(), 0, "too long with its last step");
    assert_eq!(append(&writer, &[2], PerRow::All(true)).unwrap(), 1);
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(*server.stored.lock(), [item(&[2])]);
    assert_eq!(writer.num_dropped_episodes(), 1);
}

#[tokio::test]
async fn a_step_that_does_not_fit_changes_nothing() {
    let server = FakeServer::new(true);
    let writer = writer(&server, sliding(2, 1), Some(2));
    append(&writer, &[0, 100], GOES_ON).unwrap();
    let error = append(&writer, &[1, 101, 201], GOES_ON).unwrap_err();
    assert!(error.message().starts_with(
        "Column obs/x must have shape [batch_size, ...] with batch_size = 2, got shape [3,1]"
    ));
    assert!(append(&writer, &[1, 101], PerRow::Each(&[true])).is_err());
    let labels = LABELS.map(str::to_owned);
    let x = bytes(&[1, 101]);
    let value = |shape: &'static [usize], dtype| CellValue::Bytes { dtype, shape, bytes: &x };
    let try_step = |labels, first, second, priority: &[f64]| {
        writer.append(Step {
            labels,
            values: [first, second].into_iter().collect(),
            is_last: PerRow::All(true),
            priorities: PerRow::Each(priority),
            removal_priorities: None,
        })
    };
    let good = || (value(&[2, 1], DType::Int32), value(&[2], DType::Int32));
    let other_type = value(&[2], DType::Float32);
    let error = try_step(None, good().0, other_type, &[1.0, 1.0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SignatureMismatch);
    assert!(error.message().contains(
        "column reward must have dtype int32 and shape [2], got dtype float and shape [2]"
    ));
    let error = try_step(Some(&labels), good().0, good().1, &[1.0, f64::NAN]).unwrap_err();
    assert_eq!(
        error.message(),
        "priorities must be numbers, got NaN for row 1. Nothing was appended."
    );
    let swapped = ["reward".to_owned(), "obs/x".to_owned()];
    let error = try_step(Some(&swapped), good().0, good().1, &[1.0, 1.0]).unwrap_err();
    assert!(error.message().contains("the same columns in another order"));
    assert_eq!(writer.episode_steps(), [1, 1]);
    append(&writer, &[1, 101], GOES_ON).unwrap();
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(*server.stored.lock(), [item(&[0, 1]), item(&[100, 101])]);
}

fn signed(shape: &[Option<usize>]) -> Signatures {
    let spec = |name: &str, shape: &[Option<usize>]| {
        TensorSpec::new(ColumnPath::from_label(name), "", DType::Int32, Some(shape.to_vec()))
    };
    let signature = Signature(vec![spec("obs/x", shape), spec("reward", &shape[..1])]);
    Signatures::from([("t".to_owned(), Some(Arc::new(signature)))])
}

#[tokio::test]
async fn the_first_step_is_compared_with_the_signatures() {
    let server = FakeServer::new(true);
    let wrong = writer_to(&server, sliding(2, 1), None, signed(&[Some(3), Some(1)])).unwrap();
    for _ in 0..2 {
        let error = append(&wrong, &[0], GOES_ON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SignatureMismatch);
        assert!(error.message().contains(
            "column obs/x must have dtype int32 and shape [3,1], got dtype int32 and shape [2,1]"
        ));
        assert!(wrong.columns().is_empty());
    }
    let right = writer_to(&server, sliding(2, 1), None, signed(&[None, Some(1)])).unwrap();
    append(&right, &[0], GOES_ON).unwrap();
    assert_eq!(right.columns().len(), 2);
}

#[tokio::test]
async fn the_length_of_an_episode_is_compared_when_it_ends() {
    let server = FakeServer::new(true);
    let writer = writer_to(&server, episodes(9, false), None, signed(&[Some(2), Some(1)])).unwrap();
    let error = append(&writer, &[0], PerRow::All(true)).unwrap_err();
    assert!(error.message().starts_with("An episode of 1 step(s) does not fit. Nothing was"));
    append(&writer, &[0], GOES_ON).unwrap();
    append(&writer, &[1], PerRow::All(true)).unwrap();
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(*server.stored.lock(), [item(&[0, 1])]);
}

#[tokio::test]
async fn forgotten_episodes_leave_no_item() {
    let server = FakeServer::new(true);
    let writer = writer(&server, sliding(2, 1), Some(2));
    append(&writer, &[0, 100], GOES_ON).unwrap();
    writer.end_episode(PerRow::Each(&[true, false])).unwrap();
    append(&writer, &[1, 101], GOES_ON).unwrap();
    writer.queue().flush(0, None).await.unwrap();
    assert_eq!(*server.stored.lock(), [item(&[100, 101])]);
    assert!(writer.end_episode(PerRow::Each(&[true])).is_err());
}

#[tokio::test]
async fn unknown_tables_and_closed_writers_say_so() {
    let server = FakeServer::new(true);
    let error = writer_to(&server, sliding(2, 1), None, FakeServer::tables(&["a"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
    assert!(error.message().contains("'t'") && error.message().contains("Its tables are: a."));
    let closed = writer(&server, sliding(2, 1), None);
    closed.queue().close();
    let error = append(&closed, &[0], GOES_ON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert_eq!(closed.end_episode(PerRow::All(true)).unwrap_err().kind(), error.kind());
}

#[tokio::test]
async fn every_item_goes_to_every_table() {
    let server = FakeServer::new(true);
    let tables = vec!["a".to_owned(), "b".to_owned()];
    let options = SequenceOptions { tables, item_steps: sliding(1, 1), batch_size: Some(2) };
    let signatures = Arc::new(FakeServer::tables(&["a", "b"]));
    let writer = SequenceWriter::new(&server.client(), options, signatures).unwrap();
    assert_eq!(append(&writer, &[0, 100], GOES_ON).unwrap(), 4);
    writer.queue().flush(0, None).await.unwrap();
    let to = |table: &str, values: &[i32]| (table.to_owned(), 2.5, item(values).2);
    let expected = [to("a", &[0]), to("b", &[0]), to("a", &[100]), to("b", &[100])];
    assert_eq!(*server.stored.lock(), expected);
}
