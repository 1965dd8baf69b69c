// SPDX-License-Identifier: Apache-2.0
//! Long waits at tables and before them, each reported once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_engine::Table;

use crate::observe::streams::Streams;

/// Length of a wait that is logged.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// The begin of the last long wait that was reported, by the position of the table.
#[derive(Debug, Default)]
pub(crate) struct LongWaits(Mutex<BTreeMap<usize, Instant>>);

impl LongWaits {
    /// Tables with a wait of at least `long` that was not returned before.
    pub(crate) fn new_ones<'a>(
        &self,
        tables: &'a [Arc<Table>],
        streams: &Streams,
        long: Duration,
    ) -> Vec<&'a Arc<Table>> {
        let mut reported = self.0.lock();
        let mut found = Vec::new();
        for (position, table) in tables.iter().enumerate() {
            let waits = [table.longest_wait_since(), streams.held_since(table.name())];
            let since = waits.into_iter().flatten().min().filter(|since| since.elapsed() >= long);
            let Some(since) = since else { continue };
            // Between two requests of its reader a wait is in no queue, and the next request says
            // only about when it began.
            if reported.get(&position).is_none_or(|known| since > *known + long / 100) {
                reported.insert(position, since);
                found.push(table);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use reverb_data::{RateLimiterConfig, TableConfig};

    use super::*;
    use crate::observe::streams::StreamKind;

    fn table(name: &str) -> Arc<Table> {
        let rate_limiter = RateLimiterConfig {
            min_size_to_sample: 1,
            samples_per_insert: 1.0,
            min_diff: f64::MIN,
            max_diff: f64::MAX,
        };
        let config = TableConfig { rate_limiter, ..TableConfig::fifo(name, 10) };
        Table::new(config).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_wait_is_reported_once() {
        let tables = [table("idle"), table("empty")];
        let empty = &tables[1];
        let (waits, streams) = (LongWaits::default(), Arc::new(Streams::default()));
        let names = |long| -> Vec<&str> {
            waits.new_ones(&tables, &streams, long).into_iter().map(|table| table.name()).collect()
        };
        assert!(names(Duration::ZERO).is_empty());
        for _ in 0..2 {
            let waiting = tokio::spawn({
                let empty = Arc::clone(empty);
                async move { empty.sample(1, None).await }
            });
            while empty.longest_wait_since().is_none() {
                tokio::task::yield_now().await;
            }
            assert!(names(LONG).is_empty(), "it is not long yet");
            assert_eq!(names(Duration::ZERO), ["empty"]);
            assert!(names(Duration::ZERO).is_empty(), "it was reported");
            waiting.abort();
            while empty.longest_wait_since().is_some() {
                tokio::task::yield_now().await;
            }
            assert!(names(Duration::ZERO).is_empty(), "nobody waits any more");
        }
        let writer = streams.open(StreamKind::Insert, "a:1", "", None);
        writer.use_table(&Arc::from("idle"));
        writer.set_memory_wait(true);
        assert_eq!(names(Duration::ZERO), ["idle"], "a full server holds it back");
    }
}
