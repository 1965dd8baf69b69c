// SPDX-License-Identifier: Apache-2.0
//! Templates: what a program's steps, chunks and items have in common, found once.
//!
//! Nearly all steps of a program look alike. Each module here remembers one thing of the last
//! ones, compares the next with it exactly, and so parses, checks or stores that thing once. Those
//! of the protocol and of the client are `wire/codec/trajectory_template.rs`,
//! `client/sampler/copy_plan.rs` and, in `client/writer`, `item_kind.rs`, `chunk_template.rs` and
//! `resolver.rs`. The design page `docs/design/look-alikes.md` has what each remembers, its bound
//! and what it gains.

pub(crate) mod byte_mask;
pub(crate) mod chunk_layout;
pub(crate) mod columns;
pub(crate) mod header_cache;
pub(crate) mod interned;
pub(crate) mod item_validator;
pub(crate) mod known_layout;
pub(crate) mod payload_layout;
pub(crate) mod recent_cache;
pub(crate) mod step_header;
