// SPDX-License-Identifier: Apache-2.0
//! Rights on the tables that a request names. Each request is made from its message's description,
//! so that a field of a new call is tried as well.

use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use reverb_auth::Right;
use reverb_rpc::status::{Code, Status};
use reverb_wire::calls::{self, Call, Needs, SmallCall};
use reverb_wire::generated::reverb as own;

use crate::access::{Encoded, call, headers, serve};
use crate::support::callers::Callers;
use crate::support::*;

/// Calls that name tables and need no right on them, each with the reason.
const EXCEPTIONS: [(&str, &str); 4] = [
    (own::WaitReasonRequest::PATH, "any right on the table is enough; the handler checks it"),
    (own::DirectoryRequest::PATH, "the answer leaves out tables without a right"),
    (calls::WATCH, "a table without a right is not found"),
    (calls::INITIALIZE_CONNECTION, "the server does not use the table"),
];

/// A field of a message, after the fields that lead to its message.
type FieldPath = Vec<FieldDescriptor>;

/// Fields with names of tables, by how they are called.
fn fields_of_tables(message: &MessageDescriptor, around: &[MessageDescriptor]) -> Vec<FieldPath> {
    let around = [around, std::slice::from_ref(message)].concat();
    let mut found = Vec::new();
    for field in message.fields() {
        match field.kind() {
            Kind::String
                if field.name().split('_').any(|word| matches!(word, "table" | "tables")) =>
            {
                found.push(vec![field]);
            }
            Kind::Message(inner) if !around.contains(&inner) => {
                let inner = fields_of_tables(&inner, &around).into_iter();
                found.extend(inner.map(|path| [vec![field.clone()], path].concat()));
            }
            _ => {}
        }
    }
    found
}

/// Appends a message in which this field has this value. Lists grow by it, and the last value of
/// another field counts.
fn put(request: &mut Vec<u8>, path: &[FieldDescriptor], value: &str) {
    let Some((first, others)) = path.split_first() else {
        return request.extend(value.as_bytes());
    };
    let mut inner = Vec::new();
    put(&mut inner, others, value);
    encode_key(first.number(), WireType::LengthDelimited, request);
    encode_varint(inner.len() as u64, request);
    request.extend(inner);
}

fn request_of(values: &[(&FieldPath, &str)]) -> Encoded {
    let mut request = Vec::new();
    for (path, value) in values {
        put(&mut request, path, value);
    }
    Encoded(request)
}

fn outcome(answer: Result<Vec<u8>, Status>) -> (Code, String) {
    answer.map_or_else(|status| (status.code, status.message), |_| (Code::Ok, String::new()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_wants_its_right_on_every_table_of_its_request() {
    let callers = Callers::new(&[
        ("sample", &[Right::Sample], &["a"]),
        ("insert", &[Right::Insert], &["a"]),
        ("update", &[Right::Update], &["a"]),
        ("admin", &[Right::Admin], &["a"]),
    ]);
    let server = serve(vec![table(config("a")), table(config("b"))], &callers.options());
    let raw = RawClient::connect(&server).await;
    let messages = DescriptorPool::decode(reverb_wire::DESCRIPTORS).unwrap();
    let methods = messages.services().flat_map(|service| service.methods().collect::<Vec<_>>());
    let mut exceptions = Vec::new();
    for method in methods {
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let fields = fields_of_tables(&method.input(), &[]);
        let row = calls::row(&path);
        let Needs::OnTable(right) = row.needs else {
            if !fields.is_empty() && !matches!(row.needs, Needs::OnAllTables(_)) {
                exceptions.push(row.path);
            }
            continue;
        };
        assert!(
            !fields.is_empty(),
            "{path} needs a right on tables that its request does not name"
        );
        let token = || headers(&callers, right.name());
        let own: Vec<(&FieldPath, &str)> = fields.iter().map(|field| (field, "a")).collect();
        let (allowed, text) = outcome(call(&raw, &path, token(), &request_of(&own)).await);
        assert_ne!(allowed, Code::PermissionDenied, "{path}: {text}");
        let is_small = SmallCall::named(calls::name(&path)).is_some();
        for field in &fields {
            // Streams read one item after the other, and fail at the first that is malformed.
            let mut others = if is_small { own.clone() } else { Vec::new() };
            others.push((field, "b"));
            let (denied, text) = outcome(call(&raw, &path, token(), &request_of(&others)).await);
            assert_eq!(denied, Code::PermissionDenied, "{path}: {text}");
            assert!(text.contains(" table b"), "{path}: {text}");
        }
    }
    exceptions.sort_unstable();
    let mut known = EXCEPTIONS.map(|(path, _)| path);
    known.sort_unstable();
    assert_eq!(exceptions, known);
}

#[tokio::test]
async fn a_request_must_name_a_table() {
    let server = start(vec![table(config("a"))]);
    let raw = RawClient::connect(&server).await;
    let path = own::ConfigureTablesRequest::PATH;
    let status = call(&raw, path, http::HeaderMap::new(), &()).await.unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    assert_eq!(status.message, "A call of configure_tables must name a table, got none.");
}
