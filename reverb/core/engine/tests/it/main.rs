// SPDX-License-Identifier: Apache-2.0
//! Tables as the crates above use them. One test binary, because each one costs a link.

#![allow(clippy::float_cmp, clippy::unwrap_used, reason = "tests may")]

mod commits;
mod common;
mod concurrency;
mod configure;
mod distributions;
mod items;
mod scan;
mod statistics;
mod transfer;
mod vectors;
mod wait_reasons;
mod waiting;
mod windows;
