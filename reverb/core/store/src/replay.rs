// SPDX-License-Identifier: Apache-2.0
//! The state that records give when they are applied in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, UNIX_EPOCH};

use hashbrown::HashMap;
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{Field, Reader};
use reverb_data::{
    Chunk, ChunkMaker, DataFile, Heads, PAYLOAD_ALIGNMENT, Place, Recorded, SequenceRange,
    ShardIdentity,
};

use crate::changes::Note;
use crate::record::{self, DELTA, MAX_NOTES, SPARSE};
use crate::recovered::{RecoveredItem, RecoveredTable};
use crate::recovery::check_not_cancelled;

/// The state so far.
#[derive(Debug)]
pub(crate) struct Replay {
    tables: BTreeMap<u32, Table>,
    /// By id. Items refer to neighbours one after another, so that these lie together.
    chunks: BTreeMap<u64, Known>,
    heads: Vec<Arc<Heads>>,
    heads_by_bytes: HashMap<Vec<u8>, usize>,
    /// Positions in `heads` by their ids.
    heads_by_id: HashMap<u64, usize>,
    maker: ChunkMaker,
    pub(crate) notes: VecDeque<Note>,
    pub(crate) shard: Option<ShardIdentity>,
    /// Above all ids.
    pub(crate) next_id: u64,
    /// Above all numbers of files that a record names.
    pub(crate) next_number: u32,
    /// True after the last record of a base.
    pub(crate) has_ended: bool,
}

#[derive(Debug, Default)]
struct Table {
    settings: Option<Vec<u8>>,
    counters: Option<Vec<u8>>,
    /// In the order of their records, which their chunks have too; `None` for those that are gone.
    items: Vec<Option<Item>>,
    /// Positions in `items` by key.
    positions: HashMap<u64, usize>,
}

#[derive(Debug)]
struct Item {
    key: u64,
    /// The record behind the key: ids and body.
    rest: Box<[u8]>,
    changed: Option<Box<Values>>,
}

/// What was changed of an item since it was recorded.
#[derive(Debug, Default, Clone, Copy)]
struct Values {
    priority: Option<f64>,
    removal_priority: Option<f64>,
    times_sampled: Option<u64>,
}

/// A chunk that was recorded. There are millions of these, so most of it lies outside.
#[derive(Debug)]
enum Known {
    Made(Chunk),
    /// Most of those of a long log are never made.
    OnDisk(Box<OnDisk>),
}

#[derive(Debug, Clone, Copy)]
struct OnDisk {
    head: (u64, SequenceRange, bool),
    heads: usize,
    num_rows: u32,
    file: u32,
    position: u32,
    len: u32,
    crc: u32,
}

impl Table {
    fn reset(&mut self) {
        self.items.clear();
        self.positions.clear();
    }

    fn put(&mut self, item: Item) {
        let at = *self.positions.entry(item.key).or_insert(self.items.len());
        if at == self.items.len() {
            self.items.push(None);
        }
        self.items[at] = Some(item);
    }

    fn remove(&mut self, key: u64) {
        if let Some(at) = self.positions.remove(&key) {
            self.items[at] = None;
        }
    }

    fn get_mut(&mut self, key: u64) -> Option<&mut Item> {
        self.items[*self.positions.get(&key)?].as_mut()
    }
}

/// A data file that items need, and its length.
pub(crate) type Needed = (Arc<DataFile>, u64);

impl Replay {
    pub(crate) fn new() -> Self {
        Self {
            tables: BTreeMap::new(),
            chunks: BTreeMap::new(),
            heads: Vec::new(),
            heads_by_bytes: HashMap::new(),
            heads_by_id: HashMap::new(),
            maker: ChunkMaker::default(),
            notes: VecDeque::new(),
            shard: None,
            next_id: 1,
            next_number: 1,
            has_ended: false,
        }
    }

    /// Applies the records of a frame.
    pub(crate) fn apply(&mut self, records: &[u8]) -> Result<()> {
        let mut reader = Reader::new(records);
        while let Some((kind, field)) = reader.field()? {
            match field {
                _ if kind >= record::FIRST_SKIPPED && kind != record::SHARD => {}
                Field::Bytes(body) => self.apply_record(kind, Reader::new(body))?,
                _ => return Err(Error::data_loss("a record has no length")),
            }
        }
        Ok(())
    }

    fn apply_record(&mut self, kind: u32, mut body: Reader<'_>) -> Result<()> {
        match kind {
            record::HEADS => return self.add_heads(body),
            record::CHUNK | record::SMALL => return self.add_chunk(kind, body),
            record::NOTE => return self.add_note(body),
            record::SHARD => return self.set_shard(body),
            record::END => {
                self.next_id = self.next_id.max(body.varint()?);
                self.has_ended = true;
                return Ok(());
            }
            _ => {}
        }
        let number = small_number(&mut body)?;
        let table = self.tables.entry(number).or_default();
        match kind {
            record::TABLE => {
                (table.settings, table.counters) = (Some(body.rest().to_vec()), None);
            }
            record::COUNTERS => table.counters = Some(body.rest().to_vec()),
            record::RESET => table.reset(),
            record::DELETE => {
                while !body.is_empty() {
                    table.remove(u64::from_le_bytes(array(&mut body)?));
                }
            }
            record::ITEM => {
                let key = u64::from_le_bytes(array(&mut body)?);
                table.put(Item { key, rest: body.rest().into(), changed: None });
            }
            record::PRIORITY | record::REMOVAL | record::TIMES => {
                while !body.is_empty() {
                    let key = u64::from_le_bytes(array(&mut body)?);
                    let mut unknown = Values::default();
                    let known = table.get_mut(key);
                    let values =
                        known.map_or(&mut unknown, |item| item.changed.get_or_insert_default());
                    if kind == record::TIMES {
                        values.times_sampled = Some(body.varint()?);
                        continue;
                    }
                    let value = Some(f64::from_le_bytes(array(&mut body)?));
                    let is_priority = kind == record::PRIORITY;
                    *if is_priority {
                        &mut values.priority
                    } else {
                        &mut values.removal_priority
                    } = value;
                }
            }
            _ => {
                return Err(Error::unimplemented(format!(
                    "a record of the kind {kind} was written by a newer release: use that one"
                )));
            }
        }
        Ok(())
    }

    fn add_heads(&mut self, mut body: Reader<'_>) -> Result<()> {
        let (id, bytes) = (body.varint()?, body.rest());
        self.next_id = self.next_id.max(id.saturating_add(1));
        let known = self.heads_by_bytes.get(bytes).copied();
        let at = known.unwrap_or(self.heads.len());
        if known.is_none() {
            self.heads.push(Heads::parse(bytes)?);
            self.heads_by_bytes.insert(bytes.to_vec(), at);
        }
        self.heads_by_id.insert(id, at);
        Ok(())
    }

    fn add_chunk(&mut self, kind: u32, mut body: Reader<'_>) -> Result<()> {
        let id = body.varint()?;
        let key = u64::from_le_bytes(array(&mut body)?);
        let episode_id = u64::from_le_bytes(array(&mut body)?);
        let start = i32::from_le_bytes(array(&mut body)?);
        let end = i32::from_le_bytes(array(&mut body)?);
        let [flags] = array(&mut body)?;
        let range = SequenceRange { episode_id, start, end, sparse: flags & SPARSE != 0 };
        let delta = flags & DELTA != 0;
        let known = if kind == record::SMALL {
            Known::Made(self.maker.make(key, range, delta, body.rest()))
        } else {
            let heads = self.heads_by_id.get(&body.varint()?).copied();
            let on_disk = OnDisk {
                head: (key, range, delta),
                heads: heads.ok_or_else(|| Error::data_loss("a chunk has no heads"))?,
                num_rows: small_number(&mut body)?,
                file: small_number(&mut body)?,
                position: small_number(&mut body)?,
                len: small_number(&mut body)?,
                crc: u32::from_le_bytes(array(&mut body)?),
            };
            self.next_number = self.next_number.max(on_disk.file.saturating_add(1));
            Known::OnDisk(Box::new(on_disk))
        };
        self.next_id = self.next_id.max(id.saturating_add(1));
        self.chunks.insert(id, known);
        Ok(())
    }

    fn add_note(&mut self, mut body: Reader<'_>) -> Result<()> {
        let at = UNIX_EPOCH + Duration::from_nanos(u64::from_le_bytes(array(&mut body)?));
        let length = body.length()?;
        let client = String::from_utf8_lossy(body.take(length)?).into_owned();
        self.notes.push_back(Note { at, client, text: body.rest().to_vec() });
        if self.notes.len() > MAX_NOTES {
            self.notes.pop_front();
        }
        Ok(())
    }

    fn set_shard(&mut self, mut body: Reader<'_>) -> Result<()> {
        let (index, num_shards) = (small_number(&mut body)?, small_number(&mut body)?);
        let group = String::from_utf8_lossy(body.rest()).into_owned();
        self.shard = Some(ShardIdentity { group, index, num_shards });
        Ok(())
    }

    /// The tables with their items. `find` opens the data files that these need; `lose` is told of
    /// items that lack something, by table and key, and says whether the others are of use.
    pub(crate) fn into_tables(
        mut self,
        cancelled: &AtomicBool,
        mut find: impl FnMut(u32) -> Result<Needed>,
        mut lose: impl FnMut(u32, u64, Error) -> Result<()>,
    ) -> Result<Vec<RecoveredTable>> {
        let mut tables = Vec::new();
        for (number, table) in std::mem::take(&mut self.tables) {
            let Some(settings) = table.settings else {
                return Err(Error::data_loss(format!("table {number} has no settings")));
            };
            let mut items = Vec::with_capacity(table.positions.len());
            drop(table.positions);
            for item in table.items.into_iter().flatten() {
                check_not_cancelled(cancelled)?;
                let key = item.key;
                match self.item(item, &mut find) {
                    Ok(item) => items.push(item),
                    Err(error) => lose(number, key, error)?,
                }
            }
            let counters = table.counters;
            tables.push(RecoveredTable { number, settings, counters, items });
        }
        Ok(tables)
    }

    fn item(
        &mut self,
        Item { key, rest, changed }: Item,
        find: &mut impl FnMut(u32) -> Result<Needed>,
    ) -> Result<RecoveredItem> {
        let mut reader = Reader::new(&rest);
        let num_chunks = reader.length()?;
        let mut chunks = Vec::with_capacity(num_chunks.min(64));
        for _ in 0..num_chunks {
            chunks.push(self.make(reader.varint()?, find)?);
        }
        let ids_len = rest.len() - reader.rest().len();
        let mut body = rest.into_vec();
        body.drain(..ids_len);
        let Values { priority, removal_priority, times_sampled } =
            changed.map_or_else(Values::default, |changed| *changed);
        Ok(RecoveredItem { key, body, chunks, priority, removal_priority, times_sampled })
    }

    /// The chunk with an id, which is made once.
    fn make(&mut self, id: u64, find: &mut impl FnMut(u32) -> Result<Needed>) -> Result<Chunk> {
        let known = self.chunks.get_mut(&id);
        let known =
            known.ok_or_else(|| Error::data_loss(format!("chunk {id}, which has no record")))?;
        let large = match known {
            Known::Made(chunk) => return Ok(chunk.clone()),
            Known::OnDisk(large) => **large,
        };
        let (file, file_len) = find(large.file)?;
        let offset = u64::from(large.position) * PAYLOAD_ALIGNMENT;
        if offset + u64::from(large.len) > file_len {
            let path = file.path().display();
            return Err(Error::data_loss(format!("{path}, which ends at {file_len}")));
        }
        let place = Place { file, offset, crc: large.crc };
        let heads = (&self.heads[large.heads], large.num_rows);
        let chunk = Chunk::at_place(large.head, heads, large.len, place);
        let chunk = chunk.ok_or_else(|| Error::data_loss(format!("chunk {id} of a wrong size")))?;
        chunk.set_recorded(Recorded { id, ..Recorded::default() });
        *known = Known::Made(chunk.clone());
        Ok(chunk)
    }
}

fn array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N]> {
    let bytes = reader.take(N)?;
    Ok(bytes.try_into().expect("they are as many"))
}

fn small_number(reader: &mut Reader<'_>) -> Result<u32> {
    let number = reader.varint()?;
    u32::try_from(number).map_err(|_| Error::data_loss(format!("{number} is too large")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_data::{ChunkBuilder, DType, HeadsCache, Tensor, TensorData};

    use super::*;
    use crate::changes::{Changes, TableChanges};
    use crate::frame::{FrameKind, Records};
    use crate::head::FileKind;
    use crate::record::{Recorder, put_end, put_notes, put_shard};

    fn shard() -> ShardIdentity {
        ShardIdentity { group: "replay".to_owned(), index: 2, num_shards: 300 }
    }

    /// Records of each kind.
    fn records() -> Vec<u8> {
        let tensor = |width: usize| {
            let data = TensorData::Bytes((0..width).map(|at| (at * at / 7) as u8).collect());
            Tensor { dtype: DType::UInt8, shape: [1, width].as_slice().into(), data }
        };
        let chunk = |key: u64, width: usize| {
            let mut builder = ChunkBuilder::new(false);
            builder.push(&tensor(width));
            builder.finish(key, SequenceRange::default())
        };
        let large = Chunk::on_disk(&chunk(1, 9000), &mut HeadsCache::default()).unwrap();
        let file = DataFile::new(3, "data".into(), Box::new(NoFile));
        large.set_place(Place { file, offset: 4096, crc: 7 });
        let mut table = TableChanges {
            number: 1,
            settings: Some(vec![1, 2, 3]),
            is_reset: true,
            deleted: vec![8, 9],
            priorities: vec![(5, 0.5)],
            removal_priorities: vec![(5, 1.5)],
            times_sampled: vec![(5, 300)],
            ..TableChanges::default()
        };
        table.items.push(5, [large, chunk(2, 40)], |out| out.extend([7; 20]));
        let note = Note { at: UNIX_EPOCH, client: "me".to_owned(), text: vec![1; 9] };
        let mut records = Records::new();
        let mut recorder = Recorder::new(FileKind::Base, 1);
        let changes = Changes { tables: vec![table], ..Changes::default() };
        recorder.put(&mut records, &changes, &mut 1);
        put_notes(&mut records, [&note]);
        put_shard(&mut records, Some(&shard()));
        put_end(&mut records, 9);
        let len = records.len();
        records.seal(&[0; 16], FrameKind::Part, 1, 1, 1)[64..64 + len].to_vec()
    }

    #[derive(Debug)]
    struct NoFile;

    impl reverb_data::ReadAt for NoFile {
        fn read_exact_at(&self, _bytes: &mut [u8], _offset: u64) -> std::io::Result<()> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    fn replay(records: &[u8]) -> Result<Vec<RecoveredTable>> {
        let mut replay = Replay::new();
        replay.apply(records)?;
        let file = |number| DataFile::new(number, "data".into(), Box::new(NoFile));
        let find = |number| Ok((file(number), 1 << 20));
        replay.into_tables(&AtomicBool::new(false), find, |_, _, error| Err(error))
    }

    #[test]
    fn records_give_what_was_recorded() {
        let mut whole = Replay::new();
        whole.apply(&records()).unwrap();
        assert_eq!(whole.shard, Some(shard()));
        let tables = replay(&records()).unwrap();
        let [RecoveredTable { number: 1, settings, counters: None, items }] = &tables[..] else {
            panic!("{tables:?}")
        };
        let [item] = &items[..] else { panic!("{items:?}") };
        assert_eq!((&settings[..], item.key, &item.body[..]), (&[1, 2, 3][..], 5, &[7; 20][..]));
        assert_eq!((item.priority, item.removal_priority), (Some(0.5), Some(1.5)));
        assert_eq!((item.times_sampled, item.chunks.len()), (Some(300), 2));
        let place = item.chunks[0].place().unwrap();
        assert_eq!((place.file.number(), place.offset, place.crc), (3, 4096, 7));
        let newer = replay(&[0x7a, 1, 5]).unwrap_err();
        assert!(newer.message().contains("newer release"), "{newer}");
        assert!(replay(&[0x8a, 1, 1, 5]).unwrap().is_empty(), "a kind that may be skipped");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        /// With a right checksum, as by a mistake of a writer.
        #[test]
        fn wrong_records_are_an_error(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            end in prop::option::weighted(0.3, any::<prop::sample::Index>()),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = replay(&noise);
            let mut records = records();
            for (at, byte) in edits {
                let at = at.index(records.len());
                records[at] = byte;
            }
            if let Some(end) = end {
                records.truncate(end.index(records.len()));
            }
            if let Ok(tables) = replay(&records) {
                let items = tables.iter().map(|table| table.items.len()).sum::<usize>();
                prop_assert!(items <= records.len());
            }
        }
    }
}
