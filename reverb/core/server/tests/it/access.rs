// SPDX-License-Identifier: Apache-2.0
//! Rights of callers with tokens at a server, and the errors of others.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::callers::Callers;
use crate::support::*;
use http::HeaderMap;
use prost::Message;
use reverb_auth::{Right, new_token};
use reverb_base::ErrorKind;
use reverb_engine::Table;
use reverb_rpc::status::{Code, Status};
use reverb_rpc::target::Loopback;
use reverb_server::{Server, ServerOptions, local_shard};
use reverb_wire::calls;
use reverb_wire::generated as proto;
use reverb_wire::generated::reverb as own;
use reverb_wire::generated::reverb::StatusRequest;
use tokio::runtime::Handle;

pub(crate) fn headers(callers: &Callers, name: &str) -> HeaderMap {
    bearer(callers.token(name))
}

fn bearer(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(
        "authorization".parse().unwrap(),
        format!("Bearer {token}").parse().unwrap(),
    )])
}

pub(crate) fn serve(tables: Vec<Arc<Table>>, options: &ServerOptions) -> Server {
    Server::start(tables, options, &Handle::current()).unwrap()
}

/// The answer to one request, or the status.
pub(crate) async fn call(
    raw: &RawClient,
    path: &str,
    headers: HeaderMap,
    request: &impl Message,
) -> Result<Vec<u8>, Status> {
    let mut stream = raw.open_path(path, headers).await;
    let _ = stream.sender.send(reverb_rpc::Message::encode(request)).await;
    stream.sender.finish();
    match stream.next().await {
        Ok(answer) => Ok(answer.to_vec()),
        Err(status) if status.code == Code::Ok => Ok(Vec::new()),
        Err(status) => Err(status),
    }
}

/// The answer to a request for the tables, or the status.
async fn info(raw: &RawClient, headers: HeaderMap) -> Result<Vec<u8>, Status> {
    call(raw, proto::ServerInfoRequest::PATH, headers, &()).await
}

fn sample_request(table: &str) -> proto::SampleStreamRequest {
    proto::SampleStreamRequest { table: table.to_owned(), num_samples: 1, ..Default::default() }
}

fn insert_request(key: u64, table: &str) -> proto::InsertStreamRequest {
    let chunk = chunk(key, &[1]);
    let item = raw_item(key, table, vec![raw_slice(key, 0, 1)]);
    proto::InsertStreamRequest {
        chunks: vec![raw_chunk(&chunk)],
        items: vec![item],
        ..Default::default()
    }
}

/// Calls for what the server of the next test lacks: a journal, and a table with rollouts.
const LACKED: [&str; 5] = [
    own::SyncRequest::PATH,
    own::TakeRequest::PATH,
    own::SettleRequest::PATH,
    own::FailRolloutRequest::PATH,
    own::SetVersionRequest::PATH,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_wants_its_right() {
    let callers = Callers::new(&[
        ("sampler", &[Right::Sample], &["a"]),
        ("writer", &[Right::Insert], &["a"]),
        ("updater", &[Right::Update], &["a", "b"]),
        ("admin", &[Right::Admin], &["a"]),
        ("root", &[Right::Admin], &["*"]),
    ]);
    let server = serve(vec![table(config("a")), table(config("b"))], &callers.options());
    server.tables()[0].insert(vec![item(1, "a", 1.0, &[chunk(1, &[1])])], &quiet()).unwrap();
    let raw = RawClient::connect(&server).await;
    let everybody = ["sampler", "writer", "updater", "admin", "root"];
    let a = || "a".to_owned();
    let pause = own::SetPausedRequest { table: a(), samples: true, ..Default::default() };
    let change = own::TableChange { table: a(), max_size: Some(10), ..Default::default() };
    let configure =
        own::ConfigureTablesRequest { changes: vec![change], dry_run: true, not_after_ns: 0 };
    let mutate = proto::MutatePrioritiesRequest { table: a(), ..Default::default() };
    let hold = own::HoldRateLimiterRequest { table: a(), count: true };
    let scan = own::ScanRequest { table: a(), ..Default::default() };
    let drain = own::DrainRequest { timeout_s: f64::NAN };
    let keys = Some(own::ItemKeys::default());
    let delete = own::DeleteItemsRequest { table: a(), keys, ..Default::default() };
    let update = own::UpdatePrioritiesRequest { table: a(), ..Default::default() };
    let bounds = own::SetRateLimiterRequest { table: a(), restore: true, ..Default::default() };
    let wait_reason = own::WaitReasonRequest { table: a() };
    let lease = Some(proto::Lease { holder: 1, number: 1 });
    let take = own::TakeRequest { table: a(), num_items: 1, lease, ..Default::default() };
    let settle = own::SettleRequest { table: a(), lease, ..Default::default() };
    let rollout = Some(proto::Rollout::default());
    let fail = own::FailRolloutRequest { table: a(), lease, rollout, ..Default::default() };
    let version = own::SetVersionRequest { table: a(), ..Default::default() };
    // A map without shards.
    let map = own::SetDirectoryRequest { map: Some(own::ShardMap::default()), index: 0 };
    let tried = [
        (calls::SAMPLE_STREAM, &["sampler"][..], sample_request("a").encode_to_vec()),
        (calls::SCAN, &["sampler"], scan.encode_to_vec()),
        (own::StatusRequest::PATH, &["sampler"], Vec::new()),
        (own::CheckpointStatusRequest::PATH, &["sampler"], Vec::new()),
        (calls::INSERT_STREAM, &["writer"], insert_request(2, "a").encode_to_vec()),
        (calls::MUTATE_PRIORITIES, &["updater"], mutate.encode_to_vec()),
        (own::SetPausedRequest::PATH, &["admin", "root"], pause.encode_to_vec()),
        (own::ConfigureTablesRequest::PATH, &["admin", "root"], configure.encode_to_vec()),
        (calls::HOLD_RATE_LIMITER, &["admin", "root"], hold.encode_to_vec()),
        (proto::CheckpointRequest::PATH, &["root"], Vec::new()),
        (own::DrainRequest::PATH, &["root"], drain.encode_to_vec()),
        (own::SyncRequest::PATH, &["writer"], Vec::new()),
        (
            proto::ResetRequest::PATH,
            &["admin", "root"],
            proto::ResetRequest { table: a(), ..Default::default() }.encode_to_vec(),
        ),
        (own::DeleteItemsRequest::PATH, &["updater"], delete.encode_to_vec()),
        (calls::UPDATE_PRIORITIES, &["updater"], update.encode_to_vec()),
        (own::SetRateLimiterRequest::PATH, &["admin", "root"], bounds.encode_to_vec()),
        (calls::TRANSFER, &["admin", "root"], insert_request(3, "a").encode_to_vec()),
        (own::SetDirectoryRequest::PATH, &["root"], map.encode_to_vec()),
        (own::TakeRequest::PATH, &["sampler"], take.encode_to_vec()),
        (own::SettleRequest::PATH, &["sampler"], settle.encode_to_vec()),
        (own::FailRolloutRequest::PATH, &["writer"], fail.encode_to_vec()),
        (own::SetVersionRequest::PATH, &["updater"], version.encode_to_vec()),
        (calls::HOLD_LEASES, &everybody, Vec::new()),
        (own::DirectoryRequest::PATH, &everybody, Vec::new()),
        (calls::WATCH, &everybody, Vec::new()),
        (proto::ServerInfoRequest::PATH, &everybody, Vec::new()),
        (own::WaitReasonRequest::PATH, &everybody, wait_reason.encode_to_vec()),
        (calls::INITIALIZE_CONNECTION, &everybody, Vec::new()),
        (calls::REFLECTION, &everybody, Vec::new()),
        (calls::OLD_REFLECTION, &everybody, Vec::new()),
        (calls::HEALTH_CHECK, &everybody, Vec::new()),
        (calls::HEALTH_WATCH, &everybody, Vec::new()),
    ];
    let paths: BTreeSet<&str> = tried.iter().map(|(path, ..)| *path).collect();
    assert_eq!(paths, calls::all().map(|row| row.path).collect());
    for (path, allowed, request) in tried {
        for name in everybody {
            let answer = call(&raw, path, headers(&callers, name), &Encoded(request.clone())).await;
            let expected = match (allowed.contains(&name), path) {
                (false, _) => Code::PermissionDenied,
                // The time is no time, and the map no map.
                (true, own::DrainRequest::PATH | own::SetDirectoryRequest::PATH) => {
                    Code::InvalidArgument
                }
                (true, path) if LACKED.contains(&path) => Code::FailedPrecondition,
                (true, _) => Code::Ok,
            };
            let code = answer.as_ref().err().map_or(Code::Ok, |status| status.code);
            assert_eq!(code, expected, "{path} {name}: {answer:?}");
            if let (proto::CheckpointRequest::PATH, Ok(answer)) = (path, answer) {
                let path = proto::CheckpointResponse::decode(&answer[..]).unwrap().checkpoint_path;
                std::fs::remove_dir_all(PathBuf::from(path).parent().unwrap()).unwrap();
            }
        }
    }
    for name in everybody {
        let unknown = call(&raw, "/reverb.ReplayService/New", headers(&callers, name), &()).await;
        assert_eq!(unknown.unwrap_err().code, Code::Unimplemented);
    }
}

/// A message that is encoded already.
#[derive(Debug, Clone, Default)]
pub(crate) struct Encoded(pub(crate) Vec<u8>);

impl Message for Encoded {
    fn encode_raw(&self, buffer: &mut impl bytes::BufMut) {
        buffer.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: prost::encoding::WireType,
        _: &mut impl bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        unreachable!("it is only sent")
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[tokio::test]
async fn a_table_that_one_may_not_use_looks_like_one_that_is_not_there() {
    let callers = Callers::new(&[
        ("a", &[Right::Sample, Right::Insert, Right::Update, Right::Admin], &["a", "gone"]),
        ("all", &[Right::Sample], &["*"]),
    ]);
    let server = serve(vec![table(config("a")), table(config("secret"))], &callers.options());
    let raw = RawClient::connect(&server).await;
    for path in [calls::SAMPLE_STREAM, calls::SCAN, proto::ResetRequest::PATH, calls::INSERT_STREAM]
    {
        let mut texts = Vec::new();
        for name in ["secret", "absent"] {
            let request = match path {
                calls::SAMPLE_STREAM => sample_request(name).encode_to_vec(),
                calls::SCAN => own::ScanRequest { table: name.to_owned(), ..Default::default() }
                    .encode_to_vec(),
                proto::ResetRequest::PATH => {
                    proto::ResetRequest { table: name.to_owned(), not_after_ns: 0 }.encode_to_vec()
                }
                _ => insert_request(1, name).encode_to_vec(),
            };
            let status =
                call(&raw, path, headers(&callers, "a"), &Encoded(request)).await.unwrap_err();
            assert_eq!(status.code, Code::PermissionDenied, "{path}");
            texts.push(status.message.replace(name, "NAME"));
        }
        assert_eq!(texts[0], texts[1]);
        assert!(texts[0].contains(" table NAME") && texts[0].contains("token a may not "));
    }
    // A missing table on which the caller has a right: the error lists its other tables.
    let gone = proto::ResetRequest { table: "gone".to_owned(), not_after_ns: 0 };
    let status =
        call(&raw, proto::ResetRequest::PATH, headers(&callers, "a"), &gone).await.unwrap_err();
    assert_eq!(status.code, Code::NotFound);
    assert!(status.message.ends_with("The tables of this server are: a."), "{}", status.message);
    let request = sample_request("gone");
    let status =
        call(&raw, calls::SAMPLE_STREAM, headers(&callers, "all"), &request).await.unwrap_err();
    assert!(status.message.ends_with("The tables of this server are: a, secret."));
}

#[tokio::test]
async fn a_change_of_several_tables_wants_the_right_on_all_of_them() {
    let callers = Callers::new(&[("admin", &[Right::Admin], &["a"])]);
    let server = serve(vec![table(config("a")), table(config("b"))], &callers.options());
    let raw = RawClient::connect(&server).await;
    let change = |table: &str| own::TableChange {
        table: table.to_owned(),
        max_size: Some(7),
        ..Default::default()
    };
    let request = own::ConfigureTablesRequest {
        changes: vec![change("a"), change("b")],
        ..Default::default()
    };
    let path = own::ConfigureTablesRequest::PATH;
    let status = call(&raw, path, headers(&callers, "admin"), &request).await.unwrap_err();
    assert_eq!(
        status.message,
        "ConfigureTables: token admin may not administer table b (right admin); it may administer \
         (table a)."
    );
    assert_eq!(server.tables()[0].config().max_size, 1000);
    let request = own::ConfigureTablesRequest { changes: vec![change("a")], ..Default::default() };
    call(&raw, path, headers(&callers, "admin"), &request).await.unwrap();
    assert_eq!(server.tables()[0].config().max_size, 7);
}

#[tokio::test]
async fn an_insert_stream_ends_at_the_first_item_that_it_may_not_insert() {
    let callers = Callers::new(&[("writer", &[Right::Insert, Right::Sample], &["a", "b"])]);
    let tables: Vec<_> = ["a", "b", "c"].map(|name| table(config(name))).into();
    let server = serve(tables, &callers.options());
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open_with("InsertStream", headers(&callers, "writer")).await;
    for (key, name) in [(1, "a"), (2, "b"), (3, "a")] {
        stream.send(&insert_request(key, name)).await;
    }
    assert_eq!(stream.keys(3).await, [1, 2, 3]);
    let mut request = insert_request(4, "b");
    request.items.push(raw_item(5, "c", vec![raw_slice(4, 0, 1)]));
    stream.send(&request).await;
    assert_eq!(stream.keys(1).await, [4]);
    let status = stream.status().await;
    assert_eq!(status.code, Code::PermissionDenied);
    assert_eq!(
        status.message,
        "InsertStream: token writer may not insert into table c; \
         it may sample and insert (tables a and b)."
    );
    let sizes: Vec<_> = server.tables().iter().map(|table| table.info().current_size).collect();
    assert_eq!(sizes, [2, 2, 0]);
}

#[tokio::test]
async fn callers_see_the_tables_on_which_they_have_a_right() {
    let callers = Callers::new(&[
        ("writer", &[Right::Insert], &["a", "b"]),
        ("sampler", &[Right::Sample], &["b"]),
    ]);
    let tables: Vec<_> = ["a", "b", "c"].map(|name| table(config(name))).into();
    let server = serve(tables, &callers.options());
    let raw = RawClient::connect(&server).await;
    let info = |name| info(&raw, headers(&callers, name));
    let names = |answer: Vec<u8>| {
        let info = proto::ServerInfoResponse::decode(&answer[..]).unwrap().table_info;
        info.into_iter().map(|table| table.name).collect::<Vec<_>>()
    };
    assert_eq!(names(info("writer").await.unwrap()), ["a", "b"]);
    assert_eq!(names(info("sampler").await.unwrap()), ["b"]);

    let mut of_a = raw.open_with("InsertStream", headers(&callers, "writer")).await;
    of_a.send(&insert_request(1, "a")).await;
    of_a.keys(1).await;
    let mut of_b = raw.open_with("InsertStream", headers(&callers, "writer")).await;
    of_b.send(&insert_request(2, "b")).await;
    of_b.keys(1).await;
    let request = StatusRequest { with_streams: true };
    let answer =
        call(&raw, own::StatusRequest::PATH, headers(&callers, "sampler"), &request).await.unwrap();
    let status = own::StatusResponse::decode(&answer[..]).unwrap();
    let tables: Vec<_> = status.tables.iter().map(|table| &table.name[..]).collect();
    assert_eq!(tables, ["b"]);
    let streams: Vec<_> = status.streams.iter().map(|stream| &stream.table[..]).collect();
    assert_eq!(streams, ["b"]);
    // Callers in the program itself get the full text.
    assert_eq!(server.status(request).tables.len(), 3);
    assert_eq!(server.status(request).streams.len(), 2);
}

#[tokio::test]
async fn watchers_and_directories_see_the_tables_on_which_they_have_a_right() {
    let callers = Callers::new(&[
        ("writer", &[Right::Insert], &["a"]),
        ("admin", &[Right::Admin], &["a"]),
        ("root", &[Right::Admin], &["*"]),
    ]);
    let tables: Vec<_> = ["a", "b"].map(|name| table(config(name))).into();
    let server = serve(tables, &callers.options());
    let raw = RawClient::connect(&server).await;
    let watch = |tables: &[&str]| own::WatchRequest {
        tables: tables.iter().map(|&name| name.to_owned()).collect(),
    };
    let all = watch(&[]);
    let answer = call(&raw, calls::WATCH, headers(&callers, "writer"), &all).await.unwrap();
    let told = own::WatchResponse::decode(&answer[..]).unwrap().tables;
    assert_eq!(told.iter().map(|table| &table.name[..]).collect::<Vec<_>>(), ["a"]);
    let status =
        call(&raw, calls::WATCH, headers(&callers, "writer"), &watch(&["b"])).await.unwrap_err();
    assert_eq!(status.code, Code::NotFound);
    assert!(status.message.ends_with("The tables of this server are: a."), "{}", status.message);

    let info = |name: &str| proto::TableInfo { name: name.to_owned(), ..Default::default() };
    let map = own::ShardMap {
        epoch: 1,
        shards: vec![own::Shard::default()],
        slots: vec![own::SlotRange { count: 4096, ..Default::default() }],
        tables: vec![info("a"), info("b")],
        ..Default::default()
    };
    let request = own::SetDirectoryRequest { map: Some(map), index: 0 };
    call(&raw, own::SetDirectoryRequest::PATH, headers(&callers, "root"), &request).await.unwrap();
    for (name, expected) in [("writer", &["a"][..]), ("root", &["a", "b"])] {
        let answer =
            call(&raw, own::DirectoryRequest::PATH, headers(&callers, name), &()).await.unwrap();
        let map = own::DirectoryResponse::decode(&answer[..]).unwrap().map.unwrap();
        assert_eq!(map.tables.iter().map(|it| &it.name[..]).collect::<Vec<_>>(), expected);
        let tables = ["a", "b"].map(str::to_owned).to_vec();
        let request = own::DirectoryRequest { tables, ..Default::default() };
        let answer = call(&raw, own::DirectoryRequest::PATH, headers(&callers, name), &request)
            .await
            .unwrap();
        let fills = own::DirectoryResponse::decode(&answer[..]).unwrap().fills;
        assert_eq!(fills.iter().map(|it| &it.name[..]).collect::<Vec<_>>(), expected);
    }

    let items = insert_request(1, "b");
    let status = call(&raw, calls::TRANSFER, headers(&callers, "admin"), &items).await.unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
    let limiter = own::SetRateLimiterRequest { table: "b".to_owned(), ..Default::default() };
    let status = call(&raw, own::SetRateLimiterRequest::PATH, headers(&callers, "admin"), &limiter)
        .await
        .unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
    assert_eq!(server.tables()[1].info().current_size, 0);
}

#[tokio::test]
async fn who_cannot_be_authenticated_is_told_why_after_a_moment() {
    let callers = Callers::new(&[("learner", &[Right::Sample], &["*"])]);
    let server = serve(vec![table(config("a"))], &callers.options());
    let raw = RawClient::connect(&server).await;
    let token = new_token().unwrap();
    let basic = HeaderMap::from_iter([(
        "authorization".parse().unwrap(),
        "Basic OmFiYw==".parse().unwrap(),
    )]);
    let wants = "This server wants a token: give Client(..., token=...) or set REVERB_TOKEN.";
    for (headers, text) in [
        (HeaderMap::new(), wants.to_owned()),
        (bearer(&token), format!("This server does not know this token ({}…).", &token[..8])),
        (bearer("hunter2"), "This server does not know this token.".to_owned()),
        (
            basic,
            "This server wants a token in the header authorization, as: Bearer TOKEN.".to_owned(),
        ),
    ] {
        let began = Instant::now();
        let status = info(&raw, headers).await.unwrap_err();
        assert!(began.elapsed() >= Duration::from_millis(100));
        assert_eq!((status.code, status.message), (Code::Unauthenticated, text));
    }
    // The scheme may be written in any case.
    let mut shouted = headers(&callers, "learner");
    let value = shouted["authorization"].to_str().unwrap().replace("Bearer", "bEARER");
    shouted.insert("authorization", value.parse().unwrap());
    info(&raw, shouted).await.unwrap();
    // Probes need none.
    for headers in [HeaderMap::new(), bearer("hunter2")] {
        call(&raw, calls::HEALTH_CHECK, headers, &()).await.unwrap();
    }
    let denied =
        call(&raw, proto::ResetRequest::PATH, headers(&callers, "learner"), &()).await.unwrap_err();
    assert_eq!(denied.code, Code::PermissionDenied);
    let failures = server.status(StatusRequest::default()).traffic.unwrap().auth_failures;
    let failures: Vec<_> = failures.iter().map(|it| (&it.reason[..], it.count)).collect();
    let expected =
        [("missing", 1), ("unknown", 3), ("expired", 0), ("cleartext", 0), ("denied", 1)];
    assert_eq!(failures, expected);
}

#[tokio::test]
async fn a_connection_is_closed_after_ten_failures() {
    let callers = Callers::new(&[("learner", &[Right::Sample], &["*"])]);
    let server = serve(vec![table(config("a"))], &callers.options());
    let raw = RawClient::connect(&server).await;
    for _ in 0..9 {
        info(&raw, HeaderMap::new()).await.unwrap_err();
    }
    // A denied call is no failure of authentication.
    for _ in 0..20 {
        call(&raw, proto::ResetRequest::PATH, headers(&callers, "learner"), &()).await.unwrap_err();
    }
    info(&raw, headers(&callers, "learner")).await.unwrap();
    let last = info(&raw, HeaderMap::new()).await.unwrap_err();
    assert_eq!(last.code, Code::Unauthenticated);
    let connections = || server.status(StatusRequest::default()).traffic.unwrap().connections;
    eventually(|| connections() == 0).await;
    let raw = RawClient::connect(&server).await;
    info(&raw, headers(&callers, "learner")).await.unwrap();
}

#[tokio::test]
async fn tokens_are_rotated_while_streams_go_on() {
    let mut callers = Callers::new(&[("old", &[Right::Insert], &["a"])]);
    let options = callers.options();
    let server = serve(vec![table(config("a")), table(config("b"))], &options);
    let authenticator = options.authenticator.unwrap();
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open_with("InsertStream", headers(&callers, "old")).await;
    stream.send(&insert_request(1, "a")).await;
    assert_eq!(stream.keys(1).await, [1]);
    callers.write(&[("new", &[Right::Insert], &["b"])]);
    // The server may have looked by itself.
    authenticator.reload().unwrap();
    stream.send(&insert_request(2, "a")).await;
    assert_eq!(stream.keys(1).await, [2]);
    let refused = info(&raw, headers(&callers, "old")).await.unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    let answer = info(&raw, headers(&callers, "new")).await.unwrap();
    assert_eq!(proto::ServerInfoResponse::decode(&answer[..]).unwrap().table_info.len(), 1);
}

#[tokio::test]
async fn clients_of_the_same_process_need_no_token() {
    let callers = Callers::new(&[("learner", &[Right::Sample], &["a"])]);
    let server = serve(vec![table(config("a")), table(config("b"))], &callers.options());
    let local = local_shard(Loopback::localhost(server.port())).unwrap();
    assert_eq!(local.server_info().await.unwrap().tables.len(), 2);
    local.call(reset("b")).await.unwrap();
    assert_eq!(local.call(StatusRequest::default()).await.unwrap().tables.len(), 2);
}

#[tokio::test]
async fn tokens_in_cleartext_are_for_loopback_only() {
    let callers = Callers::new(&[("learner", &[Right::Sample], &["a"])]);
    for host in [None, Some("0.0.0.0".to_owned()), Some("::".to_owned())] {
        let options = ServerOptions { host, ..callers.options() };
        let error = Server::start(vec![table(config("a"))], &options, &Handle::current());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("would travel in cleartext"), "{error}");
        assert!(error.message().contains("insecure_tokens"), "{error}");
        let insecure_tokens = true;
        let server = serve(vec![table(config("a"))], &ServerOptions { insecure_tokens, ..options });
        let raw = RawClient::connect(&server).await;
        info(&raw, headers(&callers, "learner")).await.unwrap();
    }
    for host in ["localhost", "127.0.0.1", "::1"] {
        let options = ServerOptions { host: Some(host.to_owned()), ..callers.options() };
        serve(vec![table(config("a"))], &options);
    }
}
