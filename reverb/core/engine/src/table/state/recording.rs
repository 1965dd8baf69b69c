// SPDX-License-Identifier: Apache-2.0
//! What a state records while it changes: before-images for a snapshot, and changes for a commit.

use std::time::{Duration, Instant};

use super::TableState;
use crate::selector::Handle;
use crate::table::changes::{ChangeRecorder, Mutation};
use crate::table::items::Item;
use crate::table::snapshot::BeforeImages;

/// Both are behind one pointer, because most tables record nothing most of the time.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) before_images: Option<Box<BeforeImages>>,
    pub(super) changes: Option<ChangeRecorder>,
}

impl Recording {
    /// Saves the before-image of an item that is about to change or was just removed.
    pub(super) fn save(&mut self, handle: Handle, item: &Item, removal_priority: Option<f64>) {
        if let Some(before) = &mut self.before_images {
            before.record(handle, item, removal_priority);
        }
    }

    pub(super) fn note(&mut self, mutation: Mutation, handle: Handle, key: u64) {
        if let Some(changes) = &mut self.changes {
            changes.note(mutation, handle, key);
        }
    }
}

/// Records an item that is about to change or was just removed.
pub(super) fn record(
    recording: &mut Option<Box<Recording>>,
    mutation: Mutation,
    handle: Handle,
    item: &Item,
    removal_priority: Option<f64>,
) {
    if let Some(recording) = recording {
        recording.save(handle, item, removal_priority);
        recording.note(mutation, handle, item.key());
    }
}

impl TableState {
    /// True while a snapshot is being copied.
    pub(in crate::table) fn is_being_copied(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.before_images.is_some())
    }

    /// Begins or continues to save before-images.
    pub(in crate::table) fn set_before_images(&mut self, before: Box<BeforeImages>) {
        self.recording.get_or_insert_default().before_images = Some(before);
    }

    /// Ends it.
    pub(in crate::table) fn take_before_images(&mut self) -> Option<Box<BeforeImages>> {
        let before = self.recording.as_mut()?.before_images.take();
        self.recording.take_if(|recording| recording.changes.is_none());
        before
    }

    /// Begins to record changes.
    pub(in crate::table) fn record_changes(&mut self, recorder: ChangeRecorder) {
        self.recording.get_or_insert_default().changes = Some(recorder);
    }

    /// Recorder of the changes, if they are recorded.
    #[inline]
    pub(in crate::table) fn changes(&self) -> Option<&ChangeRecorder> {
        self.recording.as_ref()?.changes.as_ref()
    }

    /// The same, to take changes.
    pub(in crate::table) fn changes_mut(&mut self) -> Option<&mut ChangeRecorder> {
        self.recording.as_mut()?.changes.as_mut()
    }

    /// Age of the oldest change that is not on disk, if inserts have to wait for it.
    #[inline]
    pub(in crate::table) fn lag_above_limit(&self, now: Instant) -> Option<Duration> {
        self.changes()?.lag_above_limit(now)
    }

    /// Ends an operation. Its time is that of its changes.
    #[inline]
    pub(in crate::table) fn fold_changes(&mut self, now: Instant) {
        if let Some(recording) = &mut self.recording
            && let Some(changes) = &mut recording.changes
        {
            changes.fold(&self.contents, self.max_times_sampled > 1, now);
        }
    }
}
