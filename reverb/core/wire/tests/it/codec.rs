// SPDX-License-Identifier: Apache-2.0
//! The hand-written codecs, compared with captured traffic of dm-reverb and with the generated
//! messages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use reverb_base::ErrorKind;
use reverb_data::{
    Chunk, ChunkBuilder, ChunkMaker, ColumnSpan, DType, Draw, ItemPriority, MAX_PRIORITY, NewItem,
    SampleOptions, Sampled, SampledWindow, SelectorConfig, SequenceRange, Shape, Stacking,
    StepWindow, Tensor, TensorData, TrajectoryBuilder, WithinEpoch,
};
use reverb_rpc::message::{Message, body_bytes};
use reverb_wire::codec::chunk::{RawChunk, put_chunk_data};
use reverb_wire::codec::insert::{
    InsertRequest, decode_confirmation, encode_confirmation, encode_request,
};
use reverb_wire::codec::item::{RawItem, Repeats, max_trajectory_bytes};
use reverb_wire::codec::mutate::{Mutation, encode_mutation, parse_mutation};
use reverb_wire::codec::sample::{
    MAX_MESSAGE_BYTES, SAMPLE_BYTES, SampleDecoder, SampleEncoder, options, request,
};
use reverb_wire::codec::trajectory_template::TrajectoryTemplates;
use reverb_wire::convert::rollouts::to_change;
use reverb_wire::convert::signature::flatten_signature;
use reverb_wire::convert::table_config::{from_selector, to_selector};
use reverb_wire::convert::window::to_spans;
use reverb_wire::generated as proto;
use reverb_wire::transport::{InsertBatch, SampleRequest};

use crate::encoding::{finish, push};

macro_rules! capture {
    ($name:literal) => {
        Bytes::from_static(include_bytes!(concat!("../captures/", $name, ".bin")))
    };
}

/// Reads a request like a server, on a stream that holds `held`.
fn read(message: &Bytes, held: &mut HashMap<u64, Chunk>) -> InsertBatch {
    let request = InsertRequest::parse(message.clone()).unwrap();
    let mut chunks = Vec::new();
    for chunk in request.chunks() {
        let chunk = chunk.unwrap().to_stored(request.message(), &mut ChunkMaker::default());
        held.entry(chunk.key()).or_insert_with(|| chunk.clone());
        chunks.push(chunk);
    }
    let items = request.items().map(|item| {
        let item = item.unwrap();
        let trajectory = item.trajectory(|key| Ok(&held[&key])).unwrap();
        trajectory.validate().unwrap();
        NewItem {
            removal_priority: item.removal_priority,
            times_sampled: item.times_sampled,
            replaces: item.replaces,
            change: item.change.map(|change| Box::new(to_change(change).unwrap())),
            ..NewItem::new(item.key, item.table, item.priority, trajectory)
        }
    });
    let items = items.collect();
    let mut keep_chunk_keys = Vec::new();
    request.for_each_kept_chunk(|key| keep_chunk_keys.push(key)).unwrap();
    assert_eq!(keep_chunk_keys.len(), request.num_kept_chunks());
    InsertBatch { chunks, items, keep_chunk_keys }
}

/// Our messages have no size statistics, because readers do not need them.
fn without_sizes(chunk: &mut proto::ChunkData) {
    chunk.data_uncompressed_size = 0;
}

#[test]
fn captured_chunks_are_encoded_byte_for_byte() {
    for bytes in [capture!("chunk_int32_plain_3"), capture!("chunk_int32_delta_3x1")] {
        let chunk = RawChunk::parse(&bytes).unwrap().to_stored(&bytes, &mut ChunkMaker::default());
        let mut written = Vec::new();
        put_chunk_data(&mut written, chunk.key(), &chunk);
        assert_eq!(written, bytes);
    }
}

#[test]
fn captured_insert_requests_are_encoded_byte_for_byte() {
    let mut held = HashMap::new();
    for bytes in [
        capture!("insert_req_int32_plain_3"),
        capture!("insert_req_all_dtypes"),
        capture!("insert_req_delta_dtypes"),
        capture!("insert_req_bfloat16"),
        capture!("insert_req_traj_batch4"),
        capture!("insert_req_traj_seq0"),
        capture!("insert_req_traj_seq1"),
        capture!("insert_req_traj_seq2"),
    ] {
        let batch = read(&bytes, &mut held);
        for item in &batch.items {
            item.trajectory.decode().unwrap();
        }
        let mut expected = proto::InsertStreamRequest::decode(bytes).unwrap();
        expected.chunks.iter_mut().for_each(without_sizes);
        let written = body_bytes(encode_request(&batch, &mut TrajectoryTemplates::default(), None));
        assert_eq!(proto::InsertStreamRequest::decode(written).unwrap(), expected);
    }
}

#[test]
fn captured_values_are_decoded() {
    let batch = read(&capture!("insert_req_int32_plain_3"), &mut HashMap::new());
    let columns = batch.items[0].trajectory.decode().unwrap();
    assert_eq!((columns[0].dtype, columns[0].shape.as_slice()), (DType::Int32, &[3][..]));
    let values: Vec<u8> = [5i32, 7, 4].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(columns[0].data, reverb_data::TensorData::Bytes(values));
}

#[test]
fn a_captured_sample_is_read_and_written() {
    let bytes = capture!("sample_resp_int32_plain_3");
    let mut samples = Vec::new();
    SampleDecoder::new().push(&bytes, &mut samples).unwrap();
    let sample = &samples[0];
    assert_eq!(sample.key, 15_870_799_552_508_530_728);
    assert_eq!((sample.priority, sample.probability, sample.table_size), (1.5, 1.0, 1));
    assert_eq!(sample.inserted_at_ns, 1_795_168_492_178_858_450);
    assert!(!sample.rate_limited);

    let mut encoder = SampleEncoder::new();
    push(&mut encoder, "lifo", sample, |_| panic!("this is no large sample"));
    let written = body_bytes(finish(&mut encoder).unwrap());
    let mut expected = proto::SampleStreamResponse::decode(bytes).unwrap();
    expected.entries[0].data.iter_mut().for_each(without_sizes);
    assert_eq!(proto::SampleStreamResponse::decode(written).unwrap(), expected);
}

#[test]
fn requests_and_confirmations_equal_those_of_dm_reverb() {
    let written = body_bytes(Message::encode(&request(&SampleRequest::new("lifo", 1, None))));
    assert_eq!(written, capture!("sample_req"));
    let bytes = capture!("insert_resp_multi");
    let (keys, _) = decode_confirmation(&bytes).unwrap();
    assert!(keys.len() > 1);
    assert_eq!(body_bytes(encode_confirmation(&keys, &[])), bytes);
    let unpacked = [0x08, 5, 0x08, 6];
    assert_eq!(decode_confirmation(&unpacked).unwrap(), (vec![5, 6], vec![]));
}

#[test]
fn our_extensions_have_field_numbers_that_dm_reverb_skips() {
    let plain = body_bytes(Message::encode(&request(&SampleRequest::new("lifo", 1, None))));
    let stacked = request(&SampleRequest {
        options: SampleOptions::stacked(Stacking { batch_size: 5, position: 2 }),
        ..SampleRequest::new("lifo", 1, None)
    });
    let written = body_bytes(Message::encode(&stacked));
    // Field 1000, a message.
    let mut expected = plain.to_vec();
    expected.extend([0xc2, 0x3e, 4, 0x08, 5, 0x10, 2]);
    assert_eq!(written, expected);
    let expected = SampleOptions::stacked(Stacking { batch_size: 5, position: 2 });
    assert_eq!(options(&stacked, Instant::now()), Ok(expected));
    for within in [WithinEpoch::New, WithinEpoch::UpTo(0), WithinEpoch::UpTo(7)] {
        let expected = SampleOptions { epoch: Some(within), ..SampleOptions::default() };
        let limited =
            request(&SampleRequest { options: expected, ..SampleRequest::new("lifo", 1, None) });
        let written = body_bytes(Message::encode(&limited));
        assert!(written.starts_with(&plain) && written.len() > plain.len());
        assert_eq!(options(&limited, Instant::now()), Ok(expected));
    }
}

#[test]
fn priorities_that_dm_reverb_does_not_know_stand_beside_those_that_it_does() {
    let chunk = Chunk::new(7, SequenceRange::default(), false, Bytes::from_static(b"bytes"));
    let item = |value, removal| {
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&chunk, 0, 0, 1);
        builder.end_column(false);
        let trajectory = builder.finish().unwrap();
        NewItem::new(1, "t", ItemPriority { value, removal }, trajectory)
    };
    let cases = [(MAX_PRIORITY, None), (2.0, Some(0.0)), (MAX_PRIORITY, Some(-3.0)), (4.0, None)];
    let items = cases.map(|(priority, removal)| item(priority, removal)).to_vec();
    let batch = InsertBatch { chunks: vec![chunk.clone()], items, keep_chunk_keys: Vec::new() };
    let message = body_bytes(encode_request(&batch, &mut TrajectoryTemplates::default(), None));
    let request = InsertRequest::parse(message.clone()).unwrap();
    let read: Vec<_> = request
        .items()
        .map(|item| item.map(|item| (item.priority.to_bits(), item.removal_priority)).unwrap())
        .collect();
    assert_eq!(read, cases.map(|(priority, removal)| (priority.to_bits(), removal)));
    let known = proto::InsertStreamRequest::decode(message).unwrap();
    let seen: Vec<_> =
        known.items.iter().map(|item| (item.priority, item.has_max_priority)).collect();
    assert_eq!(seen, [(1.0, true), (2.0, false), (1.0, true), (4.0, false)]);
}

#[test]
fn a_priority_with_the_bits_of_the_largest_one_is_nan_without_the_flag() {
    let item = proto::PrioritizedItem { priority: MAX_PRIORITY, ..Default::default() };
    let encoded = item.encode_to_vec();
    let read = RawItem::parse(&encoded).unwrap().priority;
    assert!(read.is_nan() && read.to_bits() != MAX_PRIORITY.to_bits());
}

#[test]
fn selectors_beyond_dm_reverb_stand_beside_the_nearest_one() {
    let exponent = |draw| SelectorConfig::Prioritized { priority_exponent: 0.5, draw };
    for (config, is_extended) in [
        (SelectorConfig::Fifo, false),
        (SelectorConfig::Uniform, false),
        (exponent(Draw::Independent), false),
        (exponent(Draw::Stratified), true),
        (exponent(Draw::Systematic), true),
        (SelectorConfig::Shuffle { seed: None }, true),
        (SelectorConfig::Recent { expected_age: 2.5 }, true),
        (SelectorConfig::UniformOverSteps, true),
    ] {
        let message = from_selector(config);
        assert_eq!(message.extension.is_some(), is_extended, "{config:?}");
        assert_eq!(to_selector(Some(&message)), Some(config));
        let known = proto::KeyDistributionOptions { extension: None, ..message };
        let nearest = match config {
            SelectorConfig::Prioritized { .. } => exponent(Draw::Independent),
            SelectorConfig::Shuffle { .. }
            | SelectorConfig::Recent { .. }
            | SelectorConfig::UniformOverSteps => SelectorConfig::Uniform,
            other => other,
        };
        assert_eq!(to_selector(Some(&known)), Some(nearest));
    }
}

#[test]
fn a_zero_timeout_does_not_become_infinite() {
    for (timeout, milliseconds) in [
        (None, -1),
        (Some(Duration::ZERO), 1),
        (Some(Duration::from_micros(1500)), 2),
        (Some(Duration::from_secs(3)), 3000),
        (Some(Duration::MAX), i64::MAX),
    ] {
        let sent = request(&SampleRequest::new("t", 1, timeout))
            .rate_limiter_timeout
            .unwrap()
            .milliseconds;
        assert_eq!(sent, milliseconds, "{timeout:?}");
    }
}

#[test]
fn the_signatures_of_a_captured_server_are_flattened() {
    let info = proto::ServerInfoResponse::decode(capture!("serverinfo_resp")).unwrap();
    let mut described: Vec<String> = info
        .table_info
        .iter()
        .filter_map(|table| table.signature.as_ref())
        .map(|signature| flatten_signature(signature).unwrap().describe())
        .collect();
    described.sort();
    described.dedup();
    assert_eq!(described, EXPECTED_SIGNATURES);
}

const EXPECTED_SIGNATURES: [&str; 1] = ["0: Tensor<name: 'a/aa', dtype: int32, shape: [?,3]>, \
    1: Tensor<name: 'b/bb', dtype: float, shape: [?]>, \
    2: Tensor<name: 'c/0', dtype: int64, shape: []>, \
    3: Tensor<name: 'c/1/0', dtype: string, shape: <unknown>>"];

#[test]
fn a_signature_of_anything_else_is_refused() {
    use proto::tensorflow::structured_value::Kind;
    use proto::tensorflow::{DictValue, ListValue, StructuredValue};
    let number = StructuredValue { kind: Some(Kind::Int64Value(1)) };
    let fields = [("a".to_owned(), number)].into();
    let dict = StructuredValue { kind: Some(Kind::DictValue(DictValue { fields })) };
    let error = flatten_signature(&dict).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("at 'a'"), "{error}");

    let mut deep = StructuredValue { kind: None };
    for _ in 0..1000 {
        deep = StructuredValue { kind: Some(Kind::ListValue(ListValue { values: vec![deep] })) };
    }
    assert!(flatten_signature(&deep).unwrap_err().message().contains("deeper"));
    // Dropping a thousand nested levels works. A million would overflow the stack.
}

fn chunk(key: u64, length: usize) -> Chunk {
    Chunk::from_slice(key, SequenceRange::default(), false, &vec![key as u8; length])
}

fn sample(key: u64, chunks: &[Chunk]) -> Sampled {
    let mut builder = TrajectoryBuilder::new();
    for chunk in chunks {
        builder.slice(chunk, 0, 0, 1);
    }
    builder.end_column(false);
    Sampled {
        key,
        priority: 1.0,
        times_sampled: 1,
        probability: 0.5,
        table_size: 3,
        inserted_at_ns: 5,
        rate_limited: true,
        min_probability: 0.0,
        epoch: 0,
        removal_priority: None,
        window: SampledWindow::default(),
        trajectory: builder.finish().unwrap(),
    }
}

#[test]
fn windows_and_removal_priorities_are_read_as_written() {
    for window in [
        SampledWindow::default(),
        SampledWindow { start: -7, count: 1 },
        SampledWindow { start: i32::MIN, count: u32::MAX },
        SampledWindow { start: 0, count: 70_000 },
    ] {
        let mut encoder = SampleEncoder::new();
        let removal_priority = Some(-0.5);
        let sample = Sampled { window, removal_priority, ..sample(1, &[chunk(1, 10)]) };
        push(&mut encoder, "t", &sample, |_| {});
        let written = body_bytes(finish(&mut encoder).unwrap());
        let message = proto::SampleStreamResponse::decode(written.clone()).unwrap();
        let info = message.entries[0].info.as_ref().unwrap();
        assert_eq!((info.window_start, info.num_windows), (window.start, window.count));
        let mut samples = Vec::new();
        SampleDecoder::new().push(&written, &mut samples).unwrap();
        assert_eq!((samples[0].window, samples[0].removal_priority), (window, removal_priority));
    }
}

#[test]
fn padding_is_one_slice_only_for_readers_that_know_it() {
    let mut steps = ChunkBuilder::new(false);
    let values = TensorData::Bytes(vec![1, 2, 3]);
    steps.push(&Tensor { dtype: DType::UInt8, shape: Shape::from_slice(&[3]), data: values });
    let mut sample = sample(1, &[steps.finish(1, SequenceRange::default())]);
    let mut whole = TrajectoryBuilder::new();
    whole.slice(&sample.trajectory.chunks()[0], 0, 0, 3);
    whole.end_column(false);
    let whole = whole.finish().unwrap();
    let window = StepWindow { length: 60_000, before: 0, pads_left: true, pads_right: true };
    sample.trajectory = TrajectoryBuilder::new().cut(&whole, &[], window, -7, &[]).unwrap();
    let decoded = sample.trajectory.decode().unwrap();
    for (repeats, slices, most) in [(Repeats::AsOne, 3, 200), (Repeats::OneByOne, 59_998, 1 << 20)]
    {
        let mut encoder = SampleEncoder::new();
        encoder.set_repeats(repeats);
        push(&mut encoder, "t", &sample, |_| {});
        let written = body_bytes(finish(&mut encoder).unwrap());
        assert!(written.len() <= most, "{}", written.len());
        let message = proto::SampleStreamResponse::decode(written.clone()).unwrap();
        let info = message.entries[0].info.clone().unwrap();
        let column = &info.item.unwrap().flat_trajectory.unwrap().columns[0];
        assert_eq!(column.chunk_slices.len(), slices);
        let mut samples = Vec::new();
        SampleDecoder::new().push(&written, &mut samples).unwrap();
        assert_eq!(samples[0].trajectory.decode().unwrap(), decoded);
    }
}

#[test]
fn a_message_is_full_of_whatever_it_has() {
    // Nearly all of it are slices, not chunks.
    let many = chunk(1, 1);
    let mut builder = TrajectoryBuilder::new();
    for _ in 0..50_000 {
        builder.slice(&many, 0, 0, 1);
    }
    builder.end_column(false);
    let sample = Sampled { trajectory: builder.finish().unwrap(), ..sample(1, &[many]) };
    let mut encoder = SampleEncoder::new();
    let mut messages = Vec::new();
    for _ in 0..40 {
        push(&mut encoder, "t", &sample, |message| messages.push(body_bytes(message).len()));
    }
    let item = SAMPLE_BYTES + max_trajectory_bytes(&sample.trajectory);
    assert!(messages.len() >= 3 && messages.iter().all(|&bytes| bytes < MAX_MESSAGE_BYTES + item));
}

#[test]
fn the_wait_in_a_request_counts_up_to_the_age_of_the_connection() {
    let (now, minute) = (Instant::now(), Duration::from_secs(60));
    let ago = |time| now.checked_sub(time).unwrap();
    let options_of = |waits_since| SampleOptions { waits_since, ..SampleOptions::default() };
    let sent = |since| {
        let options = options_of(since);
        request(&SampleRequest { options, ..SampleRequest::new("t", 1, None) })
    };
    assert_eq!(sent(None).waited_ms, 0);
    let message = sent(Some(ago(minute)));
    assert!((60_000..600_000).contains(&message.waited_ms), "{}", message.waited_ms);
    let read = options(&message, ago(10 * minute)).unwrap().waits_since.unwrap();
    assert!(read >= ago(minute));
    let hostile = proto::SampleStreamRequest { waited_ms: u64::MAX, ..message };
    for message in [hostile, sent(Some(ago(minute)))] {
        assert_eq!(options(&message, now), Ok(options_of(Some(now))));
    }
}

#[test]
fn a_request_for_a_window_is_read_as_it_was_written() {
    let window = StepWindow { length: 9, before: 4, pads_left: true, pads_right: false };
    let spans =
        [ColumnSpan { column: 0, start: -4, stop: 1 }, ColumnSpan { column: 3, start: 0, stop: 9 }];
    let wanted = SampleOptions { window: Some(window), ..SampleOptions::default() };
    let message = request(&SampleRequest {
        options: wanted,
        spans: &spans,
        ..SampleRequest::new("t", 3, None)
    });
    assert_eq!(options(&message, Instant::now()).unwrap(), wanted);
    assert_eq!(to_spans(message.window.as_ref().unwrap()), spans);
    let too_long = proto::sample_stream_request::Window { length: 70_000, ..Default::default() };
    let message = proto::SampleStreamRequest { window: Some(too_long), ..message };
    let error = options(&message, Instant::now()).unwrap_err();
    assert!(error.message().contains("before + length must be at most 65536"), "{error}");
}

#[test]
fn large_samples_are_split_as_in_dm_reverb() {
    let chunks: Vec<Chunk> = (0..7).map(|key| chunk(key, 614_471)).collect();
    let mut encoder = SampleEncoder::new();
    let mut messages = Vec::new();
    for key in 0..3 {
        push(&mut encoder, "t", &sample(key, &chunks), |message| messages.push(message));
    }
    messages.extend(finish(&mut encoder));
    // For each entry: number of chunks, presence of the information, end of the sample.
    let layout: Vec<Vec<(usize, bool, bool)>> = messages
        .into_iter()
        .map(|message| {
            let message = proto::SampleStreamResponse::decode(body_bytes(message)).unwrap();
            let entries = message.entries.iter();
            entries
                .map(|entry| (entry.data.len(), entry.info.is_some(), entry.end_of_sequence))
                .collect()
        })
        .collect();
    assert_eq!(
        layout,
        [
            vec![(4, true, false)],
            vec![(3, false, true), (1, true, false)],
            vec![(4, false, false)],
            vec![(2, false, true), (2, true, false)],
            vec![(4, false, false)],
            vec![(1, false, true)],
        ]
    );
}

#[test]
fn a_chunk_larger_than_a_message_is_not_split() {
    let mut encoder = SampleEncoder::new();
    let chunks = [chunk(1, 5 << 20)];
    push(&mut encoder, "t", &sample(1, &chunks), |_| panic!("nothing to cut"));
    let mut next = 0;
    push(&mut encoder, "t", &sample(2, &chunks), |_| next += 1);
    assert_eq!(next, 1);
    assert!(chunks[0].payload().len() > MAX_MESSAGE_BYTES);
}

fn entry(info: Option<&Sampled>, data: &[&Chunk], end: bool) -> proto::SampleStreamResponse {
    let info = info.map(|sample| {
        let mut encoder = SampleEncoder::new();
        push(&mut encoder, "t", sample, |_| {});
        let message = body_bytes(finish(&mut encoder).unwrap());
        proto::SampleStreamResponse::decode(message).unwrap().entries[0].info.clone().unwrap()
    });
    let data = data.iter().map(|chunk| proto::ChunkData {
        chunk_key: chunk.key(),
        data: Bytes::copy_from_slice(&chunk.payload()),
        ..Default::default()
    });
    let entry = proto::sample_stream_response::SampleEntry {
        info,
        data: data.collect(),
        end_of_sequence: end,
    };
    proto::SampleStreamResponse { entries: vec![entry], epoch_is_over: false }
}

fn decode(messages: &[proto::SampleStreamResponse]) -> reverb_base::Result<Vec<Sampled>> {
    let mut decoder = SampleDecoder::new();
    let mut samples = Vec::new();
    for message in messages {
        decoder.push(&Bytes::from(message.encode_to_vec()), &mut samples)?;
    }
    Ok(samples)
}

#[test]
fn samples_are_joined_however_a_server_splits_them() {
    let (a, b, extra) = (chunk(1, 10), chunk(2, 5000), chunk(3, 10));
    let wanted = sample(9, &[a.clone(), b.clone()]);
    let keys = |samples: &[Sampled]| {
        let chunks = samples.iter().flat_map(|sample| sample.trajectory.chunks());
        chunks.map(Chunk::key).collect::<Vec<_>>()
    };
    // Chunks in reverse order, information alone, an empty message, an end alone, a surplus chunk.
    let samples = decode(&[
        entry(Some(&wanted), &[], false),
        proto::SampleStreamResponse::default(),
        entry(None, &[&b, &extra], false),
        entry(None, &[&a], false),
        entry(None, &[], true),
    ])
    .unwrap();
    assert_eq!(keys(&samples), [1, 2]);
    assert_eq!(samples[0].trajectory.chunks()[1].payload(), b.payload());

    // The end of one sample and the beginning of the next one in the same message.
    let mut both = entry(None, &[&b], true);
    both.entries.extend(entry(Some(&wanted), &[&a], false).entries);
    let samples =
        decode(&[entry(Some(&wanted), &[&a], false), both, entry(None, &[&b], true)]).unwrap();
    assert_eq!(keys(&samples), [1, 2, 1, 2]);

    // Only the first information counts, and only the first chunk of a key.
    let other = sample(10, std::slice::from_ref(&a));
    let twin = Chunk::from_slice(1, SequenceRange::default(), false, &[9]);
    let samples =
        decode(&[entry(Some(&wanted), &[&a], false), entry(Some(&other), &[&twin, &b], true)])
            .unwrap();
    assert_eq!((samples[0].key, keys(&samples)), (9, vec![1, 2]));
    assert_eq!(samples[0].trajectory.chunks()[0].payload(), a.payload());
}

#[test]
fn a_reader_that_keeps_at_least_what_its_writer_counts_on_finds_every_chunk() {
    // Two chunks of key 3: keys should be random, but nothing enforces it.
    let mut chunks: Vec<Chunk> = (0..20).map(|key| chunk(key, 1000 + 300 * key as usize)).collect();
    chunks.push(Chunk::from_slice(3, SequenceRange::default(), false, &[99; 1900]));
    let wanted: Vec<Sampled> = (0..400usize)
        .map(|at| sample(at as u64, &[&chunks[at * at % 21..], &chunks[..at % 3]].concat()))
        .collect();
    let mut lengths = Vec::new();
    for (writer, reader) in [(0, 0), (3000, 3000), (3000, 20_000), (20_000, 20_000), (0, 9000)] {
        let mut encoder = SampleEncoder::new().with_kept_chunks(writer);
        let mut decoder = SampleDecoder::new().with_kept_chunks(reader);
        let (mut messages, mut samples) = (Vec::new(), Vec::new());
        for sample in &wanted {
            push(&mut encoder, "t", sample, |message| messages.push(message));
        }
        messages.extend(finish(&mut encoder));
        let messages: Vec<Bytes> = messages.into_iter().map(body_bytes).collect();
        lengths.push(messages.iter().map(Bytes::len).sum::<usize>());
        for message in &messages {
            decoder.push(message, &mut samples).unwrap();
        }
        assert!(!decoder.is_within_sample());
        assert_eq!(samples.len(), wanted.len());
        for (sample, wanted) in samples.iter().zip(&wanted) {
            let pairs = sample.trajectory.chunks().iter().zip(wanted.trajectory.chunks());
            assert!(pairs.clone().all(|(got, wanted)| got.payload() == wanted.payload()));
            assert_eq!(pairs.len(), wanted.trajectory.chunks().len());
        }
    }
    assert_eq!(lengths[1], lengths[2], "the writer decides");
    assert!(lengths[3] < lengths[1] && lengths[1] < lengths[0], "{lengths:?}");
}

#[test]
fn samples_that_lack_something_are_errors() {
    let a = chunk(1, 10);
    let wanted = sample(9, &[a.clone(), chunk(2, 10)]);
    let error = decode(&[entry(Some(&wanted), &[&a], true)]).unwrap_err();
    assert_eq!(error.message(), "The server sent a sample without its chunk 2.");
    let error = decode(&[entry(None, &[&a], true)]).unwrap_err();
    assert!(error.message().contains("without the information"), "{error}");
}

#[test]
fn samples_of_many_chunks_find_them_all() {
    let chunks: Vec<Chunk> = (0..100).map(|key| chunk(key, 10)).collect();
    let reversed: Vec<&Chunk> = chunks.iter().rev().collect();
    let samples = decode(&[entry(Some(&sample(1, &chunks)), &reversed, true)]).unwrap();
    assert!(samples[0].trajectory.chunks().iter().map(Chunk::key).eq(0..100));
}

#[test]
fn only_chunks_that_fill_their_message_keep_it_alive() {
    let message = Bytes::from(vec![0; 400_000]);
    let raw = |length: usize| RawChunk {
        key: 1,
        range: SequenceRange::default(),
        delta: false,
        has_deprecated_data: false,
        data: &message[..length],
    };
    let shares =
        |chunk: Chunk| chunk.shared_payload().is_some_and(|data| data.as_ptr() == message.as_ptr());
    let mut maker = ChunkMaker::default();
    assert!(shares(raw(200_000).to_stored(&message, &mut maker)));
    assert!(!shares(raw(190_000).to_stored(&message, &mut maker)));
    assert!(shares(raw(10_000).to_transient(&message)));
    assert!(!shares(raw(1000).to_transient(&message)));
    let small = message.slice(..100_000);
    let raw = RawChunk { data: &small, ..raw(0) };
    assert!(!shares(raw.to_stored(&small, &mut maker)));
}

#[test]
fn descriptors_come_before_their_dependents() {
    let set = include_bytes!("../../proto/descriptors.bin");
    let set = prost_types::FileDescriptorSet::decode(&set[..]).unwrap();
    let mut known: Vec<&str> = Vec::new();
    for file in &set.file {
        assert!(
            file.dependency.iter().all(|name| known.contains(&name.as_str())),
            "{}",
            file.name()
        );
        known.push(file.name());
    }
    assert!(known.contains(&"google/protobuf/timestamp.proto"));
    assert!(known.contains(&"reverb_service.proto"));
}

#[test]
fn a_mutation_is_the_generated_message() {
    let updates = vec![(0, 0.0), (1, 2.5), (u64::MAX, 1.5), (300, f64::NAN), (7, f64::INFINITY)];
    let few: Vec<u64> = vec![0, 127, 128, u64::MAX];
    let many: Vec<u64> = (0..1000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    for (table, updates, deletes) in
        [("", vec![], vec![]), ("replay", updates.clone(), few), ("tafel-\u{e4}", updates, many)]
    {
        let generated = proto::MutatePrioritiesRequest {
            table: table.to_owned(),
            updates: updates
                .iter()
                .map(|&(key, priority)| proto::KeyWithPriority { key, priority })
                .collect(),
            delete_keys: deletes.clone(),
        };
        let message = body_bytes(encode_mutation(table, &updates, &deletes));
        assert_eq!(message, generated.encode_to_vec());
        let parsed = parse_mutation(&message).unwrap();
        assert_eq!((parsed.table.as_str(), &parsed.deletes), (table, &deletes));
        let bits = |all: &[(u64, f64)]| -> Vec<_> {
            all.iter().map(|&(key, priority)| (key, priority.to_bits())).collect()
        };
        assert_eq!(bits(&parsed.updates), bits(&updates));
    }
}

#[test]
fn a_malformed_mutation_is_refused_and_unknown_fields_are_skipped() {
    let parse = |bytes: &[u8]| parse_mutation(&Bytes::copy_from_slice(bytes));
    // Single deletes, as old writers send them, and a field of the future.
    let parsed = parse(&[0x18, 5, 0x18, 6, 0xf8, 0x3e, 1, 0x0a, 1, b't']).unwrap();
    assert_eq!(parsed, Mutation { table: "t".to_owned(), updates: vec![], deletes: vec![5, 6] });
    for bad in [
        &[0x0a, 1, 0xff][..],      // not UTF-8
        &[0x08, 1],                // the table is a number
        &[0x12, 2, 0x08],          // cut short
        &[0x12, 2, 0x10, 1],       // the priority is a varint
        &[0x12, 3, 0x0a, 1, b'x'], // the key is a string
        &[0x1a, 1, 0x80],          // a list that ends in the middle of a key
        &[0x15, 0, 0, 0, 0],       // an update that is four bytes
    ] {
        assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
    }
}
