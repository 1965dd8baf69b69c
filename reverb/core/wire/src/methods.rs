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

    use super::ALL;

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
    }
}
