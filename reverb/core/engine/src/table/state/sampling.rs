// SPDX-License-Identifier: Apache-2.0
//! Sampling with repetition, and the effect of a sample on its item.

use reverb_data::{SampleOptions, Sampled, SampledWindow};

use super::{Batch, MAX_SAMPLE_ITEMS, TableState};
use crate::selector::Pick;
use crate::table::changes::Mutation;
use crate::table::statistics::Removal;

/// Number of items that are picked, and fetched from memory, together: 32 take 5 % longer.
const PICKED_TOGETHER: usize = 64;

impl TableState {
    /// Samples into `batch` while the limiter allows and until the batch is full.
    pub(in crate::table) fn sample(&mut self, batch: &mut Batch) {
        let SampleOptions { stacking, all_or_nothing, window, .. } = batch.options;
        if all_or_nothing && !self.may_allow(batch.wanted) {
            return;
        }
        if let Some(window) = window
            && !self.may_have_window(window, batch)
        {
            return;
        }
        if batch.options.distinct {
            return self.sample_distinct(batch);
        }
        // An ordered sampler may come to an item that has no window.
        let may_stop = window.is_some() && self.contents.sampler.is_ordered();
        if (self.max_times_sampled > 0 || may_stop) && (stacking.is_some() || all_or_nothing) {
            return self.sample_with_undo(batch);
        }
        // If sampling can delete items, each choice depends on the previous one.
        let block = match self.max_times_sampled > 0 {
            true => 1,
            false if self.contents.sampler.chooses_together() => MAX_SAMPLE_ITEMS,
            false => PICKED_TOGETHER,
        };
        while !batch.is_full() {
            let room = self.room_in_epoch(batch);
            let wanted = block.min(batch.wanted - batch.len()).min(room);
            if batch.has_ended || batch.refusal.is_some() {
                break;
            }
            let allowed = self.limiter.samples_allowed(wanted);
            let mut picks = std::mem::take(&mut self.picks);
            picks.clear();
            if allowed > 0 {
                self.begin_epoch_for(batch);
            }
            let min_probability = self.contents.sampler.min_probability();
            match window {
                Some(window) => self.pick_windows(window, allowed, batch, &mut picks),
                None => self.contents.sampler.pick_many(&mut self.rng, allowed, &mut picks),
            }
            if picks.len() > 1 {
                self.prefetch(&picks);
            }
            batch.items.reserve(picks.len());
            let mut num_taken = 0;
            for &pick in &picks {
                self.take(pick, min_probability, batch);
                num_taken += 1;
                if batch.is_full() {
                    break;
                }
            }
            for &pick in picks[num_taken..].iter().rev() {
                self.contents.sampler.unpick(pick);
            }
            batch.options.note_epoch(&batch.items);
            let progress = !picks.is_empty();
            self.picks = picks;
            if !progress {
                break;
            }
        }
    }

    /// False if certainly not all of these samples are allowed under one lock. If sampling deletes
    /// no items, they are allowed.
    pub(in crate::table) fn may_allow(&self, wanted: usize) -> bool {
        self.limiter.samples_allowed(wanted) == wanted && self.samples_left(self.len()) >= wanted
    }

    /// Number of samples that this many items allow at most, by `max_times_sampled`.
    pub(in crate::table) fn samples_left(&self, num_items: usize) -> usize {
        match usize::try_from(self.max_times_sampled) {
            Ok(times) if times > 0 => num_items.saturating_mul(times),
            _ if num_items > 0 => usize::MAX,
            _ => 0,
        }
    }

    pub(super) fn prefetch(&self, picks: &[Pick]) {
        self.contents.items.prefetch(picks.iter().map(|pick| pick.handle));
    }

    pub(super) fn take(&mut self, pick: Pick, min_probability: f64, batch: &mut Batch) {
        let table_size = self.contents.items.len() as i64;
        let window = match batch.options.window {
            Some(window) => self.draw_window(window, pick.handle),
            None => SampledWindow::default(),
        };
        let removal_priority = self.contents.removal_priority(pick.handle);
        let item = self.contents.items.get_mut(pick.handle);
        if let Some(recording) = &mut self.recording {
            recording.save(pick.handle, item, removal_priority);
            if self.max_times_sampled > 1 {
                recording.note(Mutation::Changed, pick.handle, item.key());
            }
        }
        if item.times_sampled() == 0 {
            self.contents.num_unique_samples += 1;
        }
        // All are read before one is written: a wide load would wait for a narrow store.
        let key = item.key();
        let priority = item.priority();
        let inserted_at_ns = item.inserted_at_ns();
        let times_sampled = item.times_sampled().saturating_add(1);
        item.set_times_sampled(times_sampled);
        let trajectory = item.trajectory();
        batch.chunk_bytes += match batch.options.window {
            Some(of) => of.part_of(trajectory.chunk_bytes(), window.count),
            None => trajectory.chunk_bytes(),
        };
        batch.items.push(Sampled {
            key,
            priority,
            times_sampled,
            probability: pick.probability,
            table_size,
            inserted_at_ns,
            rate_limited: batch.has_waited && batch.items.is_empty(),
            min_probability,
            epoch: pick.epoch,
            removal_priority: None,
            window,
            trajectory,
        });
        // "At least", because an item can be inserted with a count.
        let is_used_up = self.max_times_sampled > 0 && times_sampled >= self.max_times_sampled;
        self.limiter.count_sample();
        if is_used_up {
            self.delete_at(pick.handle, Removal::SampledOut);
        }
    }
}
