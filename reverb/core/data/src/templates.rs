// SPDX-License-Identifier: Apache-2.0
//! Templates: the common parts of a program's steps, chunks and items, found once.
//!
//! Nearly all steps of a program look alike. Each module here remembers one thing of the last ones,
//! compares the next with it exactly, and so parses, checks or stores that thing once. Those of the
//! protocol and of the client are `wire/codec/trajectory_template.rs`,
//! `client/sampler/copy_plan.rs` and, in `client/writer/capture`, `item_template.rs`,
//! `chunk_template.rs` and `item_encoder.rs`. The design page `docs/design/look-alikes.md` lists,
//! for each, the remembered thing, its bound and its gain.

pub(crate) mod byte_mask;
pub(crate) mod chunk_layout;
pub(crate) mod columns;
pub(crate) mod interned;
pub(crate) mod item_validator;
pub(crate) mod known_layout;
pub(crate) mod payload_layout;
pub(crate) mod recent_cache;
pub(crate) mod step_header;
