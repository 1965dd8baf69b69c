// SPDX-License-Identifier: Apache-2.0
//! Storage of chunks of many layouts. Alone in its process, because it fills the intern table.

use reverb_data::{
    Chunk, ChunkBuilder, ChunkLayout, ChunkMaker, DType, SequenceRange, Shape, Tensor, TensorData,
};

/// A payload of one tensor, behind a field that readers skip; each number is another layout.
fn payload(number: u16) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(false);
    let data = TensorData::Bytes(vec![7; 3]);
    builder.push(&Tensor { dtype: DType::UInt8, shape: Shape::from_slice(&[1, 3]), data });
    let tensor = builder.finish(1, SequenceRange::default()).payload().into_owned();
    // Field 31, a varint of two bytes.
    let field = [0xf8, 0x01, number as u8 & 0x7f | 0x80, (number >> 7) as u8 & 0x7f];
    [&field[..], &tensor].concat()
}

fn make(maker: &mut ChunkMaker, payload: &[u8]) -> Chunk {
    maker.make(2, SequenceRange::default(), false, payload)
}

#[test]
fn chunks_keep_their_values_alone_while_there_is_room_for_layouts() {
    let is_kept = |chunk: &Chunk| chunk.stored() == [7, 7, 7];
    let chunks: Vec<(Vec<u8>, Chunk)> = (0..10_000)
        .map(|number| {
            let payload = payload(number);
            let chunk = make(&mut ChunkMaker::default(), &payload);
            (payload, chunk)
        })
        .collect();
    let count = chunks.iter().filter(|(_, chunk)| is_kept(chunk)).count();
    assert!((2000..=4096).contains(&count), "{count} were kept");
    let mut maker = ChunkMaker::default();
    for (payload, chunk) in &chunks {
        assert_eq!(chunk.payload(), &payload[..]);
        // Known ones stay known. A stream without repetitions learns little.
        assert!(is_kept(chunk) || !is_kept(&make(&mut maker, payload)));
    }

    // The others are stored whole, and serve as templates all the same.
    let (_, whole) = chunks.iter().find(|(_, chunk)| !is_kept(chunk)).unwrap();
    assert_eq!(whole.stored(), &whole.payload()[..]);
    let layout = ChunkLayout::for_more(whole).unwrap();
    assert!(layout.matches(whole));
    let again = layout.chunk(3, whole.range(), &layout.blank(whole));
    assert_eq!((again.key(), again.payload()), (3, whole.payload()));
}
