// SPDX-License-Identifier: Apache-2.0
//! All calls of a server in one table: paths, rights, limits, and properties of small calls.
//!
//! A *small call* is one request and one answer, without items: each implements [`Call`] by its
//! request, and everything between a program and its handler (`server/service/calls/`) follows its
//! row. Calls that carry items or hold a stream have methods of their own in [`Transport`] and
//! [`Shard`](crate::shard::Shard), and a [`Row`] here. The small ones are in
//! `calls/small_calls.rs`.

mod small_calls;

use std::any::Any;
use std::fmt;

use bytes::{Bytes, BytesMut};
use prost::{DecodeError, Message};
use reverb_base::{Error, Result};
use reverb_data::Right;

use crate::capability::Capability;
use crate::generated::ServerInfoRequest;
use crate::transport::{ServerInfo, Transport};

pub use small_calls::SMALL_CALLS;

/// A method of a server.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Path in HTTP/2.
    pub path: &'static str,
    /// Right that a caller needs before its request is read.
    pub needs: Needs,
    /// Size limit of the request.
    pub limit: RequestLimit,
}

/// Right that a caller needs before its request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No right: everybody may call it, even without a token.
    Nothing,
    /// A right on some table.
    AnyRight,
    /// This right on some table; the answer leaves out the others.
    OnSomeTable(Right),
    /// This right on every table that the request names, which must name one.
    OnTable(Right),
    /// This right on all tables.
    OnAllTables(Right),
}

/// Form used in `docs/howto/securing.md`: `admin` on all tables.
impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("none"),
            Self::AnyRight => f.write_str("any"),
            Self::OnSomeTable(right) => write!(f, "`{}` on a table", right.name()),
            Self::OnTable(right) => write!(f, "`{}` on the table", right.name()),
            Self::OnAllTables(right) => write!(f, "`{}` on all tables", right.name()),
        }
    }
}

/// Right that a small call needs. A call with a right on tables says here how its request names
/// them, so that none can be forgotten. The variants are those of [`Needs`].
#[derive(Debug)]
pub enum SmallCallNeeds<C> {
    /// A right on some table. The handler checks the tables that its answer shows.
    AnyRight,
    /// This right on some table; the answer leaves out the others.
    OnSomeTable(Right),
    /// This right on every table that this function finds in the request.
    OnTable(Right, fn(&C) -> Vec<&str>),
    /// This right on all tables.
    OnAllTables(Right),
}

/// Size limit of a caller's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestLimit {
    /// This many bytes.
    Bytes(usize),
    /// This many bytes, and [`BYTES_A_TABLE`] for each table of the server.
    BytesAndTables(usize),
    /// `Limits.call_bytes`.
    CallBytes,
    /// `Limits.message_bytes`.
    MessageBytes,
}

/// Bytes of a request that names tables, for each table of the server.
pub const BYTES_A_TABLE: usize = 1 << 10;

/// Limit for a request with a name and some numbers.
const SMALL: RequestLimit = RequestLimit::BytesAndTables(64 << 10);
/// Limit for a request with lists of names.
const NAMES: RequestLimit = RequestLimit::BytesAndTables(1 << 20);

/// A small call.
#[derive(Debug)]
pub struct SmallCall {
    /// Path, right and limit.
    pub row: Row,
    /// Condition under which a client repeats it.
    pub repeat: Repeat,
    /// Handling by a group of shards.
    pub group: InGroup,
    /// True if a caller may expect it to reach all servers of an address. The log warns once if it
    /// reached one of several.
    pub reaches_one: bool,
    /// True if headers are sent before the work, which may take long, so that the caller knows that
    /// the server is there.
    pub announced: bool,
    /// End of "The server does not ..." for a server without this call.
    pub missing: Option<&'static str>,
    /// Capabilities without which a server would ignore a part of this request.
    pub asks_for: fn(&Bytes) -> &'static [Capability],
    decode: fn(Bytes) -> Decoded<Box<dyn Any>>,
}

/// Condition under which a client repeats a small call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Never: a lost call may have been carried out.
    Never,
    /// While no server answers; a running one answers at once.
    Question,
    /// While no server answers. The server must answer a question before the change is sent, and
    /// refuses the change after a deadline of its own clock. This field of the request has the
    /// deadline, in nanoseconds since 1970.
    Change {
        /// Number of the field.
        not_after: u32,
    },
}

/// Handling of a small call by a group of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InGroup {
    /// The group asks its shards and merges their answers (`shards/merge/`).
    Merge,
    /// The group answers by itself.
    Own,
    /// The group refuses it: it is meant for one server.
    Refused,
    /// A group of one passes it on. Others refuse it: they have no table that it is about.
    Only,
}

/// A decoded message, or the decoding error.
pub type Decoded<T> = std::result::Result<T, DecodeError>;

/// A small call, implemented by its request.
pub trait Call: Message + Default + Clone + 'static {
    /// Answer.
    type Answer: Message + Default + 'static;
    /// Path in HTTP/2.
    const PATH: &'static str;
    /// Right that the call needs.
    const NEEDS: SmallCallNeeds<Self>;
    /// Row of the call.
    const CALL: &'static SmallCall;

    /// Decodes an answer, by the function of its row, so that the code is in this crate alone.
    fn decode_answer(answer: Bytes) -> Decoded<Self::Answer> {
        let answer = (Self::CALL.decode)(answer)?.downcast();
        Ok(*answer.expect("a row decodes the answer of its call"))
    }

    /// Deadline for beginning, in nanoseconds since 1970; 0 for none.
    fn not_after_ns(&self) -> i64 {
        0
    }
}

/// Stream of items from a writer.
pub const INSERT_STREAM: &str = "/deepmind.reverb.ReverbService/InsertStream";
/// Stream of items to a sampler.
pub const SAMPLE_STREAM: &str = "/deepmind.reverb.ReverbService/SampleStream";
/// Updates priorities and deletes items.
pub const MUTATE_PRIORITIES: &str = "/deepmind.reverb.ReverbService/MutatePriorities";
/// Passes a pointer to dm-reverb's clients in the same process. This server never does.
pub const INITIALIZE_CONNECTION: &str = "/deepmind.reverb.ReverbService/InitializeConnection";

/// Reads a whole table. Not in dm-reverb.
pub const SCAN: &str = "/reverb.ReplayService/Scan";
/// Turns a rate limiter off for a while. Not in dm-reverb.
pub const HOLD_RATE_LIMITER: &str = "/reverb.ReplayService/HoldRateLimiter";
/// Keeps the leases of a client on items with rollouts. Not in dm-reverb.
pub const HOLD_LEASES: &str = "/reverb.ReplayService/HoldLeases";
/// Streams sizes, masses and cursors of tables as they change. Not in dm-reverb.
pub const WATCH: &str = "/reverb.ReplayService/Watch";
/// Updates priorities, and reports missing keys. Not in dm-reverb.
pub const UPDATE_PRIORITIES: &str = "/reverb.ReplayService/UpdatePriorities";
/// Adds items of another shard. Not in dm-reverb.
pub const TRANSFER: &str = "/reverb.ReplayService/Transfer";

/// gRPC's health service.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// gRPC's health service as a stream, until the caller cancels it.
pub const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// gRPC's reflection service.
pub const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// gRPC's reflection service under its older name.
pub const OLD_REFLECTION: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// Calls that carry items or hold a stream, and those of gRPC itself.
const OTHER_CALLS: [(&str, Needs, RequestLimit); 14] = [
    (INSERT_STREAM, Needs::OnTable(Right::Insert), RequestLimit::MessageBytes),
    (SAMPLE_STREAM, Needs::OnTable(Right::Sample), SMALL),
    (MUTATE_PRIORITIES, Needs::OnTable(Right::Update), RequestLimit::CallBytes),
    (INITIALIZE_CONNECTION, Needs::AnyRight, SMALL),
    (SCAN, Needs::OnTable(Right::Sample), SMALL),
    (HOLD_RATE_LIMITER, Needs::OnTable(Right::Admin), SMALL),
    (HOLD_LEASES, Needs::AnyRight, SMALL),
    (WATCH, Needs::AnyRight, NAMES),
    (UPDATE_PRIORITIES, Needs::OnTable(Right::Update), RequestLimit::CallBytes),
    (TRANSFER, Needs::OnTable(Right::Admin), RequestLimit::MessageBytes),
    (HEALTH_CHECK, Needs::Nothing, RequestLimit::Bytes(4 << 10)),
    (HEALTH_WATCH, Needs::Nothing, RequestLimit::Bytes(4 << 10)),
    (REFLECTION, Needs::AnyRight, SMALL),
    (OLD_REFLECTION, Needs::AnyRight, SMALL),
];

/// All calls. A test compares the list with the services of the `.proto` files.
pub fn all() -> impl Iterator<Item = Row> {
    let others = OTHER_CALLS.into_iter().map(|(path, needs, limit)| Row { path, needs, limit });
    SMALL_CALLS.into_iter().map(|call| call.row).chain(others)
}

/// Row of a path. An unknown one needs no right, because its error reveals nothing.
pub fn row(path: &str) -> Row {
    let unknown = Row { path: "", needs: Needs::AnyRight, limit: SMALL };
    all().find(|row| row.path == path).unwrap_or(unknown)
}

/// True for the calls by which operators see and steer a server: the small ones that neither insert
/// nor change items.
pub fn is_for_operators(path: &str) -> bool {
    let is_of_programs =
        |needs| matches!(needs, Needs::OnTable(Right::Update) | Needs::OnSomeTable(Right::Insert));
    SMALL_CALLS.iter().any(|call| call.row.path == path && !is_of_programs(call.row.needs))
}

/// Name of a call: `Reset`, `Health/Check`.
pub fn name(path: &str) -> &'static str {
    match row(path).path {
        HEALTH_CHECK => "Health/Check",
        HEALTH_WATCH => "Health/Watch",
        "" => "an unknown method",
        path => path.rsplit('/').next().unwrap_or(path),
    }
}

/// Largest answer that a client reads, unless the answer has items or lists of keys.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Maximum size of an answer that a client reads; `None` for the limit of all messages.
pub fn answer_limit(path: &str) -> Option<usize> {
    let has_much = matches!(path, SAMPLE_STREAM | SCAN | UPDATE_PRIORITIES);
    (!has_much).then_some(MAX_ANSWER_BYTES)
}

impl SmallCall {
    /// Call of this name: `Reset`.
    pub fn named(name: &str) -> Option<&'static Self> {
        SMALL_CALLS.into_iter().find(|call| call.name() == name)
    }

    /// Name: `Reset`.
    pub fn name(&self) -> &'static str {
        name(self.row.path)
    }

    /// Name in Python programs: `server_info`.
    pub fn method_name(&self) -> String {
        let mut method = String::new();
        for letter in self.name().chars() {
            if letter.is_uppercase() && !method.is_empty() {
                method.push('_');
            }
            method.extend(letter.to_lowercase());
        }
        method
    }

    /// Adds a deadline to a request, by the server's clock; 0 for none.
    pub fn with_deadline(&self, request: &Bytes, not_after_ns: i64) -> Bytes {
        let Repeat::Change { not_after } = self.repeat else { return request.clone() };
        // The last value of a field counts.
        let mut request = BytesMut::from(&request[..]);
        prost::encoding::int64::encode(not_after, &not_after_ns, &mut request);
        request.freeze()
    }

    /// Error for an address of several servers, for a call that is meant for one.
    pub fn refused_by_group(&self, address: &str) -> Error {
        Error::invalid_argument(format!(
            "{address} has several servers, and {} is a call to one of them: make a client of that \
             server.",
            self.method_name()
        ))
    }

    /// Checks the bytes of an answer.
    ///
    /// # Errors
    ///
    /// `Internal` that names the server and the call.
    pub fn check_answer(&self, address: &str, answer: Bytes) -> Result<Bytes> {
        let decoded = (self.decode)(answer.clone());
        decoded.map(|_| answer).map_err(|error| damaged(address, self.name(), &error))
    }
}

pub(crate) fn damaged(address: &str, name: &str, error: &DecodeError) -> Error {
    Error::internal(format!("The answer of the server at {address} to {name} is damaged: {error}."))
}

/// Small calls, typed by their requests.
pub trait Calls {
    /// Makes a call, once.
    fn call<C: Call>(&self, request: C) -> impl Future<Output = Result<C::Answer>> + Send;

    /// Describes all tables.
    fn server_info(&self) -> impl Future<Output = Result<ServerInfo>> + Send;
}

impl<T: Transport + ?Sized> Calls for T {
    async fn call<C: Call>(&self, request: C) -> Result<C::Answer> {
        let request = request.encode_to_vec().into();
        let answer = self.small_call(C::CALL, request).await?;
        C::decode_answer(answer).map_err(|error| damaged(self.address(), C::CALL.name(), &error))
    }

    async fn server_info(&self) -> Result<ServerInfo> {
        self.call(ServerInfoRequest {}).await.map(ServerInfo::from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::generated::ResetRequest;
    use crate::generated::reverb::{
        ConfigureTablesRequest, DrainRequest, SetPausedRequest, StatusRequest,
    };

    fn declared() -> BTreeSet<String> {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
        let declared = set.file.iter().flat_map(|file| {
            file.service.iter().flat_map(|service| {
                let prefix = format!("/{}.{}/", file.package(), service.name());
                service.method.iter().map(move |method| format!("{prefix}{}", method.name()))
            })
        });
        declared.collect()
    }

    #[test]
    fn every_call_of_the_services_has_a_row() {
        assert_eq!(declared(), all().map(|row| row.path.to_owned()).collect());
        assert_eq!(all().count(), declared().len(), "each has one");
        assert_eq!(row("/reverb.ReplayService/New").needs, Needs::AnyRight);
        assert_eq!(name("/reverb.ReplayService/New"), "an unknown method");
    }

    #[test]
    fn operators_have_the_small_calls_that_change_no_items() {
        let others = all().map(|row| row.path).filter(|path| !is_for_operators(path));
        let small = others.filter(|path| SMALL_CALLS.iter().any(|call| call.row.path == *path));
        assert_eq!(small.map(name).collect::<Vec<_>>(), ["DeleteItems", "Sync", "SetVersion"]);
        assert!(!is_for_operators(INSERT_STREAM) && !is_for_operators("/reverb.ReplayService/New"));
    }

    #[test]
    fn a_deadline_replaces_the_one_of_the_request() {
        let request = SetPausedRequest { table: "a".into(), not_after_ns: 1, ..Default::default() };
        let limited = |ns| {
            let bytes = SetPausedRequest::CALL.with_deadline(&request.encode_to_vec().into(), ns);
            SetPausedRequest::decode(bytes).unwrap()
        };
        for ns in [0, 7, i64::MAX, -1] {
            assert_eq!(limited(ns), SetPausedRequest { not_after_ns: ns, ..request.clone() });
            assert_eq!(limited(ns).not_after_ns(), ns);
        }
        let reset = ResetRequest { table: "b".into(), not_after_ns: 0 };
        let bytes = ResetRequest::CALL.with_deadline(&reset.encode_to_vec().into(), 9);
        assert_eq!(ResetRequest::decode(bytes).unwrap().not_after_ns(), 9);
        let bytes = ConfigureTablesRequest::CALL.with_deadline(&Bytes::new(), 9);
        assert_eq!(ConfigureTablesRequest::decode(bytes).unwrap().not_after_ns(), 9);
        let as_it_is = Bytes::from_static(b"x");
        assert_eq!(DrainRequest::CALL.with_deadline(&as_it_is, 9), as_it_is);
    }

    #[test]
    fn a_damaged_answer_is_told() {
        let error = StatusRequest::CALL.check_answer("a:1", Bytes::from_static(b"\xff"));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("The answer of the server at a:1 to Status is damaged"), "{text}");
        assert!(StatusRequest::CALL.check_answer("a:1", Bytes::new()).is_ok());
    }
}
