// SPDX-License-Identifier: Apache-2.0
//! Calls of asyncio programs: each is a future on the core's runtime, and an awaitable in Python.
//!
//! A call is polled once by the thread of the event loop; a result that is ready then needs no task
//! and no message between threads. Other calls continue in the runtime. When a call ends there, its
//! number is put into a list, and a byte wakes the event loop if the list was empty. The loop's
//! thread creates the Python objects, so threads of the runtime never take the GIL.

pub(crate) mod call;
pub(crate) mod client;
mod completions;
pub(crate) mod insertion;
