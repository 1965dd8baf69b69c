// SPDX-License-Identifier: Apache-2.0
//! Gathering: items that are sent in one message.

use std::time::Duration;

use crate::writer::MESSAGE_ITEMS;

/// Number of environments from which items of several steps are gathered.
const MANY_ENVIRONMENTS: usize = 8;

/// Rule for gathering items before they are sent. A caller that waits for confirmations ends the
/// gathering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gathering {
    /// Number of items that ends the gathering.
    pub(super) items: usize,
    /// Time that ends the gathering. It is short, because an item of a free table must not wait for
    /// a blocked table.
    pub(super) time: Duration,
    /// True if items are gathered even while none is in flight.
    pub(super) always: bool,
}

impl Gathering {
    /// The first item is sent at once, and others gather while it is in flight.
    pub(crate) const IN_FLIGHT: Self =
        Self { items: 64, time: Duration::from_millis(1), always: false };

    /// For environments that are stepped together: the items of four steps of all of them. Waking
    /// the task for each step, and cutting blocks there, would double the caller's time. With few
    /// environments that costs little, and chunks of equal length are sampled faster.
    pub(crate) fn of_steps(batch_size: usize) -> Self {
        if batch_size < MANY_ENVIRONMENTS {
            return Self::IN_FLIGHT;
        }
        let items = batch_size.saturating_mul(4).clamp(Self::IN_FLIGHT.items, MESSAGE_ITEMS);
        Self { items, time: Duration::from_millis(2), always: true }
    }
}
