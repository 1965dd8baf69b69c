// SPDX-License-Identifier: Apache-2.0
//! Metrics of tables with rollouts. Other tables have none of these series.

use reverb_wire::generated::reverb::{RolloutsStatus, TableStatus};

use super::text::{Kind, Text};
use super::{histogram, limit};

/// Tables with rollouts, by their names.
struct OfRollouts<'a> {
    text: &'a mut Text,
    tables: Vec<(&'a str, &'a RolloutsStatus)>,
}

impl OfRollouts<'_> {
    fn family(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        value: impl Fn(&RolloutsStatus) -> f64,
    ) {
        self.text.family(name, kind, help);
        for (table, rollouts) in &self.tables {
            self.text.series(&[("table", table)], value(rollouts));
        }
    }

    /// One series for each table and each value of another label.
    fn split<const PARTS: usize>(
        &mut self,
        (name, label): (&'static str, &'static str),
        kind: Kind,
        help: &str,
        values: impl Fn(&RolloutsStatus) -> [(&'static str, i64); PARTS],
    ) {
        self.text.family(name, kind, help);
        for (table, rollouts) in &self.tables {
            for (part, value) in values(rollouts) {
                self.text.series(&[("table", table), (label, part)], value as f64);
            }
        }
    }
}

/// The series of tables with rollouts.
pub(super) fn rollouts(text: &mut Text, tables: &[TableStatus]) {
    let with_rollouts = |table: &'_ TableStatus| table.rollouts.is_some();
    let tables = tables.iter().filter(|table| with_rollouts(table));
    let tables = tables.filter_map(|it| Some((&*it.name, it.rollouts.as_ref()?))).collect();
    let mut all = OfRollouts { text, tables };
    all.split(
        ("reverb_table_rollout_items", "state"),
        Kind::Gauge,
        "Items with rollouts by their state; those that are held count as open or ready, too.",
        |it| {
            [
                ("open", it.open),
                ("settled", it.settled),
                ("ready", it.ready),
                ("open_held", it.open_held),
                ("settled_held", it.settled_held),
                ("ready_held", it.ready_held),
            ]
        },
    );
    all.family("reverb_table_version", Kind::Gauge, "Version of the policy.", |it| {
        it.version as f64
    });
    all.family("reverb_table_backlog", Kind::Gauge, "Items that the backlog counts.", |it| {
        it.backlog as f64
    });
    all.family("reverb_table_max_backlog", Kind::Gauge, "Limit of the backlog.", |it| {
        limit(it.max_backlog)
    });
    all.family("reverb_table_taken", Kind::Gauge, "Items taken since the version was set.", |it| {
        it.taken as f64
    });
    all.split(
        ("reverb_table_waiting_takes", "state"),
        Kind::Gauge,
        "Requests of generators and stages that wait, by the state of the items.",
        |it| [("open", it.waiting_open), ("settled", it.waiting_settled)],
    );
    all.split(
        ("reverb_table_rollouts_total", "outcome"),
        Kind::Counter,
        "Rollouts, by how they ended.",
        |it| [("final", it.num_rollouts), ("failed", it.num_failed_rollouts)],
    );
    all.family(
        "reverb_table_again_total",
        Kind::Counter,
        "Items that are made again, because they became stale or the memory was full.",
        |it| it.num_again as f64,
    );
    all.family(
        "reverb_table_lost_leases_total",
        Kind::Counter,
        "Items whose client was lost, or held them for too long.",
        |it| it.num_lost_leases as f64,
    );
    all.family(
        "reverb_table_last_rollout_age_seconds",
        Kind::Gauge,
        "Time since the last rollout; NaN if none came since the start.",
        |it| it.last_rollout_age_s.unwrap_or(f64::NAN),
    );
    all.family(
        "reverb_table_oldest_open_seconds",
        Kind::Gauge,
        "Time since the insert of the open item that was inserted first; 0 without one.",
        |it| it.oldest_open.as_ref().map_or(0.0, |item| item.age_s),
    );
    all.family(
        "reverb_table_oldest_lease_seconds",
        Kind::Gauge,
        "Age of the longest lease of a learner; 0 without one.",
        |it| it.oldest_lease.as_ref().map_or(0.0, |lease| lease.age_s),
    );
    let help = "Versions between the policy that wrote an item and the one at its take.";
    all.text.family("reverb_table_staleness", Kind::Histogram, help);
    for (table, rollouts) in all.tables {
        histogram(all.text, &[("table", table)], rollouts.staleness.as_ref());
    }
}
