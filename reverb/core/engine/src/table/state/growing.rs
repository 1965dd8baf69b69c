// SPDX-License-Identifier: Apache-2.0
//! Items with rollouts: how they come, grow, are taken and settled, and leave. The lists are in
//! [`Rollouts`], which says where an item is.

use std::sync::Arc;
use std::time::Instant;

use reverb_base::Result;
use reverb_data::rollouts::{
    ItemChange, Late, LeaseId, Opening, Outcome, Part, Piece, Refusal, Rollout, RolloutSettings,
    RolloutsInfo, SequenceInfo, Stage, StoredGrowing, Versions, join, no_such_rollout,
};
use reverb_data::{NewItem, Sampled, SampledWindow, StoredItem, Trajectory};

use super::TableState;
use crate::table::rollouts::{Growing, GrowingValues, Rollouts, Takes};
use crate::table::statistics::Removal;

/// Bytes of an item with rollouts besides its columns: its entry, and those in lists.
pub(in crate::table) const GROWING_BYTES: u64 = 400;

/// Number of items whose staleness is checked under one lock.
const CHECKED_AT_ONCE: usize = if cfg!(test) { 3 } else { 512 };

/// An item that a client has taken. Its columns come by a fetch.
#[derive(Debug, Clone)]
pub struct Taken {
    /// As a sample has it; without columns.
    pub key: u64,
    /// The item as it is now.
    pub item: Arc<Growing>,
    /// Probability with which it was chosen.
    pub probability: f64,
    /// Number of ready items at that time.
    pub table_size: i64,
}

impl TableState {
    /// The rollouts of the table, if its items have some.
    pub(in crate::table) fn rollouts(&self) -> Option<&Rollouts> {
        self.contents.rollouts.as_deref()
    }

    pub(in crate::table) fn rollouts_mut(&mut self) -> Option<&mut Rollouts> {
        self.contents.rollouts.as_deref_mut()
    }

    fn growing(&mut self) -> &mut Rollouts {
        self.contents.rollouts.as_deref_mut().expect("the table has rollouts")
    }

    fn settings(&self) -> Arc<RolloutSettings> {
        let rollouts = self.contents.rollouts.as_ref().expect("the table has rollouts");
        Arc::clone(rollouts.settings())
    }

    /// Numbers of items by stage, version and backlog, and of those that left.
    pub(in crate::table) fn rollouts_info(&self) -> Option<RolloutsInfo> {
        let rollouts = self.rollouts()?;
        Some(RolloutsInfo { left: rollouts.left(&self.statistics.removed), ..rollouts.info() })
    }

    /// Number of items, including those that are aside.
    pub(in crate::table) fn num_present(&self) -> usize {
        self.rollouts().map_or(self.contents.items.len(), Rollouts::len)
    }

    /// True if an item need not wait for items to be trained.
    pub(in crate::table) fn has_place_for(&self, item: &NewItem) -> bool {
        let Some(rollouts) = self.rollouts() else { return true };
        let is_known = match item.change.as_deref() {
            Some(ItemChange::Opens(opening)) => rollouts.named(&opening.name).is_some(),
            _ => false,
        };
        is_known
            || rollouts.was_inserted(item.key)
            || rollouts.get(item.key).is_some()
            || (rollouts.has_backlog_room() && self.has_room_for_one_more(rollouts))
    }

    /// True if `max_size` allows one more. Where items are trained more than once, the remover
    /// makes room.
    fn has_room_for_one_more(&self, rollouts: &Rollouts) -> bool {
        rollouts.len() < self.max_size
            || (self.max_times_sampled < 1 && self.contents.items.len() > 0)
    }

    /// Why no new item has a place, as a clause; `None` if it has.
    pub(in crate::table) fn why_no_place(&self) -> Option<String> {
        let rollouts = self.rollouts()?;
        let RolloutsInfo { open, settled, ready, taken, version, backlog, .. } = rollouts.info();
        let settings = rollouts.settings();
        if let Some(most) = settings.backlog().filter(|most| backlog >= *most) {
            return Some(format!(
                "the backlog is full, {backlog} of {most} (ahead {}, {} items a version): {open} \
                 open, {settled} settled, {ready} ready, {taken} taken since version {version} was \
                 set",
                settings.ahead.or(settings.max_staleness).unwrap_or_default(),
                settings.items_per_version.unwrap_or_default(),
            ));
        }
        (!self.has_room_for_one_more(rollouts)).then(|| {
            format!(
                "the table has {} of {} items (max_size): {open} open, {settled} settled, {ready} \
                 ready",
                rollouts.len(),
                self.max_size
            )
        })
    }

    /// Inserts an item into a table with rollouts.
    pub(super) fn insert_growing(&mut self, item: NewItem, now_ns: i64) -> Option<Refusal> {
        let NewItem { key, removal_priority, times_sampled, trajectory, change, .. } = item;
        let opening = match change.map(|change| *change) {
            Some(ItemChange::Opens(opening)) => Some(opening),
            _ => None,
        };
        let priority = self.priority_of_new(item.priority);
        let rollouts = self.growing();
        if rollouts.was_inserted(key) || rollouts.get(key).is_some() {
            if opening.is_none()
                && let Some(handle) = self.contents.items.find(key)
            {
                self.update_at(handle, priority, removal_priority);
                self.statistics.priority_updates += 1;
            }
            self.garbage.push(trajectory);
            return None;
        }
        if let Some(Opening { name, after, .. }) = &opening {
            let newest = &rollouts.kept().newest;
            let refusal = if rollouts.named(name).is_some() {
                Some(Refusal::Present)
            } else {
                after
                    .as_ref()
                    .filter(|after| *after != newest)
                    .map(|_| Refusal::Newest(newest.clone()))
            };
            if refusal.is_some() {
                self.garbage.push(trajectory);
                return refusal;
            }
        }
        self.newest_ns = now_ns.max(self.newest_ns.saturating_add(1));
        let inserted_at_ns = self.newest_ns;
        let values = GrowingValues { priority, removal_priority, times_sampled, inserted_at_ns };
        let version = self.growing().kept().version;
        self.foreign_keys.note(key);
        self.contents.account.add_bytes(GROWING_BYTES);
        self.statistics.inserts += 1;
        self.statistics.last_insert_ns = now_ns;
        let Some(opening) = opening else {
            self.growing().add(key, whole(version, &trajectory, values));
            self.enter(key, trajectory, true);
            return None;
        };
        let Opening { name, parts, mut rollouts, .. } = opening;
        for rollout in &mut rollouts {
            rollout.versions = rollout.versions.or_of_table(version);
            self.statistics.rollouts.added += u64::from(rollout.outcome == Outcome::Final);
        }
        rollouts.sort_by_key(|rollout| rollout.number);
        let growing = Growing {
            name,
            order: 0,
            stage: Stage::Open,
            attempts: 0,
            given_up: 0,
            opened_at: None,
            rollouts,
            pieces: Vec::new(),
            columns: Box::default(),
            sequences: Arc::new([]),
            values,
            lease: None,
            age: None,
        };
        self.growing().add(key, growing);
        self.add_piece(key, Piece { trajectory, parts });
        self.advance(key);
        self.evict_surplus();
        None
    }

    /// Adds columns to an item that is aside.
    fn add_piece(&mut self, key: u64, piece: Piece) {
        self.contents.account.add(&piece.trajectory, 0);
        if let Some(item) = self.growing().get_mut(key) {
            item.pieces.push(piece);
        }
    }

    /// Exchanges the pieces of an item that is aside.
    fn set_pieces(&mut self, key: u64, pieces: Vec<Piece>) {
        for piece in &pieces {
            self.contents.account.add(&piece.trajectory, 0);
        }
        let before = match self.growing().get_mut(key) {
            Some(item) => std::mem::replace(&mut item.pieces, pieces),
            None => pieces,
        };
        self.discard(before);
    }

    fn discard(&mut self, pieces: Vec<Piece>) {
        for Piece { trajectory, .. } in pieces {
            self.contents.account.remove(&trajectory, 0);
            self.garbage.push(trajectory);
        }
    }

    /// Adds rollouts, or columns for them, to an item that is aside. Returns false if it is not
    /// there any more, does not lack them, or is another client's.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a rollout that no item of the table has.
    pub(in crate::table) fn grow(
        &mut self,
        key: u64,
        by: Option<LeaseId>,
        rollouts: Vec<Rollout>,
        (mut piece, late): (Option<Piece>, Late),
        now: Instant,
    ) -> Result<bool> {
        let settings = self.settings();
        if let Some(odd) = rollouts.iter().find(|it| it.number >= settings.num_rollouts) {
            return Err(no_such_rollout(odd.number, &settings));
        }
        let holder = by.map(|id| id.holder);
        let too_old = rollouts.iter().find(|rollout| self.growing().is_too_old(rollout));
        let too_old = too_old.map(|rollout| rollout.versions.newest);
        let Some(item) = self.growing().get(key) else { return Ok(self.refuse(piece)) };
        let is_others = item.holder().is_some_and(|it| Some(it) != holder);
        let is_late = if rollouts.is_empty() {
            // Columns of rollouts that were made once more meanwhile are for others.
            item.stage != Stage::Settled || late.attempts.is_some_and(|it| it != item.attempts)
        } else {
            // A rollout that is there already may come again, also when the item has gone on.
            item.stage != Stage::Open && !rollouts.iter().all(|it| is_final(item, it.number))
        };
        let is_free = item.stage == Stage::Open && item.lease.is_none();
        if is_others || is_late {
            return Ok(self.refuse(piece));
        }
        if let Some(newest) = too_old {
            self.statistics.rollouts.count_done_stale(newest);
            return Ok(self.refuse(piece));
        }
        let growing = self.growing();
        if !rollouts.is_empty() {
            growing.last_rollout = Some(now);
        }
        if let Some(id) = by.filter(|_| is_free) {
            growing.lease(key, id, now);
        }
        growing.unlist(key);
        if rollouts.is_empty()
            && !late.overwrites
            && let Some(item) = self.growing().get(key)
        {
            let there = item.parts().into_iter().collect();
            piece = piece.and_then(|piece| piece.without_parts(&there));
        }
        if rollouts.is_empty() {
            // Its stage is done with it; another one may add what is still missing.
            self.growing().end_lease_of(key);
        }
        let version = self.growing().kept().version;
        for mut rollout in rollouts {
            let number = rollout.number;
            rollout.versions = rollout.versions.or_of_table(version);
            let events = &mut self.statistics.rollouts;
            let Some(item) = self.contents.rollouts.as_mut().and_then(|it| it.get_mut(key)) else {
                break;
            };
            if is_final(item, number) {
                piece = piece.and_then(|piece| self.cut(piece, number));
                continue;
            }
            match rollout.outcome {
                Outcome::Final => events.added += 1,
                Outcome::Failed(_) => events.failed += 1,
                Outcome::Partial => {}
            }
            item.rollouts.retain(|before| before.number != number);
            let at = item.rollouts.partition_point(|before| before.number < number);
            item.rollouts.insert(at, rollout);
            let kept = item.pieces.iter().filter_map(|piece| piece.without(number)).collect();
            self.set_pieces(key, kept);
        }
        if let Some(piece) = piece {
            self.add_piece(key, piece);
        }
        self.advance(key);
        Ok(true)
    }

    /// A piece without the columns of a rollout.
    fn cut(&mut self, piece: Piece, rollout: u32) -> Option<Piece> {
        let left = piece.without(rollout);
        self.garbage.push(piece.trajectory);
        left
    }

    fn refuse(&mut self, piece: Option<Piece>) -> bool {
        self.garbage.extend(piece.map(|piece| piece.trajectory));
        false
    }

    /// Moves an item on as far as what it has allows.
    fn advance(&mut self, key: u64) {
        let settings = self.settings();
        let rollouts = self.growing();
        let Some(item) = rollouts.get(key) else { return };
        if item.stage == Stage::Open {
            let num_final = item.count(|it| *it == Outcome::Final);
            let num_failed = item.count(|it| matches!(it, Outcome::Failed(_)));
            if num_final + num_failed < settings.num_rollouts {
                rollouts.list(key);
                return;
            }
            return self.end_rollouts(key);
        }
        self.complete(key);
    }

    /// No more rollouts come for an open item: it is trained with what it has, if that is enough.
    fn end_rollouts(&mut self, key: u64) {
        let min_rollouts = self.settings().min_rollouts;
        let Some(item) = self.growing().get(key) else { return };
        if item.count(|it| *it == Outcome::Final) < min_rollouts {
            return self.leave(key, Removal::Failed);
        }
        self.settle_rollouts(key);
        self.complete(key);
    }

    /// All rollouts of an open item are there: what is not final goes.
    fn settle_rollouts(&mut self, key: u64) {
        let rollouts = self.growing();
        rollouts.end_lease_of(key);
        rollouts.unlist(key);
        let Some(item) = rollouts.get_mut(key) else { return };
        let is_gone = |rollout: &Rollout| rollout.outcome != Outcome::Final;
        let gone: Vec<u32> =
            item.rollouts.iter().filter(|it| is_gone(it)).map(|it| it.number).collect();
        item.rollouts.retain(|rollout| rollout.outcome != Outcome::Partial);
        rollouts.set_stage(key, Stage::Settled);
        let Some(item) = rollouts.get(key) else { return };
        if gone.is_empty() {
            return;
        }
        let without = |piece: &Piece| {
            gone.iter().try_fold(piece.clone(), |piece, &number| piece.without(number))
        };
        let kept = item.pieces.iter().filter_map(without).collect();
        self.set_pieces(key, kept);
    }

    /// Joins what a settled item has; if nothing is missing, it is ready.
    fn complete(&mut self, key: u64) {
        let num_columns = self.settings().num_columns as usize;
        let rollouts = self.growing();
        rollouts.unlist(key);
        let Some(item) = rollouts.get_mut(key).filter(|it| it.stage == Stage::Settled) else {
            return;
        };
        let Ok(joined) = join(&item.pieces) else {
            self.leave(key, Removal::Failed);
            return;
        };
        item.columns = joined.columns.into();
        item.sequences = joined.sequences.into();
        let is_complete = item.columns.len() == num_columns;
        let item = item.clone();
        if !is_complete {
            rollouts.list(key);
        } else if rollouts.is_stale(&item) {
            let newest = item.rollouts.iter().map(|it| it.versions.newest).max();
            self.statistics.rollouts.count_done_stale(newest.unwrap_or_default());
            self.become_stale(key);
        } else {
            rollouts.end_lease_of(key);
            rollouts.set_stage(key, Stage::Ready);
            self.statistics.rollouts.stale_in_a_row = 0;
            self.enter(key, joined.trajectory, true);
        }
    }

    /// Puts a ready item that nobody holds into `Items`.
    fn enter(&mut self, key: u64, trajectory: Trajectory, is_first_time: bool) {
        let rollouts = self.growing();
        let Some(item) = rollouts.get_mut(key) else { return };
        let before = std::mem::take(&mut item.pieces);
        let stored = item.values.with(key, trajectory);
        let handle = self.put(stored);
        // Its time is older than its coming, so a snapshot has it from where it was before.
        if let Some(recording) = &mut self.recording
            && let Some(before) = &mut recording.before_images
        {
            before.exclude(handle);
        }
        if is_first_time {
            self.limiter.count_insert();
        } else {
            self.limiter.count_transfer();
        }
        // After the new one is there, so that no chunk is without a home in between.
        self.discard(before);
        self.evict_surplus();
    }

    /// Takes a ready item out of `Items`; it keeps all else.
    fn set_aside(&mut self, key: u64) {
        let Some(handle) = self.contents.items.find(key) else { return };
        let stored = self.remove_at(handle);
        let values = GrowingValues::of(&stored);
        let parts = (0..).map(|column| Part { sequence: None, column });
        let parts = parts.take(stored.trajectory.num_columns()).collect();
        if let Some(item) = self.growing().get_mut(key) {
            item.values = values;
        }
        self.add_piece(key, Piece { trajectory: stored.trajectory, parts });
    }

    /// Removes an item for good, wherever it is.
    pub(in crate::table) fn leave(&mut self, key: u64, reason: Removal) {
        if let Some(handle) = self.contents.items.find(key) {
            return self.delete_at(handle, reason);
        }
        let rollouts = self.growing();
        if reason != Removal::SampledOut {
            rollouts.give_back(key);
        }
        let Some(item) = rollouts.remove(key) else { return };
        if reason == Removal::Failed {
            rollouts.count_failed();
        }
        self.statistics.removed.count(reason, item.values.times_sampled);
        self.contents.account.remove_bytes(GROWING_BYTES);
        self.discard(item.pieces.clone());
    }

    /// Forgets an item that has left `Items`.
    pub(super) fn forget(&mut self, key: u64, reason: Removal) {
        if reason == Removal::SampledOut {
            self.count_staleness(key);
        }
        let Some(rollouts) = self.contents.rollouts.as_deref_mut() else { return };
        if rollouts.remove(key).is_some() {
            rollouts.kept_mut().taken += u64::from(reason == Removal::SampledOut);
            self.contents.account.remove_bytes(GROWING_BYTES);
        }
    }

    /// Handles an item that is staler than allowed: it is a bare prompt again, or leaves.
    fn become_stale(&mut self, key: u64) {
        self.growing().count_stale();
        self.make_bare(key, Removal::Stale);
    }

    /// Gives up what one item has, because the memory is full and nothing that a learner could take
    /// would free some: the newest one that nobody holds, else the newest one. The oldest ones
    /// stay, so that they get ready. Returns false if there is none, and if items are ready, unless
    /// learners are held up: they wait for unfinished ones before they take these.
    ///
    /// Visits items from the newest on, until there is a free one with rollouts.
    pub(in crate::table) fn give_up_unfinished(&mut self, is_held_up: bool) -> bool {
        let is_full = |it: &&Rollouts| is_held_up || it.info().ready == 0;
        let Some(rollouts) = self.rollouts().filter(is_full) else { return false };
        let Some(key) = rollouts.newest_with_rollouts() else { return false };
        self.make_bare(key, Removal::Bytes);
        true
    }

    /// Makes an item its bare prompt again, in its order. One that has no prompt leaves, and so
    /// does one that was stale too often.
    fn make_bare(&mut self, key: u64, reason: Removal) {
        let settings = self.settings();
        let Some(item) = self.growing().get(key) else { return };
        let is_stale = reason == Removal::Stale;
        let is_over = is_stale && item.lost_attempts() + 1 > settings.max_attempts;
        if is_over || settings.item_columns.is_empty() {
            return self.leave(key, reason);
        }
        if item.is_in_items() {
            self.set_aside(key);
        }
        self.statistics.rollouts.again += 1;
        let rollouts = self.growing();
        rollouts.end_lease_of(key);
        rollouts.unlist(key);
        rollouts.set_stage(key, Stage::Open);
        let Some(item) = rollouts.get_mut(key) else { return };
        item.attempts += 1;
        item.given_up += u32::from(!is_stale);
        item.opened_at = None;
        item.rollouts.clear();
        item.columns = Box::default();
        item.sequences = Arc::new([]);
        let prompt = item.pieces.iter().filter_map(|piece| piece.only(&settings.item_columns));
        let prompt = prompt.collect();
        self.set_pieces(key, prompt);
        self.growing().list(key);
    }

    /// Sets the version of the policy. A smaller one, or the same, is ignored without `rewind`.
    /// Returns the version now.
    pub(in crate::table) fn set_version(&mut self, version: i64, rewind: bool) -> i64 {
        let rollouts = self.growing();
        let now = rollouts.kept().version;
        if version == now || (version < now && !rewind) {
            return now;
        }
        rollouts.begin_version(version);
        if rollouts.settings().max_staleness.is_some() {
            rollouts.stale_from = Some(0);
        }
        self.check_staleness();
        version
    }

    /// Checks the staleness of the next items after a change of the version.
    pub(in crate::table) fn check_staleness(&mut self) {
        let Some(rollouts) = self.rollouts_mut() else { return };
        for key in rollouts.next_to_check(CHECKED_AT_ONCE) {
            let rollouts = self.growing();
            // What a learner has is left to it.
            let is_taken = |it: &Growing| it.stage == Stage::Ready && it.lease.is_some();
            let is_stale = |it: &Growing| !is_taken(it) && rollouts.is_stale(it);
            if rollouts.get(key).is_some_and(is_stale) {
                self.become_stale(key);
            }
        }
    }

    /// True while items are left whose staleness is to be checked.
    pub(in crate::table) fn has_unchecked(&self) -> bool {
        self.rollouts().is_some_and(|rollouts| rollouts.stale_from.is_some())
    }

    /// Number of items that [`Self::take_growing`] could take now.
    pub(in crate::table) fn num_takable(&self, takes: Takes) -> usize {
        let most = self.rollouts().filter(|_| takes == Takes::Ready);
        let most = most.map_or(usize::MAX, Rollouts::num_fresh_enough);
        self.num_there(takes).min(most)
    }

    /// Number of items of a kind that nobody holds, also of those that wait for older ones.
    pub(in crate::table) fn num_there(&self, takes: Takes) -> usize {
        let Some(rollouts) = self.rollouts() else { return 0 };
        match takes {
            Takes::Open | Takes::Lacking(_) => rollouts.num_free(takes),
            Takes::Ready => {
                let len = self.contents.items.len();
                let min_size = self.limiter.bounds().min_size_to_sample;
                // Each of the samples needs that many.
                let most = (len as i64 - min_size + 1).max(0) as usize;
                most.min(len)
            }
        }
    }

    /// Takes `num` items of a kind, first in order, for a client; as many as can be taken at most.
    /// The same lease gives what it has.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the lease has ended.
    pub(in crate::table) fn take_growing(
        &mut self,
        takes: Takes,
        num: usize,
        lease: LeaseId,
        now: Instant,
    ) -> Result<Vec<Taken>> {
        self.growing().check_lease(lease)?;
        if let Some(keys) = self.growing().held_by(lease) {
            let keys = keys.to_vec();
            return Ok(keys.into_iter().filter_map(|key| self.taken(key, 1.0)).collect());
        }
        if takes == Takes::Ready {
            return Ok(self.take_ready(num, lease, now));
        }
        let rollouts = self.growing();
        let version = rollouts.kept().version;
        let keys = rollouts.first_free(takes, num);
        for &key in &keys {
            rollouts.lease(key, lease, now);
            if let Some(item) = rollouts.get_mut(key).filter(|_| takes == Takes::Open) {
                item.opened_at.get_or_insert(version);
            }
            rollouts.count_age(key);
        }
        Ok(keys.into_iter().filter_map(|key| self.taken(key, 1.0)).collect())
    }

    fn take_ready(&mut self, num: usize, lease: LeaseId, now: Instant) -> Vec<Taken> {
        let num = num.min(self.num_takable(Takes::Ready));
        let mut oldest = self.growing().oldest_ready(num).map(Vec::into_iter);
        let mut all = Vec::with_capacity(num);
        while all.len() < num {
            let next = match &mut oldest {
                Some(oldest) => oldest.next().map(|key| (key, 1.0)),
                None => self.pick_ready(),
            };
            let Some((key, probability)) = next else { break };
            let table_size = self.contents.items.len() as i64;
            self.limiter.count_sample();
            self.set_aside(key);
            let rollouts = self.growing();
            rollouts.lease(key, lease, now);
            let taken = self.taken(key, probability);
            self.count_staleness(key);
            all.extend(taken.map(|taken| Taken { table_size, ..taken }));
        }
        all
    }

    /// A ready item that the sampler picks: key and probability.
    fn pick_ready(&mut self) -> Option<(u64, f64)> {
        let mut picks = std::mem::take(&mut self.picks);
        picks.clear();
        self.contents.sampler.pick_many(&mut self.rng, 1, &mut picks);
        let pick = picks.first().copied();
        self.picks = picks;
        pick.map(|pick| (self.contents.items.get(pick.handle).key(), pick.probability))
    }

    /// Counts how stale an item is that is taken or sampled.
    pub(in crate::table) fn count_staleness(&mut self, key: u64) {
        let Some(rollouts) = self.rollouts() else { return };
        let version = rollouts.kept().version;
        if let Some(oldest) = rollouts.get(key).and_then(Growing::oldest) {
            self.statistics.rollouts.count_staleness(version.saturating_sub(oldest));
        }
    }

    fn taken(&self, key: u64, probability: f64) -> Option<Taken> {
        let item = Arc::clone(self.rollouts()?.kept().items.get(&key)?);
        let table_size = self.contents.items.len() as i64;
        Some(Taken { key, item, probability, table_size })
    }

    /// Ends the hold of a client on items: with `ack` they are trained, else they go back to where
    /// they were. No keys: all of the lease, which takes nothing from now on. Returns keys that
    /// other clients hold.
    pub(in crate::table) fn settle_lease(
        &mut self,
        lease: LeaseId,
        keys: Option<&[u64]>,
        ack: bool,
        now_ns: i64,
    ) -> Vec<u64> {
        let rollouts = self.growing();
        let held = rollouts.held_by(lease).map(<[u64]>::to_vec);
        if keys.is_none() {
            rollouts.close_lease(lease);
        }
        let keys = keys.map(<[u64]>::to_vec).or(held).unwrap_or_default();
        let mut others = Vec::new();
        for key in keys {
            let rollouts = self.growing();
            let Some(item) = rollouts.get(key) else { continue };
            match item.lease {
                Some(it) if it.id != lease => others.push(key),
                // An ack of what nobody holds is for an item as it was before a restart.
                None if ack => self.train(key, now_ns),
                _ if ack && item.stage == Stage::Ready => self.train(key, now_ns),
                Some(_) => self.release(key, false),
                None => {}
            }
        }
        let rollouts = self.growing();
        if rollouts.held_by(lease).is_none() {
            rollouts.close_lease(lease);
        }
        others
    }

    /// Counts an item as sampled once: it leaves, or stays for the next sample. Without a lease it
    /// may be free again, or not even be ready, because the server has gone back to a checkpoint.
    fn train(&mut self, key: u64, now_ns: i64) {
        if self.contents.items.find(key).is_some() {
            self.set_aside(key);
            self.limiter.count_sample();
        }
        let rollouts = self.growing();
        let Some(item) = rollouts.get(key) else { return };
        let Some(trajectory) = item.trajectory() else { return };
        let is_ready = item.stage == Stage::Ready;
        let max_times_sampled = self.max_times_sampled;
        let rollouts = self.growing();
        rollouts.end_lease_of(key);
        let Some(item) = rollouts.get_mut(key) else { return };
        item.values.times_sampled = item.values.times_sampled.saturating_add(1);
        let GrowingValues { times_sampled, priority, inserted_at_ns, .. } = item.values;
        let is_used_up = max_times_sampled > 0 && times_sampled >= max_times_sampled;
        let sampled = Sampled {
            key,
            priority,
            times_sampled,
            probability: 1.0,
            table_size: self.contents.items.len() as i64,
            inserted_at_ns,
            rate_limited: false,
            min_probability: 0.0,
            epoch: 0,
            removal_priority: None,
            window: SampledWindow::default(),
            trajectory,
        };
        self.contents.num_unique_samples += i64::from(times_sampled == 1);
        self.statistics.count_samples(std::slice::from_ref(&sampled), now_ns);
        if is_used_up {
            self.leave(key, Removal::SampledOut);
        } else if is_ready {
            self.enter(key, sampled.trajectory, false);
        }
    }

    /// Gives an item back that a client holds. Without the client's doing, it counts as an attempt.
    fn release(&mut self, key: u64, is_lost: bool) {
        let settings = self.settings();
        self.statistics.rollouts.lost += u64::from(is_lost);
        let rollouts = self.growing();
        rollouts.give_back(key);
        rollouts.end_lease_of(key);
        let Some(item) = rollouts.get_mut(key) else { return };
        item.attempts += u32::from(is_lost);
        match item.stage {
            Stage::Ready => {
                let trajectory = item.trajectory();
                if let Some(trajectory) = trajectory {
                    self.limiter.uncount_sample();
                    self.enter(key, trajectory, false);
                }
                self.check_one(key);
            }
            Stage::Settled => rollouts.list(key),
            Stage::Open => {
                if item.rollouts.is_empty() {
                    item.opened_at = None;
                }
                if item.lost_attempts() <= settings.max_attempts {
                    rollouts.list(key);
                    return;
                }
                self.end_rollouts(key);
            }
        }
    }

    /// Checks the staleness of an item that a learner has given back.
    fn check_one(&mut self, key: u64) {
        let rollouts = self.growing();
        if rollouts.get(key).is_some_and(|item| rollouts.is_stale(item)) {
            self.become_stale(key);
        }
    }

    /// Ends all leases of a client, which has said goodbye or is lost.
    pub(in crate::table) fn end_holder(&mut self, holder: u64, is_lost: bool) {
        let Some(rollouts) = self.rollouts_mut() else { return };
        for id in rollouts.leases_of(holder) {
            let keys = rollouts_keys(self.growing(), id);
            for key in keys {
                self.release(key, is_lost);
            }
        }
        self.growing().forget_holder(holder);
    }

    /// Gives open items back that one client has held since this time or before.
    pub(in crate::table) fn end_open_since(&mut self, time: Instant) {
        let Some(rollouts) = self.rollouts() else { return };
        for key in rollouts.open_since(time) {
            self.release(key, true);
        }
    }

    /// Gives an item that is aside another priority; false if it is not there.
    pub(super) fn set_priority_aside(&mut self, key: u64, priority: f64) -> bool {
        let Some(rollouts) = self.rollouts_mut() else { return false };
        let item = rollouts.get_mut(key).filter(|item| !item.is_in_items());
        item.map(|item| item.values.priority = priority).is_some()
    }

    /// The item with this key, of those that are not in `Items`.
    pub(in crate::table) fn aside(&self, key: u64) -> Option<StoredItem> {
        let item = self.rollouts()?.get(key)?;
        Some(item.values.with(key, item.trajectory()?))
    }

    /// Sets the version and what counts with it, of a stored table.
    pub(in crate::table) fn restore_rollouts(&mut self, info: &RolloutsInfo) {
        let Some(rollouts) = self.rollouts_mut() else { return };
        rollouts.restore_left(&info.left);
        let kept = rollouts.kept_mut();
        kept.version = info.version;
        kept.taken = info.taken;
        kept.newest.clone_from(&info.newest);
    }

    /// Adds a stored item. A ready one comes again, by [`Self::restore_ready`], with its columns.
    pub(in crate::table) fn restore_growing(&mut self, item: StoredGrowing) {
        let StoredGrowing { key, name, order, stage, attempts, given_up, .. } = item;
        let StoredGrowing { opened_at, rollouts, .. } = item;
        let num_columns = self.settings().num_columns;
        let mut growing = Growing {
            name,
            order,
            stage,
            attempts,
            given_up,
            opened_at,
            rollouts,
            pieces: Vec::new(),
            columns: if stage == Stage::Ready {
                (0..num_columns).collect()
            } else {
                Box::default()
            },
            sequences: item.sequences,
            values: GrowingValues {
                priority: 0.0,
                removal_priority: None,
                times_sampled: 0,
                inserted_at_ns: 0,
            },
            lease: None,
            age: None,
        };
        let piece = item.aside.map(|(stored, parts)| {
            growing.values = GrowingValues::of(&stored);
            Piece { trajectory: stored.trajectory, parts }
        });
        self.newest_ns = self.newest_ns.max(growing.values.inserted_at_ns);
        self.foreign_keys.note(key);
        self.contents.account.add_bytes(GROWING_BYTES);
        let rollouts = self.growing();
        let kept = rollouts.kept_mut();
        kept.next_order = kept.next_order.max(order + 1);
        rollouts.put(key, growing);
        if let Some(piece) = piece {
            self.add_piece(key, piece);
        }
        match stage {
            Stage::Open => self.growing().list(key),
            Stage::Settled => self.complete(key),
            Stage::Ready => {}
        }
    }

    /// Adds a stored item that is whole. One of a checkpoint without rollouts has one sequence.
    pub(in crate::table) fn restore_ready(&mut self, item: StoredItem) {
        let values = GrowingValues::of(&item);
        let key = item.key;
        if self.growing().get(key).is_none() {
            let version = self.growing().kept().version;
            let growing = whole(version, &item.trajectory, values);
            self.contents.account.add_bytes(GROWING_BYTES);
            self.growing().add(key, growing);
        } else if let Some(growing) = self.growing().get_mut(key) {
            growing.values = values;
        }
        self.newest_ns = self.newest_ns.max(values.inserted_at_ns);
        self.put(item);
    }

    /// Forgets stored items that were ready, and whose columns did not come.
    pub(in crate::table) fn forget_incomplete(&mut self) {
        let Some(rollouts) = self.rollouts() else { return };
        let is_missing = |key: &u64, item: &Growing| {
            item.stage == Stage::Ready && self.contents.items.find(*key).is_none()
        };
        let all = rollouts.kept().items.iter();
        let missing: Vec<u64> =
            all.filter(|(key, item)| is_missing(key, item)).map(|(&key, _)| key).collect();
        for key in missing {
            self.growing().remove(key);
            self.contents.account.remove_bytes(GROWING_BYTES);
        }
        // A ready item that a learner held may have become too stale; nobody holds it now.
        self.growing().stale_from = Some(0);
    }

    /// What an item weighs by in a selector.
    pub(super) fn order_of(&self, key: u64) -> f64 {
        let order = self.rollouts().and_then(|rollouts| rollouts.get(key)).map(|item| item.order);
        order.unwrap_or_default() as f64
    }
}

/// A whole item of a client that knows of no rollouts: it is ready, with one sequence.
fn whole(version: i64, trajectory: &Trajectory, values: GrowingValues) -> Growing {
    let steps = trajectory.columns().filter(|it| !it.squeeze).map(|it| it.num_steps()).max();
    let length = u32::try_from(steps.unwrap_or(1)).unwrap_or(u32::MAX);
    let versions = Versions { oldest: version, newest: version };
    Growing {
        name: Box::default(),
        order: 0,
        stage: Stage::Ready,
        attempts: 0,
        given_up: 0,
        opened_at: None,
        rollouts: vec![Rollout { number: 0, outcome: Outcome::Final, versions }],
        pieces: Vec::new(),
        columns: (0..trajectory.num_columns() as u32).collect(),
        sequences: Arc::new([SequenceInfo { rollout: 0, length }]),
        values,
        lease: None,
        age: None,
    }
}

fn rollouts_keys(rollouts: &Rollouts, id: LeaseId) -> Vec<u64> {
    rollouts.held_by(id).map(<[u64]>::to_vec).unwrap_or_default()
}

fn is_final(item: &Growing, number: u32) -> bool {
    item.rollouts.iter().any(|it| it.number == number && it.outcome == Outcome::Final)
}
