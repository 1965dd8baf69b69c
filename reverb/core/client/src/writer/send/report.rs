// SPDX-License-Identifier: Apache-2.0
//! Reports: what a send queue waits for, and what a program leaves in it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reverb_base::Error;
use reverb_base::figures::Bound;
use reverb_wire::Calls as _;
use reverb_wire::generated::deepmind::reverb::{RateLimiterCallStats, TableInfo};
use reverb_wire::generated::reverb::{Diagnosis, StatusRequest, StatusResponse};

use super::send_queue::SendQueue;
use crate::retry::short;

/// Time limit for asking a server about its tables.
pub(super) const STATUS_TIMEOUT: Duration = Duration::from_millis(100);

impl SendQueue {
    /// Logs how many items are not confirmed when a program leaves the writer, once. `how` is what
    /// the program did. Of many writers that it leaves in the same way, the log has one line a
    /// minute, so their numbers are in a field.
    pub fn report_unconfirmed(&self, how: &str) {
        // Whoever closed it has reported them, or did not want to. The task may still have some.
        if self.is_closed() {
            return;
        }
        let num_items = self.num_pending();
        let tables = self.waiting_tables();
        if num_items == 0 || tables.is_empty() || self.has_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            items = num_items,
            "a writer was left with items of {} {} that {} has not confirmed: {how}",
            if tables.len() == 1 { "table" } else { "tables" },
            tables.join(", "),
            short(self.session.address()),
        );
    }

    /// Closes the queue of a writer that the program has deleted; the log counts what is lost.
    pub fn delete(&self) {
        self.report_unconfirmed(
            "it was deleted without a flush, which abandons them. Flush it, or use it in a with \
             block.",
        );
        self.close();
    }

    /// Text about what a flush is waiting for, with the state of the rate limiters if the server
    /// answers quickly.
    pub(super) async fn describe_wait(&self) -> String {
        let waiting = self.describe_queue();
        if self.was_lost() {
            return waiting;
        }
        let tables = self.waiting_tables();
        if tables.is_empty() {
            return waiting;
        }
        if self.session.has_several_servers() {
            // With several servers, a status call would go to the next one.
            return format!("{waiting}. A table confirms an item once its rate limiter lets it in");
        }
        let limiters = async {
            let info = self.session.transport()?.server_info().await?;
            Ok::<_, Error>(describe_limiters(&info.tables, &tables))
        };
        // Servers of dm-reverb do not report it.
        let request = StatusRequest::default();
        let reasons = async {
            let status = self.session.transport()?.call(request).await?;
            Ok::<_, Error>(describe_reasons(&status, &tables))
        };
        let limiters = tokio::time::timeout(STATUS_TIMEOUT, limiters).await;
        let limiters = match limiters {
            Ok(Ok(limiters)) => limiters,
            _ => "The state of their rate limiters is not available".to_owned(),
        };
        let reasons = tokio::time::timeout(STATUS_TIMEOUT, reasons).await;
        let reasons = reasons.map_or(String::new(), Result::unwrap_or_default);
        format!(
            "{waiting}.{reasons} A table confirms an item once its rate limiter lets it in. \
             {limiters}"
        )
    }

    /// Text about the items that are not confirmed, without a question to the server.
    pub(crate) fn describe_queue(&self) -> String {
        let tables = self.waiting_tables().join(", ");
        let state = self.state.lock();
        let Some(lost) = &state.lost else {
            if state.num_pending() == 0 {
                return "nothing any more: all items were confirmed just now".to_owned();
            }
            return format!(
                "{} items sent to {} but not confirmed and {} items not sent yet (tables: {tables})",
                state.num_sent(),
                state.peer(),
                state.queue.len(),
            );
        };
        format!(
            "{} items that are not confirmed (tables: {tables}), and for a connection to {}, which was lost {:.1} s \
             ago. The last attempt to connect failed: {}",
            state.num_pending(),
            state.address,
            lost.since.elapsed().as_secs_f64(),
            lost.error,
        )
    }

    /// The table of the oldest item that is not confirmed yet.
    pub(crate) fn oldest_table(&self) -> Option<Arc<str>> {
        self.state.lock().tables().next().cloned()
    }

    /// The tables of the items that are not confirmed yet.
    pub(crate) fn waiting_tables(&self) -> Vec<String> {
        let state = self.state.lock();
        let tables: BTreeSet<&Arc<str>> = state.tables().collect();
        tables.into_iter().map(ToString::to_string).collect()
    }
}

/// Reasons why these tables block items, as the server reports them.
fn describe_reasons(status: &StatusResponse, tables: &[String]) -> String {
    let waiting = status.tables.iter().filter(|table| tables.contains(&table.name));
    let texts = waiting.filter_map(|table| {
        let Diagnosis { state, sentence } = table.diagnosis.as_ref()?;
        let reason = &table.inserting.as_ref()?.reason;
        match &**state {
            // No call has been blocked for long.
            "flowing" | "idle" | "" if reason.is_empty() => None,
            "flowing" | "idle" | "" => Some(format!(" Table {}: {reason}", table.name)),
            _ => Some(format!(" Table {} is {state}: {sentence}", table.name)),
        }
    });
    texts.collect()
}

fn describe_limiters(infos: &[TableInfo], tables: &[String]) -> String {
    let describe = |name: &String| match infos.iter().find(|info| info.name == *name) {
        Some(info) => describe_limiter(info),
        None => format!("Table {name}: the server has none of that name"),
    };
    let texts: Vec<String> = tables.iter().map(describe).collect();
    texts.join("; ")
}

fn describe_limiter(info: &TableInfo) -> String {
    let limiter = info.rate_limiter_info.unwrap_or_default();
    let completed = |stats: Option<RateLimiterCallStats>| stats.unwrap_or_default().completed;
    format!(
        "Table {}: {} item(s), max_size {}, min_size_to_sample {}, {} insert(s), {} sample(s), samples_per_insert {}, \
         min_diff {}, max_diff {}",
        info.name,
        info.current_size,
        info.max_size,
        limiter.min_size_to_sample,
        completed(limiter.insert_stats),
        completed(limiter.sample_stats),
        limiter.samples_per_insert,
        Bound(limiter.min_diff),
        Bound(limiter.max_diff),
    )
}
