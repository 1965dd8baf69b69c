// SPDX-License-Identifier: Apache-2.0
//! Sampling without repetition within a request.
//!
//! Repeated items are drawn again, as long as that is likely to end soon. Then the chosen items are
//! taken out of the sampler, the rest is chosen among the others, and all are put back. Nothing
//! counts as sampled before all items are chosen.

use std::collections::HashSet;

use rand::Rng;
use reverb_base::{Error, Result};
use reverb_data::{ItemSpec, SampleOptions, StepWindow};

use super::stacked::check;
use super::{Batch, Contents, TableState};
use crate::selector::{Handle, Pick, RestorePoint};

/// Number of draws per item before chosen items are taken out.
const TRIES: usize = 2;

/// Chosen items.
#[derive(Default)]
struct Chosen {
    picks: Vec<Pick>,
    handles: HashSet<Handle>,
}

impl Chosen {
    /// Adds a pick, unless its item was chosen before.
    fn add(&mut self, pick: Pick) -> bool {
        let is_new = self.handles.insert(pick.handle);
        if is_new {
            self.picks.push(pick);
        }
        is_new
    }
}

impl TableState {
    /// Samples a whole request without repetition. The caller has checked that the limiter allows
    /// all samples. If there are too few items, or if they cannot be stacked, nothing is sampled
    /// and `batch.refusal` has the reason.
    pub(super) fn sample_distinct(&mut self, batch: &mut Batch) {
        let min_probability = self.contents.sampler.min_probability();
        let window = batch.options.window;
        let chosen = if batch.wanted <= self.len() {
            // Without sums of the windows that there are, the request waits for them.
            let Some(chosen) = self.choose_distinct(batch.wanted, window) else { return };
            chosen
        } else {
            Chosen::default()
        };
        let refusal = if batch.wanted > self.len() {
            Err(self.too_few(batch.wanted, self.len(), None))
        } else if let Some(short) = self.first_without_window(&chosen.picks, window) {
            Err(short)
        } else if chosen.picks.len() < batch.wanted {
            // All other items have weight 0, or no window.
            Err(self.too_few(batch.wanted, chosen.picks.len(), window))
        } else {
            self.check_stacking(&chosen.picks, batch.options)
        };
        if let Err(error) = refusal {
            for pick in chosen.picks.into_iter().rev() {
                self.contents.sampler.unpick(pick);
            }
            batch.refusal = Some(error);
            return;
        }
        for pick in chosen.picks {
            self.take(pick, min_probability, batch);
        }
    }

    fn choose_distinct(&mut self, wanted: usize, window: Option<StepWindow>) -> Option<Chosen> {
        let mut chosen = Chosen::default();
        let mut picks = std::mem::take(&mut self.picks);
        let mut tries = if self.contents.sampler.repeats() { TRIES * wanted } else { 0 };
        while tries > 0 && chosen.picks.len() < wanted {
            let count = wanted - chosen.picks.len();
            tries = tries.saturating_sub(count);
            picks.clear();
            self.contents.sampler.pick_many(&mut self.rng, count, &mut picks);
            for &pick in &picks {
                if window.is_none_or(|window| self.accepts(window, pick.handle)) {
                    chosen.add(pick);
                }
            }
        }
        self.picks = picks;
        if chosen.picks.len() < wanted {
            match window {
                Some(window) if !self.contents.sampler.is_ordered() => {
                    if !self.contents.sampler.has_own_weights() {
                        self.choose_among_listed(wanted, window, &mut chosen);
                    } else if self.has_sums(window) {
                        self.choose_among_summed(wanted, &mut chosen);
                    } else {
                        return None;
                    }
                }
                _ => self.choose_among_others(wanted, &mut chosen),
            }
        }
        if let Some(window) = window {
            self.set_window_probabilities(window, &mut chosen.picks);
        }
        Some(chosen)
    }

    /// Chooses the rest among the items that have a window, by successive draws without
    /// repetition: an item of weight `w` gets an exponential time of rate `w`, and the first times
    /// win.
    fn choose_among_listed(&mut self, wanted: usize, window: StepWindow, chosen: &mut Chosen) {
        let mut times: Vec<(f64, Handle)> = Vec::new();
        for (handle, weight) in self.list(window).items {
            if !chosen.handles.contains(&handle) {
                // Not 0, whose logarithm is infinite.
                let uniform = 1.0 - self.rng.random::<f64>();
                times.push((-uniform.ln() / weight, handle));
            }
        }
        times.sort_unstable_by(|one, another| one.0.total_cmp(&another.0));
        for (_, handle) in times.into_iter().take(wanted - chosen.picks.len()) {
            chosen.add(self.pick_at(handle));
        }
    }

    /// Chooses the rest by the sums of the items that have a window, from which chosen ones are
    /// taken out meanwhile.
    fn choose_among_summed(&mut self, wanted: usize, chosen: &mut Chosen) {
        let mut num_out = 0;
        loop {
            for pick in &chosen.picks[num_out..] {
                self.update_latest_sums(pick.handle, |handle| !chosen.handles.contains(&handle));
            }
            num_out = chosen.picks.len();
            if num_out == wanted {
                break;
            }
            let found = self.find_summed(|handle| !chosen.handles.contains(&handle));
            let Some(handle) = found else { break };
            chosen.add(self.pick_at(handle));
        }
        for pick in &chosen.picks {
            self.update_latest_sums(pick.handle, |_| true);
        }
    }

    fn update_latest_sums(&mut self, handle: Handle, counts: impl Fn(Handle) -> bool) {
        let Contents { step_counts, sampler, .. } = &mut self.contents;
        if let Some(step_counts) = step_counts {
            let (sums, steps) = step_counts.latest_sums();
            sums.update(handle, steps, sampler, counts);
        }
    }

    /// Error if an ordered sampler chose an item that has no window.
    fn first_without_window(&self, picks: &[Pick], window: Option<StepWindow>) -> Option<Error> {
        let window = window?;
        let short = picks.iter().find(|pick| self.num_windows_of(window, pick.handle) == 0)?;
        Some(self.is_short(window, short.handle))
    }

    /// Takes the chosen items out of the sampler, chooses the rest, and puts all back.
    fn choose_among_others(&mut self, wanted: usize, chosen: &mut Chosen) {
        let sampler = &mut self.contents.sampler;
        let had_weight = sampler.mass().is_some_and(|mass| mass > 0.0);
        let mut taken_out: Vec<(Handle, RestorePoint)> = Vec::with_capacity(wanted);
        let first = chosen.picks.len();
        let mut num_out = 0;
        loop {
            for pick in &chosen.picks[num_out..] {
                taken_out.push((pick.handle, sampler.restore_point(pick.handle)));
                sampler.remove(pick.handle);
            }
            num_out = chosen.picks.len();
            let is_exhausted = had_weight && sampler.mass() == Some(0.0);
            if num_out == wanted || is_exhausted {
                break;
            }
            self.picks.clear();
            sampler.pick_many(&mut self.rng, 1, &mut self.picks);
            if !self.picks.iter().all(|&pick| chosen.add(pick)) || self.picks.is_empty() {
                break;
            }
        }
        for (handle, point) in taken_out.into_iter().rev() {
            let item = self.contents.items.get(handle);
            let steps = self.contents.step_count(&item.trajectory());
            let priority = item.priority();
            self.contents.put_back_into_sampler(handle, steps, priority, point);
        }
        for pick in &mut chosen.picks[first..] {
            pick.probability = self.contents.sampler.probability_of(pick.handle);
        }
    }

    /// Checks that the batches of a reader can be stacked, if sampling removes items.
    fn check_stacking(&self, picks: &[Pick], options: SampleOptions) -> Result<()> {
        let Some(stacking) = options.stacking.filter(|_| self.max_times_sampled > 0) else {
            return Ok(());
        };
        let mut spec: Option<ItemSpec> = None;
        for (at, pick) in picks.iter().enumerate() {
            if stacking.after(at).position == 0 {
                spec = None;
            }
            let item = self.contents.items.get(pick.handle);
            check(&mut spec, item.key(), &item.trajectory(), options.window.is_some())
                .map_err(|error| error.with_column(|index| self.column_names.label(index)))?;
        }
        Ok(())
    }

    fn too_few(&self, wanted: usize, has: usize, window: Option<StepWindow>) -> Error {
        let having =
            window.map_or(String::new(), |window| format!(" with a {}", window.description()));
        Error::invalid_argument(format!(
            "{wanted} distinct items asked of table {}, which has {has}{having}. Ask for fewer, or \
             let the rate limiter wait for more with a larger min_size_to_sample.",
            self.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_data::{SampleOptions, Sampled, SelectorConfig, TableConfig};

    use super::super::{Batch, TableState};
    use crate::table::testing::{config, item_of_length, selectors};

    fn sampled(state: &mut TableState, count: usize) -> reverb_base::Result<Vec<Sampled>> {
        let options = SampleOptions { distinct: true, ..SampleOptions::default() };
        let mut batch = Batch::new(count, options.whole());
        state.sample(&mut batch);
        batch.into_answer()
    }

    fn distinct(state: &mut TableState, count: usize) -> Result<Vec<u64>, String> {
        let items = sampled(state, count).map_err(|error| error.message().to_owned())?;
        for sampled in &items {
            assert!(sampled.probability > 0.0 && sampled.probability <= 1.0);
        }
        Ok(items.iter().map(|item| item.key).collect())
    }

    fn filled(sampler: SelectorConfig, priorities: &[f64]) -> TableState {
        let mut state = TableState::new(&TableConfig { sampler, ..config(1000) });
        for (key, &priority) in priorities.iter().enumerate() {
            state.insert(item_of_length(key as u64, 1, priority), 0);
        }
        state
    }

    proptest! {
        #[test]
        fn no_item_comes_twice(
            sampler in selectors(),
            priorities in prop::collection::vec(0.01f64..50.0, 1..60),
            counts in prop::collection::vec(1usize..60, 1..10),
        ) {
            let mut state = filled(sampler, &priorities);
            for count in counts {
                match distinct(&mut state, count) {
                    Ok(mut keys) => {
                        prop_assert!(count <= priorities.len());
                        keys.sort_unstable();
                        keys.dedup();
                        prop_assert_eq!(keys.len(), count);
                    }
                    Err(text) => {
                        prop_assert!(count > priorities.len());
                        let expected = format!(
                            "{count} distinct items asked of table t, which has {}.",
                            priorities.len()
                        );
                        prop_assert!(text.starts_with(&expected), "{text}");
                    }
                }
            }
            // All items at once: the sampler still has them all.
            let mut all = distinct(&mut state, priorities.len()).unwrap();
            all.sort_unstable();
            prop_assert_eq!(all, (0..priorities.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn items_without_weight_do_not_count() {
        let mut state = filled(SelectorConfig::prioritized(1.0), &[1.0, 0.0, 2.0, 0.0]);
        assert!(distinct(&mut state, 2).is_ok());
        let text = distinct(&mut state, 3).unwrap_err();
        assert!(text.starts_with("3 distinct items asked of table t, which has 2."), "{text}");
        assert_eq!(state.limiter().samples(), 2);
    }

    #[test]
    fn probabilities_are_those_of_one_draw_from_all_items() {
        // Tries find the heavy item only. The others are drawn after it was taken out.
        let mut state = filled(SelectorConfig::prioritized(1.0), &[1e12, 1.0, 2.0]);
        let items = sampled(&mut state, 3).unwrap();
        let total: f64 = items.iter().map(|item| item.priority).sum();
        for item in items {
            assert!((item.probability * total / item.priority - 1.0).abs() < 1e-9, "{item:?}");
        }
    }

    #[test]
    fn an_ordered_sampler_gives_the_first_ones() {
        let mut state = filled(SelectorConfig::Fifo, &[1.0; 5]);
        assert_eq!(distinct(&mut state, 3), Ok(vec![0, 1, 2]));
        let mut state = filled(SelectorConfig::Heap { min_heap: false }, &[1.0, 3.0, 2.0, 9.0]);
        assert_eq!(distinct(&mut state, 3), Ok(vec![3, 1, 2]));
    }

    #[test]
    fn a_pair_has_the_probability_of_successive_draws() {
        const ROUNDS: u32 = 40_000;
        let weights = [1.0, 2.0, 5.0];
        let mut state = filled(SelectorConfig::prioritized(1.0), &weights);
        let mut counts = [0.0; 3];
        for _ in 0..ROUNDS {
            // The pair lacks one of the three.
            let keys = distinct(&mut state, 2).unwrap();
            counts[3 - (keys[0] + keys[1]) as usize] += 1.0;
        }
        let pair = |a: f64, b: f64| (a / 8.0) * (b / (8.0 - a)) + (b / 8.0) * (a / (8.0 - b));
        let expected = [pair(2.0, 5.0), pair(1.0, 5.0), pair(1.0, 2.0)];
        for (count, expected) in counts.iter().zip(expected) {
            let expected = expected * f64::from(ROUNDS);
            assert!((count - expected).abs() < 6.0 * expected.sqrt(), "{count} of {expected}");
        }
    }
}
