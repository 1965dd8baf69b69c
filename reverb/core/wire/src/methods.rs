// SPDX-License-Identifier: Apache-2.0
//! The paths of all calls, for both ends.

/// Writers send items.
pub const INSERT_STREAM: &str = "/deepmind.reverb.ReverbService/InsertStream";
/// Samplers request items.
pub const SAMPLE_STREAM: &str = "/deepmind.reverb.ReverbService/SampleStream";
/// Updates priorities and deletes items.
pub const MUTATE_PRIORITIES: &str = "/deepmind.reverb.ReverbService/MutatePriorities";
/// Empties a table.
pub const RESET: &str = "/deepmind.reverb.ReverbService/Reset";
/// Describes all tables.
pub const SERVER_INFO: &str = "/deepmind.reverb.ReverbService/ServerInfo";
/// Gives dm-reverb's clients in the same process a pointer. Here it does not.
pub const INITIALIZE_CONNECTION: &str = "/deepmind.reverb.ReverbService/InitializeConnection";
/// Saves all tables.
pub const CHECKPOINT: &str = "/deepmind.reverb.ReverbService/Checkpoint";

/// Reads a whole table. dm-reverb does not have it.
pub const SCAN: &str = "/reverb.ReplayService/Scan";
/// Reports the result of checkpoints. dm-reverb does not have it.
pub const CHECKPOINT_STATUS: &str = "/reverb.ReplayService/CheckpointStatus";
/// Tells what the memory is used for. dm-reverb does not have it.
pub const STATUS: &str = "/reverb.ReplayService/Status";
/// Changes settings of tables. dm-reverb does not have it.
pub const CONFIGURE_TABLES: &str = "/reverb.ReplayService/ConfigureTables";
/// Pauses a side of a table, or ends that. dm-reverb does not have it.
pub const SET_PAUSED: &str = "/reverb.ReplayService/SetPaused";
/// Turns a rate limiter off for a while. dm-reverb does not have it.
pub const HOLD_RATE_LIMITER: &str = "/reverb.ReplayService/HoldRateLimiter";
/// Ends all streams. dm-reverb does not have it.
pub const DRAIN: &str = "/reverb.ReplayService/Drain";

/// Tells the map of a group of shards. dm-reverb does not have it.
pub const DIRECTORY: &str = "/reverb.ReplayService/Directory";
/// Gives a shard a new map. dm-reverb does not have it.
pub const SET_DIRECTORY: &str = "/reverb.ReplayService/SetDirectory";
/// Tells sizes, masses and cursors of tables as they change. dm-reverb does not have it.
pub const WATCH: &str = "/reverb.ReplayService/Watch";
/// Updates priorities, and says which keys there are not. dm-reverb does not have it.
pub const UPDATE_PRIORITIES: &str = "/reverb.ReplayService/UpdatePriorities";
/// Moves the bounds of a rate limiter. dm-reverb does not have it.
pub const SET_RATE_LIMITER: &str = "/reverb.ReplayService/SetRateLimiter";
/// Adds items of another shard. dm-reverb does not have it.
pub const TRANSFER: &str = "/reverb.ReplayService/Transfer";

/// gRPC's health service.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// The same as a stream, until the caller cancels it.
pub const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// gRPC's reflection service.
pub const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// The same with the service's older name.
pub const OLD_REFLECTION: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// How large a message of a caller may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestLimit {
    /// So many bytes.
    Bytes(usize),
    /// So many bytes, and [`BYTES_A_TABLE`] for each table of the server.
    BytesAndTables(usize),
    /// What `Limits.call_bytes` says.
    CallBytes,
    /// What `Limits.message_bytes` says.
    MessageBytes,
}

/// Bytes of a request that names tables, for each table of the server.
pub const BYTES_A_TABLE: usize = 1 << 10;

/// Requests of a name and some numbers.
const SMALL: RequestLimit = RequestLimit::BytesAndTables(64 << 10);
/// Requests that have lists of names.
const NAMES: RequestLimit = RequestLimit::BytesAndTables(1 << 20);

/// How large a message of a caller may be, by the path of its call. A test compares the list with
/// the services of the `.proto` files.
pub const REQUEST_LIMITS: [(&str, RequestLimit); ALL.len()] = [
    (INSERT_STREAM, RequestLimit::MessageBytes),
    (SAMPLE_STREAM, SMALL),
    (MUTATE_PRIORITIES, RequestLimit::CallBytes),
    (RESET, SMALL),
    (SERVER_INFO, SMALL),
    (INITIALIZE_CONNECTION, SMALL),
    (CHECKPOINT, SMALL),
    (SCAN, SMALL),
    (CHECKPOINT_STATUS, SMALL),
    (STATUS, SMALL),
    (CONFIGURE_TABLES, NAMES),
    (SET_PAUSED, SMALL),
    (HOLD_RATE_LIMITER, SMALL),
    (DRAIN, SMALL),
    (DIRECTORY, SMALL),
    (SET_DIRECTORY, RequestLimit::CallBytes),
    (WATCH, NAMES),
    (UPDATE_PRIORITIES, RequestLimit::CallBytes),
    (SET_RATE_LIMITER, SMALL),
    (TRANSFER, RequestLimit::MessageBytes),
    // Everybody may call it, also without a token.
    (HEALTH_CHECK, RequestLimit::Bytes(4 << 10)),
    (HEALTH_WATCH, RequestLimit::Bytes(4 << 10)),
    (REFLECTION, SMALL),
    (OLD_REFLECTION, SMALL),
];

/// How large a message of a caller may be; a small one for a path that is not known.
pub fn request_limit(path: &str) -> RequestLimit {
    let known = REQUEST_LIMITS.iter().find(|(known, _)| *known == path);
    known.map_or(SMALL, |(_, limit)| *limit)
}

/// The largest answer that a client reads, unless the answer has items or lists of keys.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// How many bytes of an answer a client reads; `None`: as much as a message may have.
pub fn answer_limit(path: &str) -> Option<usize> {
    let has_much = matches!(path, SAMPLE_STREAM | SCAN | UPDATE_PRIORITIES);
    (!has_much).then_some(MAX_ANSWER_BYTES)
}

/// The name of a call: `Reset`, `Health/Check`.
pub fn name(path: &str) -> &'static str {
    let known = ALL.into_iter().find(|known| *known == path);
    match known {
        Some(HEALTH_CHECK) => "Health/Check",
        Some(HEALTH_WATCH) => "Health/Watch",
        Some(path) => path.rsplit('/').next().unwrap_or(path),
        None => "an unknown method",
    }
}

/// All paths. A test compares the list with the services of the `.proto` files.
pub const ALL: [&str; 24] = [
    INSERT_STREAM,
    SAMPLE_STREAM,
    MUTATE_PRIORITIES,
    RESET,
    SERVER_INFO,
    INITIALIZE_CONNECTION,
    CHECKPOINT,
    SCAN,
    CHECKPOINT_STATUS,
    STATUS,
    CONFIGURE_TABLES,
    SET_PAUSED,
    HOLD_RATE_LIMITER,
    DRAIN,
    DIRECTORY,
    SET_DIRECTORY,
    WATCH,
    UPDATE_PRIORITIES,
    SET_RATE_LIMITER,
    TRANSFER,
    HEALTH_CHECK,
    HEALTH_WATCH,
    REFLECTION,
    OLD_REFLECTION,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::{ALL, REQUEST_LIMITS};

    #[test]
    fn every_call_of_the_services_has_a_path() {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
        let declared = set.file.iter().flat_map(|file| {
            file.service.iter().flat_map(|service| {
                let prefix = format!("/{}.{}/", file.package(), service.name());
                service.method.iter().map(move |method| format!("{prefix}{}", method.name()))
            })
        });
        let declared: BTreeSet<String> = declared.collect();
        assert_eq!(declared, ALL.into_iter().map(str::to_owned).collect());
        let limited = REQUEST_LIMITS.map(|(path, _)| path.to_owned());
        assert_eq!(declared, limited.into_iter().collect(), "each has a limit");
    }
}
