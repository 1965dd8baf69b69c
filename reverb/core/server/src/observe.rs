// SPDX-License-Identifier: Apache-2.0
//! What a server is doing: its streams and their waits, its rates, a diagnosis of each table, and
//! the forms in which people and programs get them: status, JSON, metrics, page.
//!
//! Nothing here knows how a server works: it is given tables, streams and numbers.

pub(crate) mod diagnosis;
pub(crate) mod forecast;
pub(crate) mod long_waits;
pub(crate) mod metrics;
pub(crate) mod page;
pub(crate) mod process_status;
pub(crate) mod status;
pub(crate) mod streams;
pub(crate) mod timeline;
