// SPDX-License-Identifier: Apache-2.0
//! Values of replay: tensors, chunks, items, settings of tables, and their codecs.
//!
//! Design: `docs/design/chunks.md`.
//!
//! This crate opens no files and waits for no event; a payload that is on disk is read through
//! `ReadAt`. Its values of the process: accounts of bytes
//! (`account`), known columns and layouts (`templates`), and memory of threads (`spare_lists`,
//! `codec`).

#![forbid(unsafe_code)]

mod account;
pub mod chunk;
mod chunk_maker;
pub mod codec;
pub mod column_names;
mod delta;
mod disk;
pub mod dtype;
pub mod item;
pub mod item_condition;
pub mod key;
mod literal;
mod max_priority;
mod prospects;
pub mod proto_bytes;
mod right;
pub mod rollouts;
pub mod sample_options;
mod selector_config;
mod shard_identity;
pub mod signature;
mod spare_lists;
pub mod stacking;
pub mod step_window;
mod table_change;
mod table_config;
mod table_info;
mod templates;
pub mod tensor;
mod tensor_head;
pub mod trajectory;

pub use account::{ServerAccount, TableAccount, free_all};
pub use chunk::{Chunk, ChunkBuilder, SequenceRange};
pub use chunk_maker::ChunkMaker;
pub use disk::Recorded;
pub use disk::data_file::{DataFile, PAYLOAD_ALIGNMENT, Place, ReadAt};
pub use disk::heads::{Heads, HeadsCache};
pub use dtype::DType;
pub use item::{NewItem, Sampled, StoredItem};
pub use item_condition::ItemCondition;
pub use key::{KeyGenerator, KeySlots, NUM_SLOTS, slot_of};
pub use max_priority::{ItemPriority, MAX_PRIORITY, MaxPriority, is_max_priority, is_priority};
pub use right::Right;
pub use sample_options::{SampleOptions, WithinEpoch};
pub use selector_config::{Draw, GroupSampling, SelectorConfig};
pub use shard_identity::ShardIdentity;
pub use signature::{Signature, TensorSpec};
pub use spare_lists::{SpareLists, keep_samples, spare_samples};
pub use stacking::{ItemSpec, Stacking};
pub use step_window::{ColumnSpan, SampledWindow, StepCount, StepWindow};
pub use table_change::{RolloutsChange, TableChange};
pub use table_config::{
    MAX_MAX_SIZE, MemoryConfig, RateLimiterConfig, TableConfig, TableSignature, WhenFull,
};
pub use table_info::{Counters, TableInfo, Totals, WorkerTime};
pub use templates::byte_mask::ByteMask;
pub use templates::chunk_layout::ChunkLayout;
pub use templates::item_validator::ItemValidator;
pub use templates::recent_cache::RecentCache;
pub use templates::step_header::StepHeader;
pub use tensor::{Shape, Tensor, TensorData};
pub use tensor_head::TensorHead;
pub use trajectory::{
    ManyChunkColumns, OneChunkColumns, StoredTrajectory, Trajectory, TrajectoryBuilder,
    TrajectoryContent,
};
