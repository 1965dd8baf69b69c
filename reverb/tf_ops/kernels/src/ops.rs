// SPDX-License-Identifier: Apache-2.0
//! The ops, grouped by file.

use std::time::Duration;

use crate::attrs::Attrs;
use crate::failure::{Failure, Outcome};
use crate::kernel::register;

mod append;
mod calls;
mod patterns;
mod sample;
mod sampler;

/// Registers every op.
pub(crate) fn register_all() -> Outcome<()> {
    register::<sampler::Create>()?;
    register::<sampler::Check>()?;
    register::<sampler::Next>()?;
    register::<sampler::Close>()?;
    register::<sample::Sample>()?;
    register::<sample::Resume>()?;
    register::<append::Append>()?;
    register::<calls::Insert>()?;
    register::<calls::UpdatePriorities>()?;
    register::<calls::Resume>()?;
    register::<calls::Abandon>()?;
    register::<patterns::Append>()?;
    register::<patterns::Pop>()
}

/// The attribute `wait_ms`, which most ops have.
fn wait(attrs: &Attrs) -> Outcome<Duration> {
    let wait_ms = attrs.int("wait_ms")?;
    u64::try_from(wait_ms).map(Duration::from_millis).map_err(|_| {
        Failure::invalid_argument(format!("wait_ms must be at least 0, got {wait_ms}"))
    })
}
