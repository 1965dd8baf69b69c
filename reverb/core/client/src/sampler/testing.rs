// SPDX-License-Identifier: Apache-2.0
//! Samples for the tests of readers.

use reverb_data::{Sampled, Trajectory};

/// An item that was sampled once, from a table of one.
pub(super) fn sampled(key: u64, trajectory: Trajectory) -> Sampled {
    Sampled {
        key,
        priority: 1.0,
        times_sampled: 1,
        probability: 1.0,
        table_size: 1,
        inserted_at_ns: 0,
        rate_limited: false,
        min_probability: 0.0,
        epoch: 0,
        removal_priority: None,
        window: reverb_data::SampledWindow::default(),
        trajectory,
    }
}
