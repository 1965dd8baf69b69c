// SPDX-License-Identifier: Apache-2.0
//! Asking a server: clients, the writers that stream steps in, and the readers that fetch samples.
//!
//! Knows a server only through `reverb_wire::transport::Transport`, wherever it runs.

#![forbid(unsafe_code)]

pub mod client;
pub mod retry;
pub mod sampler;
pub mod structured;
pub mod writer;

pub use client::{Client, Connector};
pub use sampler::batch::{Batch, BatchColumn, ColumnPlan};
pub use sampler::cursor::SampleCursor;
pub use sampler::parallel::{Sampler, SamplerOptions, Taken};
pub use sampler::scan::ScanCursor;
pub use structured::{PatternEngine, StructuredWriter};
pub use writer::batched::BatchedWriter;
pub use writer::cell::{CellRef, CellValue};
pub use writer::lane::{ColumnOptions, Lane};
pub use writer::legacy::LegacyWriter;
pub use writer::sequence::SequenceWriter;
pub use writer::single_steps::SingleStepWriters;
pub use writer::trajectory::{ColumnRefs, TrajectoryWriter};
