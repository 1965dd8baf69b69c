// SPDX-License-Identifier: Apache-2.0
//! Answers of the shards: items with the probabilities of the group, and failures.

use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{GroupSampling, Sampled, slot_of};
use reverb_wire::transport::SampleStream;

use super::GroupSampleStream;
use super::shard_stream::Part;

/// Number of a shard, with its stream and answer; without them if the request was withdrawn.
pub(super) type Received = (usize, Option<(Box<dyn SampleStream>, Result<Vec<Sampled>>)>);

impl GroupSampleStream {
    /// Starts waiting for the answers of all shards with unanswered parts.
    pub(super) fn listen(&mut self) {
        for i in 0..self.shards.len() {
            let shard = &mut self.shards[i];
            if shard.parts.is_empty() || shard.is_receiving {
                continue;
            }
            let Some(mut stream) = shard.stream.take() else { continue };
            shard.is_receiving = true;
            let withdrawal = self.withdrawal(i);
            self.receiving.push(Box::pin(async move {
                let Some(withdrawn) = withdrawal else {
                    let received = stream.receive().await;
                    return (i, Some((stream, received)));
                };
                tokio::select! {
                    biased;
                    received = stream.receive() => (i, Some((stream, received))),
                    _ = withdrawn => (i, None),
                }
            }));
        }
    }

    /// Smallest probability of an item in the group: a shard's smallest one times the share of the
    /// shard. 0 until all shards have reported theirs.
    fn min_probability(&self) -> f64 {
        let asked = self.shards.iter().filter(|shard| shard.share > 0.0);
        let all = asked.map(|shard| shard.share * shard.stats.now().min_probability.unwrap_or(0.0));
        all.reduce(f64::min).unwrap_or(0.0)
    }

    /// Takes an answer, and returns its items with the probabilities of the group. An error is
    /// reported after the answers of the other shards: their items are already sampled, and may
    /// have been removed.
    pub(super) fn take(&mut self, (i, answer): Received) -> Vec<Sampled> {
        if self.is_parked_at(i) {
            self.parked = None;
        }
        let Some((stream, received)) = answer else {
            self.shards[i].is_receiving = false;
            self.ask_again(i);
            return Vec::new();
        };
        let goes_elsewhere = match &received {
            Ok(_) => false,
            Err(error) => self.goes_elsewhere(i, error),
        };
        let shard = &mut self.shards[i];
        shard.is_receiving = false;
        match received {
            Ok(mut samples) => {
                shard.stream = Some(stream);
                if let Some(window) =
                    shard.parts.front().and_then(|part| part.request.options.window)
                {
                    let stats = shard.stats.now();
                    shard.window_mass(window).sampled(&samples, self.sampling, &stats);
                }
                shard.stats.sampled(&samples, self.sampling);
                let mut left = samples.len();
                let mut at = 0;
                while left > 0 {
                    let Some(part) = shard.parts.front_mut() else { break };
                    let count = left.min(part.request.count);
                    for sampled in &mut samples[at..at + count] {
                        sampled.probability *= part.share;
                        sampled.min_probability *= part.share;
                    }
                    part.request.count -= count;
                    at += count;
                    left -= count;
                    if part.request.count == 0 {
                        shard.parts.pop_front();
                    }
                }
                let index = shard.member.index;
                let living = self.sizes.iter().filter(|(member, _)| !member.is_down());
                let size: i64 = living.map(|(_, stats)| stats.now().size).sum();
                let min_probability = self.min_probability();
                for sampled in &mut samples {
                    sampled.table_size = size;
                    sampled.min_probability = min_probability;
                    if self.view.slots.owner(slot_of(sampled.key)) != index {
                        self.group.remember(sampled.key, index);
                    }
                }
                samples
            }
            Err(_) if goes_elsewhere => {
                drop(stream);
                self.ask_again(i);
                Vec::new()
            }
            Err(error) if error.kind() == ErrorKind::RateLimiterTimeout => {
                // The group's stream continues; only the request timed out.
                shard.stream = None;
                drop(stream);
                let part = shard.parts.pop_front();
                let rest: Vec<Part> = shard.parts.drain(..).collect();
                for part in part.into_iter().chain(rest) {
                    if part.is_over() {
                        let name = self.shards[i].member.name();
                        let count = self.shards.len();
                        // The text begins with the event, like the text of a single server.
                        self.failure = Some(error.clone().followed_by(&format!(
                            "These are the numbers of {name}, one of {count} shards."
                        )));
                        continue;
                    }
                    // Other shards may have the items that this one lacks now.
                    self.unasked.push_back(part.into_request());
                }
                Vec::new()
            }
            Err(error) if error.is_gone() => {
                drop(stream);
                self.lost(i, &error);
                Vec::new()
            }
            Err(error) => {
                shard.parts.clear();
                self.failure = Some(error.context(&shard.member.name()));
                Vec::new()
            }
        }
    }

    /// True if a shard has failed because it has no window of a request, which others may have.
    fn goes_elsewhere(&mut self, i: usize, error: &Error) -> bool {
        let shard = &mut self.shards[i];
        let Some(window) = shard.lacks_window(error) else { return false };
        let is_over = shard.parts.iter().any(Part::is_over);
        if self.sampling == GroupSampling::Ordered || is_over {
            return false;
        }
        let stats = shard.stats.now();
        let error = error.clone().context(&shard.member.name());
        shard.window_mass(window).is_missing(stats, error);
        true
    }

    /// Handles a shard that failed: its parts go to the other shards, in their shares without it.
    pub(super) fn lost(&mut self, i: usize, error: &Error) {
        self.plan = None;
        if self.is_parked_at(i) {
            self.parked = None;
        }
        if error.is_gone() {
            self.shards[i].member.went_down(error);
        }
        self.ask_again(i);
    }

    /// Takes the unanswered parts of requests back from a shard, whose stream has ended.
    fn ask_again(&mut self, i: usize) {
        let shard = &mut self.shards[i];
        shard.stream = None;
        self.unasked.extend(shard.parts.drain(..).map(Part::into_request));
    }
}
