// SPDX-License-Identifier: Apache-2.0
//! Values as the crates above use them. One test binary, because each one costs a link.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may")]

mod columns;
mod known_layouts;
