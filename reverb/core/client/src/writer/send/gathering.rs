// SPDX-License-Identifier: Apache-2.0
//! Gathering: items that are sent in one message.

use std::time::Duration;

use tokio::time::Instant;

use super::MESSAGE_ITEMS;

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

/// The pace of a writer whose server is in this process. None of its items is ever in flight, so a
/// fast one would wake the task for each of them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Beginning of the current span of time, and the number of items in it.
    span: Option<(Instant, usize)>,
    /// Time until which the writer counts as fast.
    is_fast_until: Option<Instant>,
}

impl Pace {
    /// Counts items that the server took.
    pub(super) fn count(&mut self, items: usize, gathering: Gathering, now: Instant) {
        let (began, before) = self.span.unwrap_or((now, 0));
        let items = before + items;
        let lasted = now - began;
        if lasted < gathering.time {
            self.span = Some((began, items));
            return;
        }
        let is_fast = items >= gathering.items && lasted < 2 * gathering.time;
        self.is_fast_until = is_fast.then_some(now + 2 * gathering.time);
        self.span = Some((now, 0));
    }

    /// True if as many items as end a gathering come in its time: then it is worth the wait.
    pub(super) fn is_fast(&self, now: Instant) -> bool {
        self.is_fast_until.is_some_and(|until| now < until)
    }
}

/// Number of flushes, each after one item, from which a flush is expected after the next one.
const SINGLE_FLUSHES: u32 = 8;

/// Whether a writer flushes each item. Then its caller sends the item, and no thread is woken that
/// would do so at the same time.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    has_item: bool,
    num_single: u32,
}

impl Flushes {
    /// Counts an item, or several that were queued together.
    pub(super) fn add_item(&mut self) {
        if std::mem::replace(&mut self.has_item, true) {
            self.num_single = 0;
        }
    }

    /// Counts a flush.
    pub(super) fn flush(&mut self) {
        let is_single = std::mem::take(&mut self.has_item);
        self.num_single = self.num_single.saturating_add(u32::from(is_single));
    }

    /// True if a flush is going to follow the item.
    pub(super) fn expects_flush(&self) -> bool {
        self.num_single >= SINGLE_FLUSHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_expected_after_some_flushes_of_one_item() {
        let mut flushes = Flushes::default();
        for _ in 0..SINGLE_FLUSHES {
            assert!(!flushes.expects_flush());
            flushes.add_item();
            flushes.flush();
        }
        assert!(flushes.expects_flush());
        flushes.flush();
        flushes.add_item();
        assert!(flushes.expects_flush());
        flushes.add_item();
        assert!(!flushes.expects_flush());
    }

    /// True if the pace is fast after this many items, one in each interval.
    fn is_fast_after(pace: &mut Pace, now: &mut Instant, items: usize, interval: Duration) -> bool {
        for _ in 0..items {
            *now += interval;
            pace.count(1, Gathering::IN_FLIGHT, *now);
        }
        pace.is_fast(*now)
    }

    #[test]
    fn only_a_pace_that_ends_a_gathering_is_fast() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let micros = Duration::from_micros;
        assert!(!is_fast_after(&mut pace, &mut now, 50, micros(4)));
        assert!(is_fast_after(&mut pace, &mut now, 500, micros(4)));
        assert!(!pace.is_fast(now + micros(2000)), "the next item after a pause is sent at once");
        assert!(!is_fast_after(&mut pace, &mut now, 500, micros(20)));
        assert!(is_fast_after(&mut pace, &mut now, 500, micros(10)));
        assert!(!is_fast_after(&mut pace, &mut now, 1, micros(100_000)));
        assert!(!is_fast_after(&mut pace, &mut now, 100, micros(2000)));
    }
}
