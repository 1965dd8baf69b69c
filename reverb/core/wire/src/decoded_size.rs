// SPDX-License-Identifier: Apache-2.0
//! Memory of a message when it is decoded, computed from its bytes alone.
//!
//! A message in a list takes two bytes when it is sent and some hundred when it is decoded. So the
//! elements of lists are counted before anything is decoded, by the descriptors of the messages,
//! and a message that would take much more than its bytes is refused.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet, MessageOptions};
use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{Field, Reader};
use reverb_rpc::framing::MessageCheck;

use crate::calls;

/// Memory that a decoded request may take in addition to its encoded size: some ten thousand
/// elements of lists, more than any honest request has.
const FREE_BYTES: usize = 6 << 20;
/// The same for an answer, which describes all tables of a server.
const FREE_ANSWER_BYTES: usize = 64 << 20;

/// Minimum memory of a string with its allocation.
const TEXT_BYTES: usize = 24 + 16;
/// Memory of a map entry, besides its key and value.
const MAP_ENTRY_BYTES: usize = 64;
/// Maximum nesting of messages; prost has the same limit.
const MAX_DEPTH: usize = 100;

static MESSAGES: LazyLock<Messages> = LazyLock::new(Messages::new);

/// Check of the requests of a method.
///
/// `None` for methods whose requests are read without being decoded: their size is checked while
/// they are read.
pub fn of_requests(path: &str) -> Option<Box<dyn MessageCheck>> {
    let is_read = matches!(
        path,
        calls::INSERT_STREAM
            | calls::TRANSFER
            | calls::MUTATE_PRIORITIES
            | calls::UPDATE_PRIORITIES
    );
    let kinds = MESSAGES.methods.get(path).filter(|_| !is_read)?;
    Some(Box::new(Check { index: kinds.0, free_bytes: FREE_BYTES }))
}

/// Check of the answers of a method; `None` as for requests.
pub fn of_answers(path: &str) -> Option<Box<dyn MessageCheck>> {
    let is_read = matches!(path, calls::INSERT_STREAM | calls::SAMPLE_STREAM | calls::SCAN);
    let kinds = MESSAGES.methods.get(path).filter(|_| !is_read)?;
    Some(Box::new(Check { index: kinds.1, free_bytes: FREE_ANSWER_BYTES }))
}

/// Checks that values taking `decoded` bytes may be decoded from a message of `length` bytes.
///
/// # Errors
///
/// `InvalidArgument` if they take much more.
pub(crate) fn check(length: usize, decoded: usize) -> Result<()> {
    check_with(length, decoded, FREE_BYTES)
}

fn check_with(length: usize, decoded: usize, free_bytes: usize) -> Result<()> {
    if decoded <= length.saturating_add(free_bytes) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "A message of {} bytes has lists that take at least {} bytes when they are decoded; nearly all \
         of their elements are empty, or the same. Send fewer of them at once.",
        grouped(length),
        grouped(decoded)
    )))
}

/// Fields of the messages of all services.
#[derive(Debug)]
struct Messages {
    messages: Vec<Fields>,
    /// Indices of the request and the answer of each path.
    methods: HashMap<String, (usize, usize)>,
}

/// Fields of a message type that can take much memory, by number.
type Fields = HashMap<u32, Part>;

/// A field that can take much memory.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A list of numbers; `bytes` is the decoded size of each.
    Numbers { bytes: usize },
    /// A list of strings or bytes.
    Texts,
    /// A message. `bytes` is its size outside of the message that contains it.
    Message { index: usize, bytes: usize },
}

#[derive(Debug)]
struct Check {
    index: usize,
    free_bytes: usize,
}

impl MessageCheck for Check {
    fn check(&self, message: &[u8]) -> Result<()> {
        // A short message cannot take much memory.
        if message.len() < 4096 {
            return Ok(());
        }
        let most = message.len() + self.free_bytes;
        let mut decoded = 0;
        MESSAGES.count(self.index, message, 0, &mut decoded, most);
        check_with(message.len(), decoded, self.free_bytes)
    }
}

impl Messages {
    fn new() -> Self {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS)
            .expect("the descriptors were written together with the code that reads them");
        let declared = Declared::new(&set);
        let sizes = declared.sizes();
        let fields = |message: &&DescriptorProto| {
            let fields = message.field.iter().filter_map(|field| {
                let part = declared.part(field, &sizes)?;
                Some((u32::try_from(field.number()).ok()?, part))
            });
            fields.collect()
        };
        let messages = declared.messages.iter().map(fields).collect();
        let methods = set.file.iter().flat_map(|file| {
            let package = file.package();
            let indices = &declared.indices;
            file.service.iter().flat_map(move |service| {
                service.method.iter().map(move |method| {
                    let path = format!("/{package}.{}/{}", service.name(), method.name());
                    (path, (indices[method.input_type()], indices[method.output_type()]))
                })
            })
        });
        Self { messages, methods: methods.collect() }
    }

    /// Adds the memory of a message's lists, until it exceeds `most`. A malformed message is left
    /// to its decoder.
    fn count(&self, index: usize, message: &[u8], depth: usize, decoded: &mut usize, most: usize) {
        let fields = &self.messages[index];
        let mut reader = Reader::new(message);
        while *decoded <= most
            && let Ok(Some((number, value))) = reader.field()
        {
            match (fields.get(&number), value) {
                (Some(&Part::Numbers { bytes }), Field::Bytes(packed)) => {
                    *decoded += packed.iter().filter(|&&byte| byte < 0x80).count() * bytes;
                }
                (Some(&Part::Numbers { bytes }), _) => *decoded += bytes,
                (Some(Part::Texts), _) => *decoded += TEXT_BYTES,
                (Some(&Part::Message { index, bytes }), Field::Bytes(inner)) => {
                    *decoded += bytes;
                    if depth < MAX_DEPTH {
                        self.count(index, inner, depth + 1, decoded, most);
                    }
                }
                _ => {}
            }
        }
    }
}

struct Declared<'a> {
    messages: Vec<&'a DescriptorProto>,
    /// Indices by full name, which begins with a dot.
    indices: HashMap<String, usize>,
}

impl<'a> Declared<'a> {
    fn new(set: &'a FileDescriptorSet) -> Self {
        let mut declared = Self { messages: Vec::new(), indices: HashMap::new() };
        for file in &set.file {
            let scope = format!(".{}", file.package());
            file.message_type.iter().for_each(|message| declared.add(&scope, message));
        }
        declared
    }

    fn add(&mut self, scope: &str, message: &'a DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        message.nested_type.iter().for_each(|nested| self.add(&name, nested));
        self.indices.insert(name, self.messages.len());
        self.messages.push(message);
    }

    /// Decoded sizes of the message types, without the memory that their fields point to.
    fn sizes(&self) -> Vec<usize> {
        (0..self.messages.len()).map(|index| self.size(index, &mut Vec::new())).collect()
    }

    fn size(&self, index: usize, around: &mut Vec<usize>) -> usize {
        // A message that contains itself is boxed there.
        if around.contains(&index) {
            return 0;
        }
        around.push(index);
        let fields = self.messages[index].field.iter().map(|field| match field.r#type() {
            _ if is_list(field) => 48,
            Type::String | Type::Bytes => 24,
            Type::Message | Type::Group => 8 + self.size(self.indices[field.type_name()], around),
            _ if field.proto3_optional() => 16,
            _ => 8,
        });
        let bytes = fields.sum();
        around.pop();
        bytes
    }

    fn part(&self, field: &FieldDescriptorProto, sizes: &[usize]) -> Option<Part> {
        if is_message(field) {
            let index = self.indices[field.type_name()];
            let is_map =
                self.messages[index].options.as_ref().is_some_and(MessageOptions::map_entry);
            let bytes = match (is_map, is_list(field)) {
                (true, _) => sizes[index] + MAP_ENTRY_BYTES,
                (false, true) => sizes[index],
                // Stored inside its message, unless the type could contain itself.
                (false, false) if self.contains_itself(index) => sizes[index],
                (false, false) => 0,
            };
            return Some(Part::Message { index, bytes });
        }
        if !is_list(field) {
            return None;
        }
        Some(match field.r#type() {
            Type::String | Type::Bytes => Part::Texts,
            Type::Bool => Part::Numbers { bytes: 1 },
            Type::Int32 | Type::Uint32 | Type::Sint32 | Type::Enum => Part::Numbers { bytes: 4 },
            Type::Int64 | Type::Uint64 | Type::Sint64 => Part::Numbers { bytes: 8 },
            // Numbers of a fixed size take the same memory as in the message.
            _ => Part::Numbers { bytes: 0 },
        })
    }

    fn contains_itself(&self, index: usize) -> bool {
        let mut seen = HashSet::new();
        let mut next = vec![index];
        while let Some(at) = next.pop() {
            let fields = self.messages[at].field.iter().filter(|field| is_message(field));
            for inner in fields.map(|field| self.indices[field.type_name()]) {
                if inner == index {
                    return true;
                }
                if seen.insert(inner) {
                    next.push(inner);
                }
            }
        }
        false
    }
}

fn is_list(field: &FieldDescriptorProto) -> bool {
    field.label() == Label::Repeated
}

fn is_message(field: &FieldDescriptorProto) -> bool {
    matches!(field.r#type(), Type::Message | Type::Group)
}

#[cfg(test)]
mod tests {
    use reverb_data::proto_bytes::{put_bytes_field, put_packed_field};
    use reverb_rpc::Message;
    use reverb_rpc::message::body_bytes;

    use super::*;
    use crate::calls::Call as _;
    use crate::generated::reverb::{
        ConfigureTablesRequest, SetDirectoryRequest, Shard, ShardMap, SlotRange, TableChange,
        WatchRequest,
    };

    fn request(path: &str, message: &[u8]) -> Result<()> {
        of_requests(path).expect("it is decoded").check(message)
    }

    #[test]
    fn every_method_has_its_messages() {
        for path in calls::all().map(|row| row.path) {
            assert!(MESSAGES.methods.contains_key(path), "{path}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_types_or_more() {
        let sizes = [
            ("ConfigureTablesRequest", size_of::<ConfigureTablesRequest>()),
            ("TableChange", size_of::<TableChange>()),
            ("ShardMap", size_of::<ShardMap>()),
            ("Shard", size_of::<Shard>()),
            ("SlotRange", size_of::<SlotRange>()),
            ("StatusResponse", size_of::<crate::generated::reverb::StatusResponse>()),
            ("TableStatus", size_of::<crate::generated::reverb::TableStatus>()),
        ];
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
        let declared = Declared::new(&set);
        let all = declared.sizes();
        for (name, bytes) in sizes {
            let counted = all[declared.indices[&format!(".reverb.{name}")]];
            assert!(bytes <= counted && counted <= 2 * bytes, "{name}: {bytes}, {counted}");
        }
    }

    #[test]
    fn empty_elements_by_the_million_are_refused_before_they_are_decoded() {
        let empty = |field: u32, count: usize| {
            let mut message = Vec::new();
            (0..count).for_each(|_| put_bytes_field(&mut message, field, &[]));
            message
        };
        let within = |message: &[u8]| {
            let mut outer = Vec::new();
            put_bytes_field(&mut outer, 1, message);
            outer
        };
        let million = 1 << 20;
        for (path, message) in [
            (ConfigureTablesRequest::PATH, empty(1, million)),
            (calls::WATCH, empty(1, million)),
            (SetDirectoryRequest::PATH, within(&empty(3, million))),
            (SetDirectoryRequest::PATH, within(&empty(4, million))),
            (SetDirectoryRequest::PATH, within(&empty(5, million))),
        ] {
            let error = request(path, &message).unwrap_err();
            assert!(error.message().contains("Send fewer of them at once"), "{path}: {error}");
        }
        let mut numbers = Vec::new();
        put_packed_field(&mut numbers, 1, &vec![1; 16 << 20]);
        let answers = of_answers(calls::UPDATE_PRIORITIES).unwrap();
        assert!(answers.check(&numbers).is_err());
    }

    #[test]
    fn large_honest_messages_pass() {
        let shard = |index| Shard {
            index,
            address: format!("replay-{index}.replay.svc.cluster.local:8000"),
            unix_path: format!("/run/reverb/{index}.socket"),
            ..Shard::default()
        };
        let slots = |owner| SlotRange { first: owner * 4, count: 4, owner, ..SlotRange::default() };
        let map = ShardMap {
            epoch: 1,
            shards: (0..4096).map(shard).collect(),
            slots: (0..4096).map(slots).collect(),
            ..ShardMap::default()
        };
        let change = |at| TableChange {
            table: format!("replay/{at}"),
            max_size: Some(1_000_000),
            ..TableChange::default()
        };
        let names = WatchRequest { tables: (0..10_000).map(|at| format!("table {at}")).collect() };
        let changes = ConfigureTablesRequest {
            changes: (0..4000).map(change).collect(),
            ..ConfigureTablesRequest::default()
        };
        let map = SetDirectoryRequest { map: Some(map), index: 0 };
        for (path, message) in [
            (SetDirectoryRequest::PATH, Message::encode(&map)),
            (calls::WATCH, Message::encode(&names)),
            (ConfigureTablesRequest::PATH, Message::encode(&changes)),
        ] {
            request(path, &body_bytes(message)).unwrap();
        }
    }
}
