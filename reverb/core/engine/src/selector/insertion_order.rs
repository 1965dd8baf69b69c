// SPDX-License-Identifier: Apache-2.0
//! Handles in order of insertion: a doubly linked list inside one array.

use super::{Handle, ensure};

/// No neighbour on that side.
const NONE: Handle = Handle::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: Handle,
    newer: Handle,
}

#[derive(Debug)]
pub(super) struct InsertionOrder {
    /// Links of each handle. Entries of absent handles are meaningless.
    links: Vec<Link>,
    oldest: Handle,
    newest: Handle,
}

impl Default for InsertionOrder {
    fn default() -> Self {
        Self { links: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl InsertionOrder {
    pub(super) fn oldest(&self) -> Option<Handle> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn newest(&self) -> Option<Handle> {
        (self.newest != NONE).then_some(self.newest)
    }

    /// All handles, the oldest first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = Handle> {
        let known = |handle| (handle != NONE).then_some(handle);
        let newer = move |&handle: &Handle| known(self.links[handle as usize].newer);
        std::iter::successors(self.oldest(), newer)
    }

    pub(super) fn push(&mut self, handle: Handle) {
        let link = Link { older: self.newest, newer: NONE };
        ensure(&mut self.links, handle, link);
        self.links[handle as usize] = link;
        match self.newest {
            NONE => self.oldest = handle,
            newest => self.links[newest as usize].newer = handle,
        }
        self.newest = handle;
    }

    pub(super) fn remove(&mut self, handle: Handle) {
        let Link { older, newer } = self.links[handle as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }

    /// Undoes the last `remove`. The link of the handle still has its neighbours.
    pub(super) fn put_back(&mut self, handle: Handle) {
        let Link { older, newer } = self.links[handle as usize];
        match older {
            NONE => self.oldest = handle,
            older => self.links[older as usize].newer = handle,
        }
        match newer {
            NONE => self.newest = handle,
            newer => self.links[newer as usize].older = handle,
        }
    }
}
