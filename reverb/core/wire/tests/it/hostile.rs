// SPDX-License-Identifier: Apache-2.0
//! Malformed bytes: they decode to errors or nonsense, but never crash.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use prost::Message as _;
use reverb_base::{Error, ErrorKind};
use reverb_data::{
    Chunk, ChunkMaker, ItemValidator, NewItem, Sampled, SampledWindow, SequenceRange, Tensor,
    TrajectoryBuilder,
};
use reverb_rpc::message::body_bytes;
use reverb_wire::codec::insert::{InsertRequest, decode_confirmation, encode_request};
use reverb_wire::codec::sample::{SampleDecoder, SampleEncoder};
use reverb_wire::codec::trajectory_template::TrajectoryTemplates;
use reverb_wire::generated as proto;
use reverb_wire::transport::InsertBatch;

use crate::encoding::{finish, push};

/// State that the ends of a stream keep between messages.
#[derive(Default)]
struct Memory {
    templates: TrajectoryTemplates,
    validator: ItemValidator,
    decoder: SampleDecoder,
}

/// Processes an insert request like a server and then a reader.
fn take_insert(message: Bytes) -> Result<(), Error> {
    take_insert_with(&mut Memory::default(), message).map(|_| ())
}

fn take_insert_with(memory: &mut Memory, message: Bytes) -> Result<Vec<Tensor>, Error> {
    let request = InsertRequest::parse(message)?;
    let mut held = HashMap::new();
    for chunk in request.chunks() {
        let chunk = chunk?.to_stored(request.message(), &mut ChunkMaker::default());
        held.entry(chunk.key()).or_insert(chunk);
    }
    let mut tensors = Vec::new();
    for item in request.items() {
        let find = |key| held.get(&key).ok_or_else(|| Error::internal("missing"));
        let trajectory = memory.templates.read(&item?, find)?;
        memory.validator.validate(&trajectory)?;
        tensors.extend(trajectory.decode()?);
    }
    Ok(tensors)
}

fn take_sample(message: &Bytes) -> Result<(), Error> {
    take_sample_with(&mut Memory::default(), message).1
}

/// The samples, as text, and the result.
fn take_sample_with(memory: &mut Memory, message: &Bytes) -> (Vec<String>, Result<(), Error>) {
    let mut samples = Vec::new();
    let result = memory.decoder.push(message, &mut samples);
    // Received data is checked when it is decoded.
    let text = |sample: &Sampled| format!("{sample:?} {:?}", sample.trajectory.decode());
    (samples.iter().map(text).collect(), result)
}

const CAPTURES: [&[u8]; 5] = [
    include_bytes!("../captures/insert_req_all_dtypes.bin"),
    include_bytes!("../captures/insert_req_delta_dtypes.bin"),
    include_bytes!("../captures/insert_req_traj_batch4.bin"),
    include_bytes!("../captures/insert_req_int32_plain_3.bin"),
    include_bytes!("../captures/sample_resp_int32_plain_3.bin"),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        let _ = take_insert(bytes.clone());
        let _ = take_sample(&bytes);
        let _ = decode_confirmation(&bytes);
    }

    /// Whole messages come before a damaged one, so that it is compared with learned templates.
    #[test]
    fn damaged_messages_are_refused_whatever_came_before(
        which in 0..CAPTURES.len(),
        num_before in 0..4,
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<Index>()),
    ) {
        let whole = Bytes::from_static(CAPTURES[which]);
        let mut damaged = whole.to_vec();
        for (at, value) in changes {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        if let Some(cut) = cut {
            damaged.truncate(cut.index(damaged.len()));
        }
        let damaged = Bytes::from(damaged);
        let mut memory = Memory::default();
        for _ in 0..num_before {
            let _ = take_insert_with(&mut memory, whole.clone());
            let _ = take_sample_with(&mut memory, &whole);
        }
        // Chunks of one message join the samples of the next.
        let mut without = Memory { decoder: SampleDecoder::new(), ..Memory::default() };
        if memory.decoder.is_within_sample() {
            memory.decoder = SampleDecoder::new();
        }
        prop_assert_eq!(
            take_insert_with(&mut memory, damaged.clone()),
            take_insert_with(&mut without, damaged.clone())
        );
        prop_assert_eq!(
            take_sample_with(&mut memory, &damaged),
            take_sample_with(&mut without, &damaged)
        );
    }

    /// The generated code leaves out zeros and orders fields by their numbers, as dm-reverb does.
    #[test]
    fn our_messages_are_those_of_the_generated_code(batches in proptest::collection::vec(any_batch(), 1..4)) {
        let mut templates = TrajectoryTemplates::default();
        let mut encoder = SampleEncoder::new();
        for batch in batches {
            // Protobuf leaves an empty payload out.
            prop_assume!(batch.chunks.iter().all(|chunk| !chunk.payload().is_empty()));
            let written = body_bytes(encode_request(&batch, &mut templates, None));
            let message = proto::InsertStreamRequest::decode(written.clone()).unwrap();
            prop_assert_eq!(message.encode_to_vec(), written);
            for item in &batch.items {
                let trajectory = item.trajectory.clone();
                push(&mut encoder, "t", &Sampled {
                    key: item.key,
                    priority: item.priority,
                    times_sampled: item.times_sampled,
                    probability: 0.5,
                    table_size: 3,
                    inserted_at_ns: 1_795_168_492_178_858_450,
                    rate_limited: true,
                    min_probability: 0.0,
                    epoch: 0,
                    removal_priority: None,
                    window: SampledWindow { start: -3, count: 8 },
                    trajectory,
                }, |_| {});
            }
            let Some(message) = finish(&mut encoder) else { continue };
            let written = body_bytes(message);
            let message = proto::SampleStreamResponse::decode(written.clone()).unwrap();
            prop_assert_eq!(message.entries.len(), batch.items.len());
            prop_assert_eq!(message.encode_to_vec(), written);
        }
    }

    /// Scalars may also come more than once; the last one counts.
    #[test]
    fn fields_are_read_in_any_order(
        [item, chunk, info, entry] in any_orders(),
        repeated in proptest::collection::vec((0usize..8, any::<u64>()), 0..3),
    ) {
        use reverb_data::proto_bytes::{put_bytes_field, put_double_field, put_int_field, put_nested, put_varint_field};
        fn in_order(fields: [&Put<'_>; 8], order: &[usize]) -> Vec<u8> {
            let mut out = Vec::new();
            for &field in order {
                fields[field](&mut out);
            }
            out
        }
        let nothing = |_: &mut Vec<u8>| {};
        let slice = |out: &mut Vec<u8>| {
            put_varint_field(out, 1, 7);
            put_int_field(out, 3, 1);
        };
        let mut item = in_order([
            &|out| put_varint_field(out, 1, 1 << 63),
            &|out| put_bytes_field(out, 2, b"table"),
            &|out| put_double_field(out, 5, 0.25),
            &|out| put_int_field(out, 6, -4),
            &|out| put_nested(out, 7, |out| {
                put_int_field(out, 2, 5);
                put_int_field(out, 1, 9);
            }),
            &|out| put_nested(out, 8, |out| put_nested(out, 1, |out| put_nested(out, 1, slice))),
            &|out| put_varint_field(out, 14, 3),
            &nothing,
        ], &item);
        for (field, value) in repeated {
            put_varint_field(&mut item, [1, 6][field % 2], value);
        }
        let chunk = in_order([
            &|out| put_varint_field(out, 1, 7),
            &|out| put_nested(out, 2, |out| {
                put_int_field(out, 3, 6);
                put_varint_field(out, 4, 1);
                put_int_field(out, 2, 5);
                put_varint_field(out, 1, 77);
            }),
            &|out| put_varint_field(out, 4, 1),
            &|out| put_bytes_field(out, 5, &[0x0a, 0]),
            &|out| put_varint_field(out, 6, 1),
            &|out| put_varint_field(out, 7, 99),
            &nothing,
            &nothing,
        ], &chunk);
        let info = in_order([
            &|out| put_bytes_field(out, 1, &item),
            &|out| put_double_field(out, 2, 0.5),
            &|out| put_int_field(out, 3, 1000),
            &|out| put_varint_field(out, 4, 1),
            &|out| put_varint_field(out, 15, 1),
            &nothing,
            &nothing,
            &nothing,
        ], &info);
        let entry = in_order([
            &|out| put_bytes_field(out, 1, &info),
            &|out| put_bytes_field(out, 2, &chunk),
            &|out| put_varint_field(out, 3, 1),
            &nothing, &nothing, &nothing, &nothing, &nothing,
        ], &entry);
        let mut message = Vec::new();
        put_bytes_field(&mut message, 1, &entry);

        let expected = proto::SampleStreamResponse::decode(&message[..]).unwrap().entries.remove(0);
        let mut samples = Vec::new();
        SampleDecoder::new().push(&Bytes::from(message), &mut samples).unwrap();
        let (sample, info) = (&samples[0], expected.info.unwrap());
        let item = info.item.unwrap();
        prop_assert_eq!((sample.key, sample.times_sampled), (item.key, item.times_sampled));
        prop_assert_eq!((sample.priority, sample.probability), (item.priority, info.probability));
        prop_assert_eq!((sample.table_size, sample.rate_limited), (info.table_size, info.rate_limited));
        prop_assert_eq!(sample.inserted_at_ns, 9_000_000_005);
        let (read, expected) = (&sample.trajectory.chunks()[0], &expected.data[0]);
        let range = SequenceRange { episode_id: 77, start: 5, end: 6, sparse: true };
        prop_assert_eq!((read.range(), read.is_delta_encoded()), (range, expected.delta_encoded));
        prop_assert_eq!(&read.payload()[..], &expected.data[..]);
    }

    #[test]
    fn the_generated_code_reads_our_messages(batch in any_batch(), max_wait_ms: Option<u32>) {
        let max_wait = max_wait_ms.map(|ms| Duration::from_millis(u64::from(ms)));
        let body = body_bytes(encode_request(&batch, &mut TrajectoryTemplates::default(), max_wait));
        let message = proto::InsertStreamRequest::decode(body.clone()).unwrap();
        prop_assert_eq!(message.max_wait_ms, max_wait_ms.map(u64::from));
        prop_assert_eq!(InsertRequest::parse(body).unwrap().max_wait(), max_wait);
        prop_assert_eq!(&message.keep_chunk_keys, &batch.keep_chunk_keys);
        prop_assert_eq!(message.chunks.len(), batch.chunks.len());
        for (read, chunk) in message.chunks.iter().zip(&batch.chunks) {
            let range = read.sequence_range.unwrap();
            prop_assert_eq!((read.chunk_key, read.delta_encoded), (chunk.key(), chunk.is_delta_encoded()));
            let (start, end, sparse) = (range.start, range.end, range.sparse);
            let range = SequenceRange { episode_id: range.episode_id, start, end, sparse };
            prop_assert_eq!(range, chunk.range());
            prop_assert_eq!(&read.data[..], &chunk.payload()[..]);
        }
        for (read, item) in message.items.iter().zip(&batch.items) {
            prop_assert_eq!((read.key, read.table.as_str()), (item.key, &*item.table));
            prop_assert_eq!(read.priority.to_bits(), item.priority.to_bits());
            prop_assert_eq!(read.times_sampled, item.times_sampled);
            prop_assert_eq!(read.replaces, item.replaces);
            let columns = &read.flat_trajectory.as_ref().unwrap().columns;
            prop_assert_eq!(columns.len(), item.trajectory.num_columns());
            for (read, column) in columns.iter().zip(item.trajectory.columns()) {
                prop_assert_eq!(read.squeeze, column.squeeze);
                let slices = column.slices().map(|slice| proto::flat_trajectory::ChunkSlice {
                    chunk_key: item.trajectory.chunks()[slice.chunk].key(),
                    offset: slice.offset as i32,
                    length: slice.length as i32,
                    index: slice.tensor as i32,
                    times: 0,
                });
                prop_assert_eq!(&read.chunk_slices, &slices.collect::<Vec<_>>());
            }
        }
    }
}

/// Appends a field.
type Put<'a> = dyn Fn(&mut Vec<u8>) + 'a;

/// The numbers below eight in four orders; half of these are the plain one.
fn any_orders() -> impl Strategy<Value = [Vec<usize>; 4]> {
    let plain = || Just((0..8).collect::<Vec<_>>());
    let any_order = || prop_oneof![plain(), plain().prop_shuffle()];
    [any_order(), any_order(), any_order(), any_order()]
}

prop_compose! {
    fn any_chunk()(
        key in prop_oneof![any::<u64>(), 0u64..200],
        episode_id in prop_oneof![any::<u64>(), 0u64..2],
        start in any::<i32>(),
        end in any::<i32>(),
        flags in any::<(bool, bool)>(),
        // Lengths below and above the sizes from which a payload is written or kept in another way.
        length in prop_oneof![0usize..130, 1900usize..2300, 4000usize..4200],
    ) -> Chunk {
        let range = SequenceRange { episode_id, start, end, sparse: flags.0 };
        Chunk::from_slice(key, range, flags.1, &vec![0x0a; length])
    }
}

prop_compose! {
    fn any_batch()(
        chunks in prop_oneof![
            proptest::collection::vec(any_chunk(), 1), proptest::collection::vec(any_chunk(), 1..5),
        ],
        keys in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<i32>()), 0..5),
        slices in proptest::collection::vec((0usize..5, 0usize..300, 0usize..300, any::<bool>()), 1..8),
        keep_chunk_keys in proptest::collection::vec(any::<u64>(), 0..20),
    ) -> InsertBatch {
        let items = keys.iter().map(|&(key, priority, times_sampled)| {
            let mut builder = TrajectoryBuilder::new();
            for &(which, offset, length, ends) in &slices {
                builder.slice(&chunks[which % chunks.len()], which, offset, length);
                if ends {
                    builder.end_column(length % 2 == 0);
                }
            }
            builder.slice(&chunks[0], 0, 0, 1);
            builder.end_column(false);
            let trajectory = builder.finish().unwrap();
            let priority = f64::from_bits(priority);
            let replaces = key % 2 == 1;
            NewItem { times_sampled, replaces, ..NewItem::new(key, "täble", priority, trajectory) }
        });
        InsertBatch { items: items.collect(), chunks, keep_chunk_keys }
    }
}

#[test]
fn each_kind_of_nonsense_is_an_invalid_argument() {
    let column = |slice| proto::flat_trajectory::Column { chunk_slices: slice, squeeze: false };
    let request = |columns| {
        let item = proto::PrioritizedItem {
            flat_trajectory: Some(proto::FlatTrajectory { columns }),
            ..Default::default()
        };
        let data = Bytes::from_static(include_bytes!("../captures/chunk_int32_plain_3.bin"));
        let mut chunk = proto::ChunkData::decode(data).unwrap();
        chunk.chunk_key = 1;
        let items = vec![item];
        Bytes::from(
            proto::InsertStreamRequest { chunks: vec![chunk], items, ..Default::default() }
                .encode_to_vec(),
        )
    };
    let slice = |offset, length, index| proto::flat_trajectory::ChunkSlice {
        chunk_key: 1,
        offset,
        length,
        index,
        times: 0,
    };
    let repeated = |times| proto::flat_trajectory::ChunkSlice { times, ..slice(0, 1, 0) };
    for good in [slice(0, 3, 0), repeated(1)] {
        assert_eq!(take_insert(request(vec![column(vec![good])])), Ok(()));
    }
    for (columns, what) in [
        (vec![], "must not be empty"),
        (vec![column(vec![])], "must not be empty"),
        (vec![column(vec![slice(0, 1, 0)]), column(vec![])], "must not be empty"),
        (vec![column(vec![slice(-1, 1, 0)])], "offset of a chunk slice must not be negative"),
        (vec![column(vec![slice(0, -1, 0)])], "length of a chunk slice must not be negative"),
        (vec![column(vec![slice(0, 1, -1)])], "index of a chunk slice must not be negative"),
        (vec![column(vec![slice(0, 4, 0)])], "Cannot slice"),
        (vec![column(vec![slice(i32::MAX, i32::MAX, 0)])], "Cannot slice"),
        (vec![column(vec![slice(0, 1, 7)])], "Tensor index 7 is out of range"),
        (vec![column(vec![repeated(2)])], "cannot be repeated, `times` is 2"),
        (vec![column(vec![repeated(65_537)])], "at most 65536, got 65537"),
        (vec![column(vec![repeated(u32::MAX)])], "at most 65536, got 4294967295"),
    ] {
        let error = take_insert(request(columns)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(what), "{error}");
    }
    let two_payloads = [0x0a, 6, 0x2a, 1, b'a', 0x2a, 1, b'b'];
    let error = take_insert(Bytes::copy_from_slice(&two_payloads)).unwrap_err();
    assert!(error.message().contains("a chunk has two payloads"), "{error}");
    let empty_chunks = Bytes::from([0x0a, 0].repeat(70_000));
    let error = InsertRequest::parse(empty_chunks).err().unwrap();
    assert!(error.message().contains("when they are decoded"), "{error}");
    let bad_name = [0x12, 3, 0x12, 1, 0xff];
    let error = take_insert(Bytes::copy_from_slice(&bad_name)).unwrap_err();
    assert!(error.message().contains("not UTF-8"), "{error}");
    let lying = [0x0a, 0xff, 0xff, 0xff, 0xff, 0x07, 1];
    assert_eq!(
        take_insert(Bytes::copy_from_slice(&lying)).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}
