// SPDX-License-Identifier: Apache-2.0
//! The paths of all calls, as both ends name them.

/// Writers send items.
pub const INSERT_STREAM: &str = "/deepmind.reverb.ReverbService/InsertStream";
/// Samplers ask for items.
pub const SAMPLE_STREAM: &str = "/deepmind.reverb.ReverbService/SampleStream";
/// Updates priorities and deletes items.
pub const MUTATE_PRIORITIES: &str = "/deepmind.reverb.ReverbService/MutatePriorities";
/// Empties a table.
pub const RESET: &str = "/deepmind.reverb.ReverbService/Reset";
/// Describes all tables.
pub const SERVER_INFO: &str = "/deepmind.reverb.ReverbService/ServerInfo";
/// Hands dm-reverb's clients of the same process a pointer; not so here.
pub const INITIALIZE_CONNECTION: &str = "/deepmind.reverb.ReverbService/InitializeConnection";
/// Saves all tables.
pub const CHECKPOINT: &str = "/deepmind.reverb.ReverbService/Checkpoint";

/// Reads a whole table. dm-reverb does not have it.
pub const SCAN: &str = "/reverb.ReplayService/Scan";
/// What became of the checkpoints. dm-reverb does not have it.
pub const CHECKPOINT_STATUS: &str = "/reverb.ReplayService/CheckpointStatus";

/// gRPC's health service.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// The same, for as long as the caller listens.
pub const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// gRPC's reflection service.
pub const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// The same under the service's older name.
pub const OLD_REFLECTION: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
