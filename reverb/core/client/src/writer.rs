// SPDX-License-Identifier: Apache-2.0
//! Writers: steps become items, and items reach their tables.
//!
//! Two rooms: `capture` keeps steps and makes items of them, and sends nothing; `send` queues
//! items, streams them, and waits for their confirmation. The face between them is
//! `capture::item::PendingItem`: a writer makes one in the first room and pushes it into the
//! second, which encodes it. Nothing in `capture` knows `send`.
//!
//! `trajectory`, `batched`, `sequence` and `legacy` are the writers. `insertion` needs no history:
//! it encodes whole rows (`capture::rows`) and delivers them itself (`send::delivery`).

pub(crate) mod batched;
pub(crate) mod capture;
pub(crate) mod insertion;
pub(crate) mod legacy;
pub(crate) mod send;
pub(crate) mod sequence;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod trajectory;
