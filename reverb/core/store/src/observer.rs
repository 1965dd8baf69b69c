// SPDX-License-Identifier: Apache-2.0
//! What threads other than the writing one see of a store.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::data_files::{FilesToEmpty, Sizes};
use crate::status::{DiskErrors, StoreStatus};
use crate::store::Shared;

/// State and counts of a store or a journal, also while another thread writes to it.
#[derive(Debug, Clone)]
pub struct Observer(pub(crate) Arc<Shared>);

impl Observer {
    /// The files whose payloads are to be moved out now; see `Store::to_empty`.
    pub fn to_empty(&self) -> FilesToEmpty {
        self.0.to_empty()
    }

    /// State and counts.
    pub fn status(&self) -> StoreStatus {
        self.0.status()
    }
}

impl Shared {
    pub(crate) fn status(&self) -> StoreStatus {
        let Self { options, counts, .. } = self;
        let Sizes { bytes, live_bytes, num_files } = self.files.lock().sizes();
        let (state, failure, waiting_bytes) = {
            let queue = self.queue.lock();
            (queue.state(), queue.failure(), queue.waiting_bytes)
        };
        let errors = counts.errors().into_iter();
        StoreStatus {
            path: options.path.clone(),
            state,
            failure,
            live_bytes,
            dead_bytes: bytes - live_bytes,
            max_bytes: self.budget(),
            num_files,
            log_bytes: counts.log_bytes.load(Relaxed),
            base_bytes: counts.base_bytes.load(Relaxed),
            written_bytes: counts.written_bytes.load(Relaxed),
            moved_bytes: counts.moved_bytes.load(Relaxed),
            written_log_bytes: counts.written_log_bytes.load(Relaxed),
            written_base_bytes: counts.written_base_bytes.load(Relaxed),
            waiting_bytes,
            write_speed: counts.write_speed(),
            syncs: counts.syncs.load(Relaxed),
            sync_time: counts.sync_time(),
            reads: counts.reads.load(Relaxed),
            read_bytes: counts.read_bytes.load(Relaxed),
            read_time: counts.read_time(),
            errors: errors.map(|((call, kind), count)| DiskErrors { call, kind, count }).collect(),
        }
    }
}
