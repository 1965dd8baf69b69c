// SPDX-License-Identifier: Apache-2.0
//! Warnings about tables with calls that have been blocked for minutes, with their diagnosis.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::PerProcess;

use crate::service::Service;
use crate::status::diagnosis;

/// Length of a wait that is logged.
const LONG: Duration = Duration::from_secs(300);

/// Running servers. A forked child has their memory, but none of their threads.
static SERVERS: PerProcess<Mutex<Vec<Weak<Service>>>> = PerProcess::new();

/// The begin of the last long wait that was logged, by the position of the table.
#[derive(Debug, Default)]
pub(crate) struct LongWaits(Mutex<BTreeMap<usize, Instant>>);

/// Adds a server to those checked by [`warn_of_long_waits`].
pub(crate) fn register(service: &Arc<Service>) {
    SERVERS.with(|servers| {
        servers.retain(|service| service.strong_count() > 0);
        servers.push(Arc::downgrade(service));
    });
}

/// Logs long waits at the servers of this process, once each. The caller runs this periodically, so
/// servers need no timer.
pub fn warn_of_long_waits() {
    let servers = SERVERS.with(|servers| servers.clone());
    for service in &servers {
        let Some(service) = service.upgrade().filter(|it| !it.stop.is_stopped()) else { continue };
        for (table, sentence) in untold(&service, LONG) {
            tracing::warn!(table, "somebody has waited for more than 5 minutes. {sentence}");
        }
    }
}

/// Tables with a wait of at least `long` that was not logged yet, and their diagnoses.
fn untold(service: &Service, long: Duration) -> Vec<(String, String)> {
    let mut told = service.long_waits.0.lock();
    let mut untold = Vec::new();
    for (at, table) in service.tables.all().iter().enumerate() {
        let since = table.longest_wait_since().filter(|since| since.elapsed() >= long);
        let Some(since) = since else { continue };
        // A wait may be out of the queue at a look, between two requests of its reader, and these
        // tell about when it began.
        if told.get(&at).is_none_or(|known| since > *known + long / 100) {
            told.insert(at, since);
            untold.push((table.name().to_owned(), diagnosis(service, table).sentence()));
        }
    }
    untold
}

#[cfg(test)]
mod tests {
    use reverb_data::{RateLimiterConfig, TableConfig};
    use reverb_engine::{ChangedBy, Table};
    use tokio::runtime::Handle;

    use super::*;
    use crate::server::{Server, ServerOptions};

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
    async fn a_long_wait_is_told_once_with_its_diagnosis() {
        let (empty, idle) = (table("empty"), table("idle"));
        let tables = vec![Arc::clone(&empty), idle];
        let options = ServerOptions::default();
        let server = Server::start(tables, &options, &Handle::current()).unwrap();
        let of_this = |service: &Arc<Service>| Arc::ptr_eq(&service.tables.all()[0], &empty);
        let registered = SERVERS.with(|servers| servers.clone());
        let service = registered.iter().filter_map(Weak::upgrade).find(of_this).unwrap();

        assert_eq!(untold(&service, Duration::ZERO), []);
        empty.pause(false, true, &ChangedBy::now("ann")).unwrap();
        for _ in 0..2 {
            let waiting = tokio::spawn({
                let empty = Arc::clone(&empty);
                async move { empty.sample(1, None).await }
            });
            while empty.longest_wait_since().is_none() {
                tokio::task::yield_now().await;
            }
            assert_eq!(untold(&service, LONG), [], "it is not long yet");
            let told = untold(&service, Duration::ZERO);
            assert_eq!(told.len(), 1);
            assert_eq!(told[0].0, "empty");
            assert!(told[0].1.starts_with("Samples are paused by ann since "), "{}", told[0].1);
            assert_eq!(untold(&service, Duration::ZERO), [], "it was told");
            waiting.abort();
            while empty.longest_wait_since().is_some() {
                tokio::task::yield_now().await;
            }
            assert_eq!(untold(&service, Duration::ZERO), [], "nobody waits any more");
        }
        server.stop();
    }
}
