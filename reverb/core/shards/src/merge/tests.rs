// SPDX-License-Identifier: Apache-2.0
//! Every merge with a group of two shards, whose answers have a value in every field.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MessageDescriptor, MethodDescriptor, Value,
};
use reverb_wire::DESCRIPTORS;
use reverb_wire::calls::{InGroup, Repeat, SMALL_CALLS};
use reverb_wire::generated::reverb::{StatusResponse, UpdatePrioritiesResponse};
use reverb_wire::shard::{Shard, TransferSink, WatchStream};
use reverb_wire::transport::{
    Hold, HoldRequest, InsertStream, SampleStream, ScanOptions, ScanStream, Transport,
};
use tokio::runtime::Handle;

use super::*;
use crate::address::GroupAddress;
use crate::member::{Connect, Member, MemberConfig, ShardConnection};
use crate::slot_map::SlotMap;

/// Value of all numbers: each of two shards can have a part of it.
const NUMBER: i32 = 4;
/// Value of all texts: the name of a capability, because unknown ones are dropped.
const TEXT: &str = "windows";
/// Numbers of a group's status that are not sums, but the same at all shards, or the oldest, the
/// latest or the longest one.
const NOT_SUMS: [&str; 24] = [
    "at_ns",
    "blocked_s",
    "failing_since_ns",
    "first_bound",
    "first_limit_bytes",
    "insert_blocked",
    "interval_s",
    "lag_seconds",
    "last_base_at_ns",
    "last_ns",
    "latest_duration_s",
    "latest_pause_ms",
    "latest_saved_at_ns",
    "needed_bytes",
    "now_ns",
    "num_bounds",
    "oldest_wait_s",
    "restored_saved_at_ns",
    "sample_blocked",
    "samples_per_insert",
    "seconds",
    "started_at_ns",
    "synced_at_ns",
    "took_seconds",
];
/// Fields of answers that a group does not have: each shard numbers its commits.
const OF_A_SHARD: [(&str, &str); 1] = [(SyncRequest::PATH, "commit")];

fn method(path: &str) -> MethodDescriptor {
    let messages = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let (service, name) = path[1..].split_once('/').unwrap();
    let service = messages.get_service_by_name(service).unwrap();
    service.methods().find(|method| method.name() == name).unwrap()
}

/// A message with a value in every field, down to messages that are in themselves. None has
/// rollouts: a group refuses their tables.
fn full(
    message: &MessageDescriptor,
    around: &[MessageDescriptor],
    text: &'static str,
) -> DynamicMessage {
    let around = [around, std::slice::from_ref(message)].concat();
    let mut filled = DynamicMessage::new(message.clone());
    for field in message.fields().filter(|field| !field.is_map() && field.name() != "rollouts") {
        let value = match field.kind() {
            Kind::Message(inner) if around.contains(&inner) => continue,
            Kind::Message(inner) => Value::Message(full(&inner, &around, text)),
            Kind::Double => Value::F64(NUMBER.into()),
            Kind::Float => Value::F32(NUMBER as f32),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(NUMBER),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(NUMBER.into()),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(NUMBER as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(NUMBER as u64),
            Kind::Bool => Value::Bool(true),
            Kind::String => Value::String(text.to_owned()),
            Kind::Bytes => Value::Bytes(Bytes::from_static(text.as_bytes())),
            Kind::Enum(_) => Value::EnumNumber(1),
        };
        let value = if field.is_list() { Value::List(vec![value]) } else { value };
        filled.set_field(&field, value);
    }
    filled
}

/// Adds the names of the numbers that are not the sum of two shards.
fn add_other_numbers(message: &DynamicMessage, others: &mut BTreeSet<String>) {
    for (field, value) in message.fields() {
        let values = value.as_list().map_or_else(|| vec![value.clone()], <[Value]>::to_vec);
        for value in values {
            let is_sum = match &value {
                Value::Message(inner) => {
                    add_other_numbers(inner, others);
                    continue;
                }
                Value::I32(it) => *it == 2 * NUMBER,
                Value::I64(it) => *it == i64::from(2 * NUMBER),
                Value::U32(it) => *it == 2 * NUMBER as u32,
                Value::U64(it) => *it == 2 * NUMBER as u64,
                Value::F64(it) => (*it - f64::from(2 * NUMBER)).abs() < 1e-9,
                _ => continue,
            };
            if !is_sum {
                others.insert(field.name().to_owned());
            }
        }
    }
}

/// A shard that gives each small call a full answer.
struct FullShard {
    /// All texts of its answers.
    text: &'static str,
    /// Paths of the calls that it got.
    asked: Mutex<BTreeSet<&'static str>>,
    /// True if it refuses all changes.
    refuses: bool,
}

impl Transport for FullShard {
    fn small_call(&self, call: &'static SmallCall, _: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        self.asked.lock().insert(call.row.path);
        if self.refuses
            && (matches!(call.repeat, Repeat::Change { .. })
                || call.row.path == CheckpointRequest::PATH)
        {
            return Box::pin(async { Err(Error::failed_precondition("it may not.")) });
        }
        let answer = full(&method(call.row.path).output(), &[], self.text).encode_to_vec();
        Box::pin(async { Ok(answer.into()) })
    }

    fn address(&self) -> &'static str {
        "a:1"
    }

    fn is_local(&self) -> bool {
        false
    }

    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        unreachable!("it is no small call")
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        unreachable!("it is no small call")
    }

    fn open_scan<'a>(
        &'a self,
        _: &'a str,
        _: ScanOptions<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        unreachable!("it is no small call")
    }

    fn mutate_priorities<'a>(
        &'a self,
        _: &'a str,
        _: &'a [(u64, f64)],
        _: &'a [u64],
    ) -> BoxFuture<'a, Result<()>> {
        unreachable!("it is no small call")
    }

    fn hold(&self, _: HoldRequest) -> BoxFuture<'_, Result<Box<dyn Hold>>> {
        unreachable!("it is no small call")
    }
}

impl Shard for FullShard {
    fn watch<'a>(&'a self, _: &'a [String]) -> BoxFuture<'a, Result<Box<dyn WatchStream>>> {
        unreachable!("it is no small call")
    }

    fn update_priorities<'a>(
        &'a self,
        _: &'a str,
        _: &'a [(u64, f64)],
        _: &'a [u64],
    ) -> BoxFuture<'a, Result<UpdatePrioritiesResponse>> {
        unreachable!("it is no small call")
    }

    fn open_transfer(&self) -> BoxFuture<'_, Result<Box<dyn TransferSink>>> {
        unreachable!("it is no small call")
    }
}

struct Connection(Arc<FullShard>);

impl ShardConnection for Connection {
    fn shard(&self) -> Result<Arc<dyn Shard>> {
        Ok(Arc::clone(&self.0) as Arc<dyn Shard>)
    }
}

struct NoConnect;

impl Connect for NoConnect {
    fn connect(&self, _: &str, _: Option<u64>) -> Result<Box<dyn ShardConnection>> {
        unreachable!("the view is given")
    }

    fn connect_socket(&self, _: &str) -> Option<Box<dyn ShardConnection>> {
        None
    }
}

fn shards(texts: [&'static str; 2]) -> [Arc<FullShard>; 2] {
    texts.map(|text| Arc::new(FullShard { text, asked: Mutex::default(), refuses: false }))
}

fn view_of(shards: &[Arc<FullShard>]) -> View {
    let member = |(index, shard): (usize, &Arc<FullShard>)| {
        let config = MemberConfig {
            index: index as i32,
            address: format!("a:{index}"),
            weight: 1.0,
            is_draining: false,
            is_coordinator: false,
            server_id: None,
        };
        Arc::new(Member::new(config, Box::new(Connection(Arc::clone(shard))), None))
    };
    View {
        map: None,
        slots: SlotMap::by_position(shards.len()),
        members: shards.iter().enumerate().map(member).collect(),
        samplings: HashMap::new(),
        tables: Vec::new(),
    }
}

#[tokio::test]
async fn every_merge_asks_all_shards_and_answers_in_full() {
    let text = "shards:///a:0,a:1";
    let address = GroupAddress::parse(text).unwrap();
    let group = Group::new(text, address, Box::new(NoConnect), Handle::current());
    for (path, merge) in MERGES {
        let shards = shards([TEXT; 2]);
        let method = method(path);
        let request = full(&method.input(), &[], TEXT).encode_to_vec();
        let merged = merge(&group, &view_of(&shards), request.into()).await;
        let merged = merged.unwrap_or_else(|error| panic!("{path}: {error}"));
        for shard in &shards {
            assert!(shard.asked.lock().contains(path), "{path} does not ask every shard");
        }
        let answer = method.output();
        let merged = DynamicMessage::decode(answer.clone(), merged).unwrap();
        for field in answer.fields() {
            let expected = !OF_A_SHARD.contains(&(path, field.name()));
            assert_eq!(merged.has_field(&field), expected, "{path}: {}", field.name());
        }
    }
}

#[tokio::test]
async fn a_change_that_fails_says_which_shards_did_it() {
    let text = "shards:///a:0,a:1";
    let address = GroupAddress::parse(text).unwrap();
    let group = Group::new(text, address, Box::new(NoConnect), Handle::current());
    let of = |refuses| Arc::new(FullShard { text: TEXT, asked: Mutex::default(), refuses });
    let (one, none) = (view_of(&[of(false), of(true)]), view_of(&[of(true), of(true)]));
    let keys = || DeleteItemsRequest { table: "t".to_owned(), ..Default::default() };
    for (did, in_part, in_vain) in [
        (
            "reset the table",
            ResetRequest::default().merge(&group, &one).await.map(drop),
            ResetRequest::default().merge(&group, &none).await.map(drop),
        ),
        (
            "deleted items (4 in all)",
            keys().merge(&group, &one).await.map(drop),
            keys().merge(&group, &none).await.map(drop),
        ),
        (
            "saved",
            CheckpointRequest {}.merge(&group, &one).await.map(drop),
            CheckpointRequest {}.merge(&group, &none).await.map(drop),
        ),
    ] {
        let [first, second] = [0, 1].map(|at: usize| one.members[at].name());
        let told = in_part.unwrap_err();
        let end = format!("it may not. 1 of 2 shards {did}: {first}; not done: {second}.");
        assert!(told.message().ends_with(&end), "{told}");
        let told = in_vain.unwrap_err();
        let did = did.replace("4 in", "0 in");
        assert!(told.message().ends_with(&format!("it may not. No shard {did}.")), "{told}");
    }
}

#[test]
fn every_small_call_that_is_merged_has_a_merge() {
    let has: BTreeSet<&str> = MERGES.into_iter().map(|(path, _)| path).collect();
    let merged = SMALL_CALLS.into_iter().filter(|call| call.group == InGroup::Merge);
    assert_eq!(has, merged.map(|call| call.row.path).collect());
}

#[tokio::test]
async fn numbers_of_a_group_are_sums_unless_they_are_named() {
    let text = "shards:///a:0,a:1";
    let address = GroupAddress::parse(text).unwrap();
    let group = Group::new(text, address, Box::new(NoConnect), Handle::current());
    let view = view_of(&shards([TEXT; 2]));
    let merged = StatusRequest::default().merge(&group, &view).await.unwrap();
    // These are of one shard each.
    let (shards, streams, security) = (Vec::new(), Vec::new(), None);
    let merged = StatusResponse { shards, streams, security, ..merged }.encode_to_vec();
    let output = method(StatusRequest::PATH).output();
    let status = DynamicMessage::decode(output, merged.as_slice()).unwrap();
    let mut others = BTreeSet::new();
    add_other_numbers(&status, &mut others);
    assert_eq!(others.into_iter().collect::<Vec<_>>(), NOT_SUMS);
}

#[tokio::test]
async fn a_group_can_do_what_all_its_shards_can() {
    let text = "shards:///a:0,a:1";
    let address = GroupAddress::parse(text).unwrap();
    let group = Group::new(text, address, Box::new(NoConnect), Handle::current());
    for (texts, common) in [([TEXT; 2], vec![TEXT]), ([TEXT, "epochs"], vec![])] {
        let info = ServerInfoRequest::default().merge(&group, &view_of(&shards(texts))).await;
        assert_eq!(info.unwrap().capabilities, common);
    }
}
