// SPDX-License-Identifier: Apache-2.0
//! The files of a server's store: payloads alone, or a journal of all that happens.

use std::sync::Arc;

use reverb_base::{Result, StoreState};
use reverb_data::Chunk;
use reverb_store::{FilesToEmpty, Store, StoreStatus};

use super::commits::Commits;

/// What writes payloads.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    /// Nothing survives the process.
    Payloads(Arc<Store>),
    /// Payloads may leave memory when the commit that has them is on disk.
    Journal(Arc<Commits>),
}

impl Files {
    /// Writes payloads and forgets them, now or soon. Returns false if they stay in memory: the
    /// disk fails or is full.
    pub(crate) fn write_and_forget(&self, chunks: Vec<Chunk>) -> bool {
        match self {
            Self::Payloads(store) => store.write(chunks, true),
            // They are of items that are in no commit yet.
            Self::Journal(commits) => commits.want(chunks.iter().map(Chunk::payload_bytes).sum()),
        }
    }

    /// The same for payloads that no table has yet, of a load.
    pub(crate) fn write_before_start(&self, chunks: Vec<Chunk>) -> bool {
        match self {
            Self::Payloads(store) => store.write(chunks, true),
            Self::Journal(commits) => {
                let is_written = commits.write(&chunks);
                if is_written {
                    for chunk in &chunks {
                        chunk.forget();
                    }
                }
                is_written
            }
        }
    }

    /// Moves payloads out of files that are to be emptied.
    pub(crate) fn move_out(&self, chunks: Vec<Chunk>) {
        match self {
            Self::Payloads(store) => drop(store.move_out(chunks)),
            Self::Journal(commits) => commits.move_out(chunks),
        }
    }

    /// True while payloads that were given are still to be moved, and would be found again.
    pub(crate) fn is_moving(&self) -> bool {
        self.journal().is_some_and(|commits| commits.is_moving())
    }

    /// The files that are to be emptied now.
    pub(crate) fn to_empty(&self) -> FilesToEmpty {
        match self {
            Self::Payloads(store) => store.to_empty(),
            Self::Journal(commits) => commits.observer().to_empty(),
        }
    }

    /// Bytes of payloads that will leave memory when they are written.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        match self {
            Self::Payloads(store) => store.waiting_bytes(),
            Self::Journal(commits) => commits.waiting_bytes(),
        }
    }

    pub(crate) fn status(&self) -> StoreStatus {
        match self {
            Self::Payloads(store) => store.status(),
            Self::Journal(commits) => commits.store_status(),
        }
    }

    /// True if files have as many bytes as they may, so that something has to leave.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Payloads(store) => store.status().state == StoreState::Full,
            Self::Journal(commits) => commits.status().is_full,
        }
    }

    /// The journal, if it is one.
    pub(crate) fn journal(&self) -> Option<&Arc<Commits>> {
        match self {
            Self::Payloads(_) => None,
            Self::Journal(commits) => Some(commits),
        }
    }

    /// Ends the writing. Blocks for some seconds if the disk hangs.
    ///
    /// # Errors
    ///
    /// `DataLoss` if the last commit of a journal did not reach the disk.
    pub(crate) fn stop(&self) -> Result<()> {
        match self {
            Self::Payloads(store) => {
                store.stop();
                Ok(())
            }
            Self::Journal(commits) => commits.stop(),
        }
    }
}
