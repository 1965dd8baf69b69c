// SPDX-License-Identifier: Apache-2.0
//! Steps that are in no item when a program leaves a sequence writer.

use super::{ItemSteps, SequenceWriter};

impl SequenceWriter {
    /// Logs the steps that are in no item, once: a warning if the writer made no item at all. Steps
    /// of episodes that were dropped as too long do not count; `num_dropped_episodes` has them.
    pub fn report_unwritten(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.has_reported, true) {
            return;
        }
        let table = self.tables.join(",");
        let makes_none = !state.has_items && state.num_steps > 0 && state.num_dropped_episodes == 0;
        match self.item_steps {
            ItemSteps::Episode { .. } if makes_none => tracing::warn!(
                table,
                steps = state.num_steps,
                "a sequence writer of whole episodes made no item, because no episode ended: pass is_last=True with \
                 the last step of each",
            ),
            ItemSteps::Sliding { length, .. } if makes_none => tracing::warn!(
                table,
                steps = state.num_steps,
                sequence_length = length,
                "a sequence writer made no item, because no episode had sequence_length steps",
            ),
            ItemSteps::Episode { .. } => {
                let running = state.rows.iter().filter(|row| !row.is_skipping);
                let steps: usize = running.map(|row| row.steps).sum();
                if steps > 0 {
                    tracing::info!(
                        table,
                        steps,
                        "a sequence writer ended with unfinished episodes, which make no item"
                    );
                }
            }
            ItemSteps::Sliding { .. } => {}
        }
    }
}
