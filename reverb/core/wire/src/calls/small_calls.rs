// SPDX-License-Identifier: Apache-2.0
//! The small calls: path, row and decoded parts of each request.

use bytes::Bytes;
use prost::Message as _;
use reverb_data::Right;

use super::{
    Call, Decoded, InGroup, NAMES, Needs, Repeat, RequestLimit, Row, SMALL, SmallCall,
    SmallCallNeeds,
};
use crate::capability::Capability;
use crate::generated::reverb::{
    CheckpointStatusRequest, CheckpointStatusResponse, ConfigureTablesRequest,
    ConfigureTablesResponse, DeleteItemsRequest, DeleteItemsResponse, DirectoryRequest,
    DirectoryResponse, DrainRequest, DrainResponse, SetDirectoryRequest, SetDirectoryResponse,
    SetPausedRequest, SetPausedResponse, SetRateLimiterRequest, SetRateLimiterResponse,
    StatusRequest, StatusResponse, WaitReasonRequest, WaitReasonResponse,
};
use crate::generated::{
    CheckpointRequest, CheckpointResponse, ResetRequest, ResetResponse, ServerInfoRequest,
    ServerInfoResponse,
};

const fn row<C: Call>(limit: RequestLimit) -> Row {
    let needs = match C::NEEDS {
        SmallCallNeeds::AnyRight => Needs::AnyRight,
        SmallCallNeeds::OnSomeTable(right) => Needs::OnSomeTable(right),
        SmallCallNeeds::OnTable(right, _) => Needs::OnTable(right),
        SmallCallNeeds::OnAllTables(right) => Needs::OnAllTables(right),
    };
    Row { path: C::PATH, needs, limit }
}

/// A call that clients repeat, and whose answers a group merges.
const fn call<C: Call>() -> SmallCall {
    SmallCall {
        row: row::<C>(SMALL),
        repeat: Repeat::Question,
        group: InGroup::Merge,
        reaches_one: true,
        announced: false,
        missing: None,
        asks_for: |_| &[],
        is_answer: |answer| C::decode_answer(answer).map(drop),
    }
}

/// Empties a table.
impl Call for ResetRequest {
    type Answer = ResetResponse;
    const PATH: &'static str = "/deepmind.reverb.ReverbService/Reset";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Admin, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &RESET;

    fn decode_answer(answer: Bytes) -> Decoded<ResetResponse> {
        ResetResponse::decode(answer)
    }

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

static RESET: SmallCall =
    SmallCall { repeat: Repeat::Change { not_after: 1001 }, ..call::<ResetRequest>() };

/// Describes all tables.
impl Call for ServerInfoRequest {
    type Answer = ServerInfoResponse;
    const PATH: &'static str = "/deepmind.reverb.ReverbService/ServerInfo";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::AnyRight;
    const CALL: &'static SmallCall = &SERVER_INFO;

    fn decode_answer(answer: Bytes) -> Decoded<ServerInfoResponse> {
        ServerInfoResponse::decode(answer)
    }
}

static SERVER_INFO: SmallCall = SmallCall { reaches_one: false, ..call::<ServerInfoRequest>() };

/// Saves all tables.
impl Call for CheckpointRequest {
    type Answer = CheckpointResponse;
    const PATH: &'static str = "/deepmind.reverb.ReverbService/Checkpoint";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnAllTables(Right::Admin);
    const CALL: &'static SmallCall = &CHECKPOINT;

    fn decode_answer(answer: Bytes) -> Decoded<CheckpointResponse> {
        CheckpointResponse::decode(answer)
    }
}

static CHECKPOINT: SmallCall =
    SmallCall { repeat: Repeat::Never, announced: true, ..call::<CheckpointRequest>() };

/// Reports the result of checkpoints. Not in dm-reverb.
impl Call for CheckpointStatusRequest {
    type Answer = CheckpointStatusResponse;
    const PATH: &'static str = "/reverb.ReplayService/CheckpointStatus";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnSomeTable(Right::Sample);
    const CALL: &'static SmallCall = &CHECKPOINT_STATUS;

    fn decode_answer(answer: Bytes) -> Decoded<CheckpointStatusResponse> {
        CheckpointStatusResponse::decode(answer)
    }
}

static CHECKPOINT_STATUS: SmallCall = SmallCall {
    missing: Some("report the state of its checkpoints"),
    ..call::<CheckpointStatusRequest>()
};

/// Reports everything that a server counts. Not in dm-reverb.
impl Call for StatusRequest {
    type Answer = StatusResponse;
    const PATH: &'static str = "/reverb.ReplayService/Status";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnSomeTable(Right::Sample);
    const CALL: &'static SmallCall = &STATUS;

    fn decode_answer(answer: Bytes) -> Decoded<StatusResponse> {
        StatusResponse::decode(answer)
    }
}

static STATUS: SmallCall =
    SmallCall { missing: Some("tell its status"), ..call::<StatusRequest>() };

/// Reasons why calls for a table wait. Not in dm-reverb.
impl Call for WaitReasonRequest {
    type Answer = WaitReasonResponse;
    const PATH: &'static str = "/reverb.ReplayService/WaitReason";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::AnyRight;
    const CALL: &'static SmallCall = &WAIT_REASON;

    fn decode_answer(answer: Bytes) -> Decoded<WaitReasonResponse> {
        WaitReasonResponse::decode(answer)
    }
}

static WAIT_REASON: SmallCall = SmallCall {
    repeat: Repeat::Never,
    reaches_one: false,
    missing: Some("tell why a table waits"),
    ..call::<WaitReasonRequest>()
};

/// Changes settings of tables: all, or none. Not in dm-reverb.
impl Call for ConfigureTablesRequest {
    type Answer = ConfigureTablesResponse;
    const PATH: &'static str = "/reverb.ReplayService/ConfigureTables";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnTable(Right::Admin, |request| {
        request.changes.iter().map(|change| &*change.table).collect()
    });
    const CALL: &'static SmallCall = &CONFIGURE_TABLES;

    fn decode_answer(answer: Bytes) -> Decoded<ConfigureTablesResponse> {
        ConfigureTablesResponse::decode(answer)
    }

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

static CONFIGURE_TABLES: SmallCall = SmallCall {
    row: row::<ConfigureTablesRequest>(NAMES),
    repeat: Repeat::Change { not_after: 3 },
    announced: true,
    missing: Some("change its tables while it runs"),
    asks_for: |request| match ConfigureTablesRequest::decode(request.clone()) {
        Ok(it) if it.changes.iter().any(|change| change.sampler.is_some()) => {
            &[Capability::Selectors]
        }
        _ => &[],
    },
    ..call::<ConfigureTablesRequest>()
};

/// Pauses or resumes inserts or samples of a table. Not in dm-reverb.
impl Call for SetPausedRequest {
    type Answer = SetPausedResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetPaused";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Admin, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SET_PAUSED;

    fn decode_answer(answer: Bytes) -> Decoded<SetPausedResponse> {
        SetPausedResponse::decode(answer)
    }

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

static SET_PAUSED: SmallCall = SmallCall {
    repeat: Repeat::Change { not_after: 5 },
    missing: Some("pause its tables"),
    ..call::<SetPausedRequest>()
};

/// Deletes items by their keys, by a condition, or by both. Not in dm-reverb.
impl Call for DeleteItemsRequest {
    type Answer = DeleteItemsResponse;
    const PATH: &'static str = "/reverb.ReplayService/DeleteItems";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Update, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &DELETE_ITEMS;

    fn decode_answer(answer: Bytes) -> Decoded<DeleteItemsResponse> {
        DeleteItemsResponse::decode(answer)
    }

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

static DELETE_ITEMS: SmallCall = SmallCall {
    row: row::<DeleteItemsRequest>(RequestLimit::CallBytes),
    repeat: Repeat::Change { not_after: 4 },
    announced: true,
    missing: Some("delete items by a condition, or tell how many it deleted"),
    ..call::<DeleteItemsRequest>()
};

/// Ends all streams. Not in dm-reverb. A lost call is not repeated: it could reach the server after
/// its restart.
impl Call for DrainRequest {
    type Answer = DrainResponse;
    const PATH: &'static str = "/reverb.ReplayService/Drain";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnAllTables(Right::Admin);
    const CALL: &'static SmallCall = &DRAIN;

    fn decode_answer(answer: Bytes) -> Decoded<DrainResponse> {
        DrainResponse::decode(answer)
    }
}

static DRAIN: SmallCall = SmallCall {
    repeat: Repeat::Never,
    announced: true,
    missing: Some("drain"),
    ..call::<DrainRequest>()
};

/// Returns the map of a group of shards. Not in dm-reverb.
impl Call for DirectoryRequest {
    type Answer = DirectoryResponse;
    const PATH: &'static str = "/reverb.ReplayService/Directory";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::AnyRight;
    const CALL: &'static SmallCall = &DIRECTORY;

    fn decode_answer(answer: Bytes) -> Decoded<DirectoryResponse> {
        DirectoryResponse::decode(answer)
    }
}

static DIRECTORY: SmallCall = SmallCall {
    repeat: Repeat::Never,
    group: InGroup::Own,
    reaches_one: false,
    missing: Some("return the map of a group of shards"),
    ..call::<DirectoryRequest>()
};

/// Gives a shard a new map. Not in dm-reverb.
impl Call for SetDirectoryRequest {
    type Answer = SetDirectoryResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetDirectory";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnAllTables(Right::Admin);
    const CALL: &'static SmallCall = &SET_DIRECTORY;

    fn decode_answer(answer: Bytes) -> Decoded<SetDirectoryResponse> {
        SetDirectoryResponse::decode(answer)
    }
}

static SET_DIRECTORY: SmallCall = SmallCall {
    row: row::<SetDirectoryRequest>(RequestLimit::CallBytes),
    repeat: Repeat::Never,
    group: InGroup::Refused,
    announced: true,
    missing: Some("accept the map of a group of shards"),
    ..call::<SetDirectoryRequest>()
};

/// Moves the bounds of a rate limiter. Not in dm-reverb.
impl Call for SetRateLimiterRequest {
    type Answer = SetRateLimiterResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetRateLimiter";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Admin, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SET_RATE_LIMITER;

    fn decode_answer(answer: Bytes) -> Decoded<SetRateLimiterResponse> {
        SetRateLimiterResponse::decode(answer)
    }
}

static SET_RATE_LIMITER: SmallCall = SmallCall {
    repeat: Repeat::Never,
    group: InGroup::Refused,
    missing: Some("move the bounds of rate limiters"),
    ..call::<SetRateLimiterRequest>()
};

/// All small calls. A test of the server compares the list with its handlers.
pub static SMALL_CALLS: [&SmallCall; 13] = [
    ResetRequest::CALL,
    ServerInfoRequest::CALL,
    CheckpointRequest::CALL,
    CheckpointStatusRequest::CALL,
    StatusRequest::CALL,
    WaitReasonRequest::CALL,
    ConfigureTablesRequest::CALL,
    SetPausedRequest::CALL,
    DeleteItemsRequest::CALL,
    DrainRequest::CALL,
    DirectoryRequest::CALL,
    SetDirectoryRequest::CALL,
    SetRateLimiterRequest::CALL,
];
