// SPDX-License-Identifier: Apache-2.0
//! The small calls: path, row and decoded parts of each request.

use prost::Message as _;
use reverb_data::Right;

use super::{
    Call, InGroup, NAMES, Needs, Repeat, RequestLimit, Row, SMALL, SmallCall, SmallCallNeeds,
};
use crate::capability::Capability;
use crate::generated::reverb::{
    CheckpointStatusRequest, CheckpointStatusResponse, ConfigureTablesRequest,
    ConfigureTablesResponse, DeleteItemsRequest, DeleteItemsResponse, DirectoryRequest,
    DirectoryResponse, DrainRequest, DrainResponse, FailRolloutRequest, FailRolloutResponse,
    SetDirectoryRequest, SetDirectoryResponse, SetPausedRequest, SetPausedResponse,
    SetRateLimiterRequest, SetRateLimiterResponse, SetVersionRequest, SetVersionResponse,
    SettleRequest, SettleResponse, StatusRequest, StatusResponse, SyncRequest, SyncResponse,
    TableChange, TakeRequest, TakeResponse, WaitReasonRequest, WaitReasonResponse,
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
        decode: |answer| Ok(Box::new(C::Answer::decode(answer)?)),
    }
}

/// Empties a table.
impl Call for ResetRequest {
    type Answer = ResetResponse;
    const PATH: &'static str = "/deepmind.reverb.ReverbService/Reset";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Admin, |request| vec![&request.table]);
    const CALL: &'static SmallCall =
        &SmallCall { repeat: Repeat::Change { not_after: 1001 }, ..call::<Self>() };

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

/// Describes all tables.
impl Call for ServerInfoRequest {
    type Answer = ServerInfoResponse;
    const PATH: &'static str = "/deepmind.reverb.ReverbService/ServerInfo";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::AnyRight;
    const CALL: &'static SmallCall = &SmallCall { reaches_one: false, ..call::<Self>() };
}

/// Saves all tables.
impl Call for CheckpointRequest {
    type Answer = CheckpointResponse;
    const PATH: &'static str = "/deepmind.reverb.ReverbService/Checkpoint";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnAllTables(Right::Admin);
    const CALL: &'static SmallCall =
        &SmallCall { repeat: Repeat::Never, announced: true, ..call::<Self>() };
}

/// Reports the result of checkpoints. Not in dm-reverb.
impl Call for CheckpointStatusRequest {
    type Answer = CheckpointStatusResponse;
    const PATH: &'static str = "/reverb.ReplayService/CheckpointStatus";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnSomeTable(Right::Sample);
    const CALL: &'static SmallCall =
        &SmallCall { missing: Some("report the state of its checkpoints"), ..call::<Self>() };
}

/// Reports everything that a server counts. Not in dm-reverb.
impl Call for StatusRequest {
    type Answer = StatusResponse;
    const PATH: &'static str = "/reverb.ReplayService/Status";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnSomeTable(Right::Sample);
    const CALL: &'static SmallCall =
        &SmallCall { missing: Some("report its status"), ..call::<Self>() };
}

/// Reasons why calls for a table wait. Not in dm-reverb.
impl Call for WaitReasonRequest {
    type Answer = WaitReasonResponse;
    const PATH: &'static str = "/reverb.ReplayService/WaitReason";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::AnyRight;
    const CALL: &'static SmallCall = &SmallCall {
        repeat: Repeat::Never,
        reaches_one: false,
        missing: Some("explain why a table waits"),
        ..call::<Self>()
    };
}

/// Changes settings of tables: all, or none. Not in dm-reverb.
impl Call for ConfigureTablesRequest {
    type Answer = ConfigureTablesResponse;
    const PATH: &'static str = "/reverb.ReplayService/ConfigureTables";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnTable(Right::Admin, |request| {
        request.changes.iter().map(|change| &*change.table).collect()
    });
    const CALL: &'static SmallCall = &SmallCall {
        row: row::<Self>(NAMES),
        repeat: Repeat::Change { not_after: 3 },
        announced: true,
        missing: Some("change its tables while it runs"),
        asks_for: |request| {
            let request = ConfigureTablesRequest::decode(request.clone()).unwrap_or_default();
            let has = |has: fn(&TableChange) -> bool| request.changes.iter().any(has);
            match (has(|it| it.sampler.is_some()), has(|it| it.rollouts.is_some())) {
                (false, false) => &[],
                (true, false) => &[Capability::Selectors],
                (false, true) => &[Capability::Rollouts],
                (true, true) => &[Capability::Selectors, Capability::Rollouts],
            }
        },
        ..call::<Self>()
    };

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

/// Pauses or resumes inserts or samples of a table. Not in dm-reverb.
impl Call for SetPausedRequest {
    type Answer = SetPausedResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetPaused";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Admin, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        repeat: Repeat::Change { not_after: 5 },
        missing: Some("pause its tables"),
        ..call::<Self>()
    };

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

/// Deletes items by their keys, by a condition, or by both. Not in dm-reverb.
impl Call for DeleteItemsRequest {
    type Answer = DeleteItemsResponse;
    const PATH: &'static str = "/reverb.ReplayService/DeleteItems";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Update, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        row: row::<Self>(RequestLimit::CallBytes),
        repeat: Repeat::Change { not_after: 4 },
        announced: true,
        missing: Some("delete items by a condition, or report how many it deleted"),
        ..call::<Self>()
    };

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

/// Ends all streams. Not in dm-reverb. A lost call is not repeated: it could reach the server after
/// its restart.
impl Call for DrainRequest {
    type Answer = DrainResponse;
    const PATH: &'static str = "/reverb.ReplayService/Drain";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnAllTables(Right::Admin);
    const CALL: &'static SmallCall = &SmallCall {
        repeat: Repeat::Never,
        announced: true,
        missing: Some("drain"),
        ..call::<Self>()
    };
}

/// Waits for the disk. Not in dm-reverb. A lost call is not repeated: it could reach the server
/// after a crash, which has lost what was to be on disk.
impl Call for SyncRequest {
    type Answer = SyncResponse;
    const PATH: &'static str = "/reverb.ReplayService/Sync";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnSomeTable(Right::Insert);
    const CALL: &'static SmallCall = &SmallCall {
        row: row::<Self>(NAMES),
        repeat: Repeat::Never,
        announced: true,
        missing: Some("bring its tables to the disk"),
        ..call::<Self>()
    };
}

/// What a client asks for that calls about rollouts.
const ROLLOUTS: &[Capability] = &[Capability::Rollouts];

/// Takes items with rollouts; waits for them. Not in dm-reverb.
impl Call for TakeRequest {
    type Answer = TakeResponse;
    const PATH: &'static str = "/reverb.ReplayService/Take";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Sample, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        announced: true,
        missing: Some("know rollouts"),
        asks_for: |_| ROLLOUTS,
        group: InGroup::Only,
        ..call::<Self>()
    };
}

/// Ends the hold on items with rollouts. Not in dm-reverb.
impl Call for SettleRequest {
    type Answer = SettleResponse;
    const PATH: &'static str = "/reverb.ReplayService/Settle";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Sample, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        row: row::<Self>(RequestLimit::CallBytes),
        missing: Some("know rollouts"),
        asks_for: |_| ROLLOUTS,
        group: InGroup::Only,
        ..call::<Self>()
    };
}

/// Says that a rollout will not be made. Not in dm-reverb.
impl Call for FailRolloutRequest {
    type Answer = FailRolloutResponse;
    const PATH: &'static str = "/reverb.ReplayService/FailRollout";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Insert, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        missing: Some("know rollouts"),
        asks_for: |_| ROLLOUTS,
        group: InGroup::Only,
        ..call::<Self>()
    };
}

/// Sets the version of the policy of a table with rollouts. Not in dm-reverb.
impl Call for SetVersionRequest {
    type Answer = SetVersionResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetVersion";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Update, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        repeat: Repeat::Change { not_after: 4 },
        missing: Some("know rollouts"),
        asks_for: |_| ROLLOUTS,
        group: InGroup::Only,
        ..call::<Self>()
    };

    fn not_after_ns(&self) -> i64 {
        self.not_after_ns
    }
}

/// Returns the map of a group of shards. Not in dm-reverb.
impl Call for DirectoryRequest {
    type Answer = DirectoryResponse;
    const PATH: &'static str = "/reverb.ReplayService/Directory";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::AnyRight;
    const CALL: &'static SmallCall = &SmallCall {
        repeat: Repeat::Never,
        group: InGroup::Own,
        reaches_one: false,
        missing: Some("return the map of a group of shards"),
        ..call::<Self>()
    };
}

/// Gives a shard a new map. Not in dm-reverb.
impl Call for SetDirectoryRequest {
    type Answer = SetDirectoryResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetDirectory";
    const NEEDS: SmallCallNeeds<Self> = SmallCallNeeds::OnAllTables(Right::Admin);
    const CALL: &'static SmallCall = &SmallCall {
        row: row::<Self>(RequestLimit::CallBytes),
        repeat: Repeat::Never,
        group: InGroup::Refused,
        announced: true,
        missing: Some("accept the map of a group of shards"),
        ..call::<Self>()
    };
}

/// Moves the bounds of a rate limiter. Not in dm-reverb.
impl Call for SetRateLimiterRequest {
    type Answer = SetRateLimiterResponse;
    const PATH: &'static str = "/reverb.ReplayService/SetRateLimiter";
    const NEEDS: SmallCallNeeds<Self> =
        SmallCallNeeds::OnTable(Right::Admin, |request| vec![&request.table]);
    const CALL: &'static SmallCall = &SmallCall {
        repeat: Repeat::Never,
        group: InGroup::Refused,
        missing: Some("move the bounds of rate limiters"),
        ..call::<Self>()
    };
}

/// All small calls. A test of the server compares the list with its handlers.
pub static SMALL_CALLS: [&SmallCall; 18] = [
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
    SyncRequest::CALL,
    TakeRequest::CALL,
    SettleRequest::CALL,
    FailRolloutRequest::CALL,
    SetVersionRequest::CALL,
    DirectoryRequest::CALL,
    SetDirectoryRequest::CALL,
    SetRateLimiterRequest::CALL,
];
