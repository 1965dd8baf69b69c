// SPDX-License-Identifier: Apache-2.0
//! Clients of a server: calls, writers that stream steps, readers that fetch samples.
//!
//! Design: `docs/design/writers.md` and `docs/design/readers.md`.
//!
//! The crate reaches every server, even one in its own process, through
//! `reverb_wire::transport::Transport`.

#![forbid(unsafe_code)]

mod absence;
mod client;
mod leases;
mod retry;
mod sampler;
mod session;
mod structured;
mod unanswered;
mod waits;
mod writer;

pub use client::{BatchRequest, Client};
pub use sampler::ahead::{AheadOptions, BatchesAhead, NextBatch, ReadyBatch, SampledNumbers};
pub use sampler::batch_column::{BatchColumn, ColumnData, GivenColumn, Lengths};
pub use sampler::column_plan::ColumnPlan;
pub use sampler::copy_plan::CopyPlans;
pub use sampler::cursor::SampleCursor;
pub use sampler::fetch_ahead::fetched_ahead;
pub use sampler::parallel::{Sampler, SamplerOptions, TakeOutcome};
pub use sampler::ragged::RaggedForm;
pub use sampler::scan::ScanCursor;
pub use session::{Connector, Signatures};
pub use structured::config::Configs;
pub use structured::engine::{PatternEngine, PatternItem};
pub use structured::writer::StructuredWriter;
pub use waits::{ReportWaits, report_waits};
pub use writer::batched::{BatchedColumn, BatchedValue, BatchedWriter, NewItems, StepIndex};
pub use writer::capture::cell::{Cell, CellRef, CellValue};
pub use writer::capture::column_orders::{ColumnOrder, Matching};
pub use writer::capture::constants::BatchedConstant;
pub use writer::capture::history::{ColumnOptions, History};
pub use writer::capture::item::ColumnRefs;
pub use writer::capture::item_maker::ItemMaker;
pub use writer::insertion::{Insertion, OwnKeys, RowPriorities};
pub use writer::legacy::{LegacyOptions, LegacyWriter};
pub use writer::send::send_queue::SendQueue;
pub use writer::sequence::{ItemSteps, PerRow, SequenceOptions, SequenceWriter, Step};
pub use writer::trajectory::TrajectoryWriter;
