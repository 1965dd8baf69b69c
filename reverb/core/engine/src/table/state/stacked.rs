// SPDX-License-Identifier: Apache-2.0
//! Sampling of stackable or whole batches from a table that deletes items after sampling.
//!
//! Items are taken one by one, because each choice depends on the previous one. If an item cannot
//! be stacked with its batch, the batch is undone: its items are put back in reverse order, and the
//! counters are restored. A request for all items or none is also undone as a whole if the limiter
//! stops it.

use reverb_base::Result;
use reverb_data::{ItemSpec, SampleOptions, StoredItem, Trajectory};

use super::{Batch, TableState};
use crate::rate_limiter::RateLimiter;
use crate::selector::{Pick, RestorePoint};
use crate::table::changes::ChangeRecorder;
use crate::table::statistics::Removed;

/// Items taken since a batch began, and the counters at its beginning.
struct Undo {
    taken: Vec<Taken>,
    limiter: RateLimiter,
    num_unique_samples: i64,
    removed: Removed,
    num_items: usize,
    chunk_bytes: usize,
    num_garbage: usize,
    num_notes: usize,
}

/// A sampled item.
struct Taken {
    pick: Pick,
    removal_priority: Option<f64>,
    /// Data for putting it back into the sampler.
    sampler_point: RestorePoint,
    /// Data for putting it back into the remover.
    remover_point: RestorePoint,
}

impl TableState {
    /// Samples into `batch` while the limiter allows, until the request is full or the next batch
    /// of the reader cannot be stacked. In that case `batch.refusal` has the reason.
    pub(super) fn sample_with_undo(&mut self, batch: &mut Batch) {
        let SampleOptions { stacking, all_or_nothing, window, .. } = batch.options;
        let begins = |count| stacking.is_some_and(|stacking| stacking.after(count).position == 0);
        let mut undo = self.begin_undo(batch);
        let mut spec = None;
        if stacking.is_some() && !begins(batch.len()) {
            // Items of an earlier attempt are already sampled, and the rest must match them.
            spec = batch
                .items
                .last()
                .and_then(|last| spec_of(&last.trajectory, window.is_some()).ok());
        }
        while !batch.is_full() {
            let room = self.room_in_epoch(batch);
            if room == 0 || !self.limiter.can_sample(1) {
                break;
            }
            self.begin_epoch_for(batch);
            let min_probability = self.contents.sampler.min_probability();
            let Some(pick) = self.pick_one(batch) else { break };
            if begins(batch.len()) {
                spec = None;
                if !all_or_nothing {
                    undo = self.begin_undo(batch);
                }
            }
            let item = self.contents.items.get(pick.handle);
            if stacking.is_some()
                && let Err(error) =
                    check(&mut spec, item.key(), &item.trajectory(), window.is_some())
            {
                self.contents.sampler.unpick(pick);
                self.undo(undo, batch);
                batch.refusal = Some(error.with_column(|index| self.column_names.label(index)));
                return;
            }
            undo.taken.push(Taken {
                pick,
                removal_priority: self.contents.removal_priority(pick.handle),
                sampler_point: self.contents.sampler.restore_point(pick.handle),
                remover_point: self.contents.remover.restore_point(pick.handle),
            });
            self.take(pick, min_probability, batch);
            batch.options.note_epoch(&batch.items);
        }
        let is_cut = batch.refusal.is_some() && !begins(batch.len());
        if (all_or_nothing || is_cut) && !batch.is_full() {
            self.undo(undo, batch);
        }
    }

    /// Picks the next item; none if there is none, or none with the window of the request.
    fn pick_one(&mut self, batch: &mut Batch) -> Option<Pick> {
        let mut picks = std::mem::take(&mut self.picks);
        picks.clear();
        match batch.options.window {
            Some(window) => self.pick_windows(window, 1, batch, &mut picks),
            None => self.contents.sampler.pick_many(&mut self.rng, 1, &mut picks),
        }
        let pick = picks.first().copied();
        self.picks = picks;
        pick
    }

    fn begin_undo(&self, batch: &Batch) -> Undo {
        Undo {
            taken: Vec::new(),
            limiter: self.limiter.clone(),
            num_unique_samples: self.contents.num_unique_samples,
            removed: self.statistics.removed,
            num_items: batch.items.len(),
            chunk_bytes: batch.chunk_bytes,
            num_garbage: self.garbage.len(),
            num_notes: self.changes().map_or(0, ChangeRecorder::num_notes),
        }
    }

    fn undo(&mut self, undo: Undo, batch: &mut Batch) {
        let sampled = batch.items.drain(undo.num_items..);
        for (taken, sampled) in undo.taken.into_iter().zip(sampled).rev() {
            let contents = &mut self.contents;
            let times_sampled = sampled.times_sampled - 1;
            if contents.items.find(sampled.key).is_some() {
                contents.items.get_mut(taken.pick.handle).set_times_sampled(times_sampled);
                contents.sampler.unpick(taken.pick);
                continue;
            }
            contents.account.add(&sampled.trajectory, contents.item_bytes);
            contents.episodes.put_back(&sampled.trajectory);
            let steps = contents.step_count(&sampled.trajectory);
            let item = StoredItem {
                key: sampled.key,
                trajectory: sampled.trajectory,
                priority: sampled.priority,
                removal_priority: taken.removal_priority,
                inserted_at_ns: sampled.inserted_at_ns,
                times_sampled,
            };
            let handle = contents.items.insert(item.into());
            // The entry that was freed last is reused first.
            debug_assert_eq!(handle, taken.pick.handle);
            if let Some(removal_priority) = taken.removal_priority {
                contents.keep_removal_priority(handle, removal_priority);
            }
            let removal_priority = taken.removal_priority.unwrap_or(sampled.priority);
            contents.put_back_into_sampler(handle, steps, sampled.priority, taken.sampler_point);
            contents.remover.put_back(handle, removal_priority, taken.remover_point);
            contents.sampler.unpick(taken.pick);
        }
        self.limiter = undo.limiter;
        self.contents.num_unique_samples = undo.num_unique_samples;
        self.statistics.removed = undo.removed;
        batch.chunk_bytes = undo.chunk_bytes;
        self.garbage.truncate(undo.num_garbage);
        if let Some(changes) = self.changes_mut() {
            changes.cut_notes(undo.num_notes);
        }
    }
}

/// Checks an item with the spec of its batch, which is that of its first item.
pub(super) fn check(
    spec: &mut Option<ItemSpec>,
    key: u64,
    trajectory: &Trajectory,
    of_windows: bool,
) -> Result<()> {
    match spec {
        Some(spec) => spec
            .check(trajectory)
            .map_err(|error| error.followed_by(&format!("The other item has the key {key}."))),
        None => spec_of(trajectory, of_windows).map(|first| *spec = Some(first)),
    }
}

fn spec_of(trajectory: &Trajectory, of_windows: bool) -> Result<ItemSpec> {
    let spec = ItemSpec::from_trajectory(trajectory)?;
    Ok(if of_windows { spec.of_windows() } else { spec })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_base::ErrorKind;
    use reverb_data::{RateLimiterConfig, SampleOptions, SelectorConfig, Stacking, TableConfig};

    use super::super::{Batch, TableState};
    use crate::selector::Selector;
    use crate::table::testing::{config, item_of_length, selectors};

    fn queue(sampler: SelectorConfig, max_times_sampled: i32) -> TableState {
        TableState::new(&TableConfig { sampler, max_times_sampled, ..config(100) })
    }

    /// The sampled keys, or the text of the refusal.
    fn sample(state: &mut TableState, num: usize, batch_size: usize) -> Result<Vec<u64>, String> {
        let mut batch = Batch::new(num, SampleOptions::stacked(Stacking::new(batch_size)));
        state.sample(&mut batch);
        match batch.into_answer() {
            Ok(items) => Ok(items.iter().map(|item| item.key).collect()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                Err(error.message().to_owned())
            }
        }
    }

    #[test]
    fn a_batch_that_cannot_be_stacked_is_not_sampled() {
        let mut state = queue(SelectorConfig::Fifo, 1);
        for (key, length) in [(1, 2), (2, 2), (3, 5)] {
            state.insert(item_of_length(key, length, 1.0), 0);
        }
        let refusal = sample(&mut state, 3, 3).unwrap_err();
        assert!(refusal.contains("column 0 is int64 [2] in one and int64 [5] in another"));
        assert_eq!(state.keys_by_age(), [1, 2, 3]);
        assert_eq!((state.limiter().samples(), state.limiter().deletes()), (0, 0));
        assert_eq!(state.take_garbage().len(), 0);
        assert_eq!(sample(&mut state, 2, 2), Ok(vec![1, 2]));
        assert_eq!(state.keys_by_age(), [3]);
    }

    #[test]
    fn batches_before_the_first_that_cannot_be_stacked_are_sampled() {
        let mut state = queue(SelectorConfig::Fifo, 1);
        for (key, length) in [(1, 2), (2, 2), (3, 5), (4, 5), (5, 6), (6, 7)] {
            state.insert(item_of_length(key, length, 1.0), 0);
        }
        assert_eq!(sample(&mut state, 6, 2), Ok(vec![1, 2, 3, 4]));
        assert!(sample(&mut state, 2, 2).is_err());
        assert_eq!(state.keys_by_age(), [5, 6]);
        assert_eq!(sample(&mut state, 2, 1), Ok(vec![5, 6]));
    }

    #[test]
    fn nothing_is_checked_where_items_stay() {
        let mut state = queue(SelectorConfig::Fifo, 0);
        state.insert(item_of_length(1, 2, 1.0), 0);
        assert_eq!(sample(&mut state, 3, 3), Ok(vec![1, 1, 1]));
    }

    /// Sampled keys of a batch of all items or none.
    fn sample_whole(state: &mut TableState, num: usize, stacks: bool) -> Vec<u64> {
        let stacking = stacks.then(|| Stacking::new(num));
        let options = SampleOptions { stacking, all_or_nothing: true, ..SampleOptions::default() };
        let mut batch = Batch::new(num, options);
        state.sample(&mut batch);
        assert!(batch.len() == 0 || batch.is_over());
        batch.into_answer().map_or(Vec::new(), |items| items.iter().map(|item| item.key).collect())
    }

    #[test]
    fn a_whole_batch_is_sampled_at_once_or_not_at_all() {
        let mut state = queue(SelectorConfig::Fifo, 1);
        for key in 1..=3 {
            state.insert(item_of_length(key, 2, 1.0), 0);
            assert_eq!(sample_whole(&mut state, 4, false), [0; 0]);
            assert_eq!(state.keys_by_age().len() as u64, key);
        }
        state.insert(item_of_length(4, 2, 1.0), 0);
        assert_eq!(sample_whole(&mut state, 4, true), [1, 2, 3, 4]);
        assert_eq!(state.limiter().samples(), 4);
    }

    #[test]
    fn a_whole_batch_that_would_fall_below_the_minimum_size_is_not_sampled() {
        let rate_limiter = RateLimiterConfig { min_size_to_sample: 3, ..config(1).rate_limiter };
        let mut state =
            TableState::new(&TableConfig { rate_limiter, max_times_sampled: 2, ..config(100) });
        for key in 1..=4 {
            state.insert(item_of_length(key, 2, 1.0), 0);
        }
        let before = describe(&state);
        assert_eq!(sample_whole(&mut state, 6, false), [0; 0]);
        assert_eq!(describe(&state), before);
        assert_eq!(sample_whole(&mut state, 2, false).len(), 2);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert { key: u64, length: usize, priority: f64 },
        Sample { num: usize, batch_size: usize },
        SampleWhole { num: usize, stacks: bool },
        Update(u64, f64),
        Delete(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..30u64;
        prop_oneof![
            4 => (key.clone(), 1..3usize, 0u8..4).prop_map(|(key, length, priority)| {
                Step::Insert { key, length, priority: f64::from(priority) }
            }),
            4 => (1..9usize, 1..5usize)
                .prop_map(|(num, batch_size)| Step::Sample { num, batch_size }),
            2 => (1..9usize, any::<bool>())
                .prop_map(|(num, stacks)| Step::SampleWhole { num, stacks }),
            1 => (key.clone(), 0.0..4.0).prop_map(|(key, priority)| Step::Update(key, priority)),
            1 => key.prop_map(Step::Delete),
        ]
    }

    /// All but `Shuffle`, whose random order is another one after a refusal.
    fn restored_selectors() -> impl Strategy<Value = SelectorConfig> {
        selectors().prop_filter("no order of its own", |config| {
            !matches!(config, SelectorConfig::Shuffle { .. })
        })
    }

    fn restored_removers() -> impl Strategy<Value = SelectorConfig> {
        restored_selectors()
            .prop_filter("it is for samplers", |it| *it != SelectorConfig::UniformOverSteps)
    }

    /// The contents of a selector. Entries of heaps are sorted, because their order is internal.
    fn describe_selector(selector: &Selector) -> Vec<String> {
        let text = format!("{selector:?}");
        let known = text.split("positions").next().unwrap_or_default();
        let parts = known.split("Entry").map(|part| part.trim_end_matches([',', ' ', ']']));
        let mut parts: Vec<String> = parts.map(str::to_owned).collect();
        if matches!(selector, Selector::Heap(_)) {
            parts.sort_unstable();
        }
        parts
    }

    /// All observable parts of a state.
    fn describe(state: &TableState) -> String {
        let numbers = format!(
            "{:?} {:?} {} {} {} {:?}",
            state.keys_by_age(),
            state.limiter(),
            state.num_unique_samples(),
            state.num_episodes(),
            state.num_deleted_episodes(),
            (state.account().bytes(), state.account().num_chunks(), state.statistics()),
        );
        let peeks: Vec<_> = state.keys().iter().map(|&key| state.peek(key)).collect();
        let sampler = describe_selector(&state.contents().sampler);
        let remover = describe_selector(&state.contents().remover);
        format!("{numbers} {peeks:?} {sampler:?} {remover:?}")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        /// Refused batches do not change the state.
        #[test]
        fn a_refusal_leaves_no_trace(
            sampler in restored_selectors(),
            remover in restored_removers(),
            max_times_sampled in 1..4i32,
            max_size in 2..9i64,
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let config = TableConfig { sampler, remover, max_times_sampled, ..config(max_size) };
            let mut state = TableState::new(&config);
            for step in steps {
                match step {
                    Step::Insert { key, length, priority } => {
                        state.insert(item_of_length(key, length, priority), 0);
                    }
                    Step::Update(key, priority) => state.update(&[(key, priority)], &mut Vec::new()),
                    Step::Delete(key) => drop(state.delete(key)),
                    Step::SampleWhole { num, stacks } => {
                        let before = describe(&state);
                        let sampled = sample_whole(&mut state, num, stacks);
                        prop_assert!(sampled.is_empty() || sampled.len() == num);
                        if sampled.is_empty() {
                            prop_assert_eq!(describe(&state), before);
                        }
                    }
                    Step::Sample { num, batch_size } => {
                        let before = describe(&state);
                        let sampled = sample(&mut state, num, batch_size);
                        if sampled.is_err() {
                            prop_assert_eq!(describe(&state), before);
                        } else if let Ok(keys) = sampled {
                            let whole = keys.len() / batch_size * batch_size;
                            let is_cut = keys.len() > whole;
                            // A batch is cut only at the end of the request or of the items.
                            prop_assert!(!is_cut || keys.len() == num || state.len() == 0);
                        }
                    }
                }
                prop_assert!(state.len() as i64 <= max_size);
            }
            // The selectors still agree with the items.
            let mut batch = Batch::new(state.len() * 4, SampleOptions::default());
            state.sample(&mut batch);
            prop_assert_eq!(state.len(), 0);
        }
    }
}
