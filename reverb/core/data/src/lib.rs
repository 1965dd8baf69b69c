// SPDX-License-Identifier: Apache-2.0
//! The values that all crates share: errors, tensors, chunks, trajectories, and what a table is.
//!
//! Design: `docs/design/chunks.md`.
//!
//! This crate does no I/O, waits for nothing and takes no locks. It contains only values, three
//! lists of the process: who counts the bytes of chunks (`account`), known columns (`columns`), and
//! known layouts of chunks (`known_layout`), and memory that threads use again (`spare_lists`).

#![forbid(unsafe_code)]

mod account;
pub mod byte_size;
pub mod chunk;
mod chunk_layout;
mod chunk_maker;
pub mod codec;
pub mod column_names;
mod columns;
mod delta;
pub mod diagnosis;
pub mod dtype;
pub mod error;
pub mod figures;
mod file;
mod frame;
mod interned;
pub mod item;
mod item_validator;
pub mod key;
mod known_kinds;
mod known_layout;
mod literal;
mod max_priority;
mod payload_layout;
mod prospects;
pub mod proto_bytes;
mod right;
pub mod sample_options;
pub mod signature;
mod spare_lists;
pub mod stacking;
mod step_kind;
mod table_change;
mod table_config;
mod table_info;
pub mod tensor;
mod tensor_memo;
mod token_text;
pub mod trajectory;

pub use account::{ServerAccount, TableAccount};
pub use chunk::{Chunk, ChunkBuilder, SequenceRange};
pub use chunk_layout::ChunkLayout;
pub use chunk_maker::ChunkMaker;
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use file::{Unreadable, open_directory, open_file, read_file};
pub use frame::Frame;
pub use item::{NewItem, Sampled, StoredItem};
pub use item_validator::ItemValidator;
pub use key::{KeyGenerator, KeySlots, NUM_SLOTS, slot_of};
pub use known_kinds::KnownKinds;
pub use max_priority::{ItemPriority, MAX_PRIORITY, MaxPriority, is_max_priority, is_priority};
pub use right::Right;
pub use sample_options::SampleOptions;
pub use signature::{Signature, TensorSpec};
pub use spare_lists::{SpareLists, keep_samples, spare_samples};
pub use stacking::{Layout, Stacking};
pub use step_kind::StepKind;
pub use table_change::TableChange;
pub use table_config::{
    Draw, MemoryConfig, RateLimiterConfig, SelectorConfig, TableConfig, TableSignature, WhenFull,
};
pub use table_info::{Counters, TableInfo, WorkerTime};
pub use tensor::{Shape, Tensor, TensorData};
pub use tensor_memo::TensorMemo;
pub use trajectory::{
    ManyChunkColumns, OneChunkColumns, StoredTrajectory, Trajectory, TrajectoryBuilder,
    TrajectoryContent,
};
