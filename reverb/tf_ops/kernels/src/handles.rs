// SPDX-License-Identifier: Apache-2.0
//! Handles: numbers that refer to objects in a graph.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;

use crate::failure::{Code, Failure, Outcome};

/// The next handle. A process never uses a number twice, for any kind of object; 0 refers to
/// nothing.
static NEXT: AtomicI64 = AtomicI64::new(1);

/// Objects of one kind.
pub(crate) struct Handles<T> {
    /// Name of the kind in error texts.
    kind: &'static str,
    objects: RwLock<Option<HashMap<i64, Arc<T>>>>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, objects: RwLock::new(None) }
    }

    /// Assigns a handle to an object.
    pub(crate) fn add(&self, object: Arc<T>) -> i64 {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        self.objects.write().get_or_insert_default().insert(handle, object);
        handle
    }

    /// The object of a handle.
    pub(crate) fn get(&self, handle: i64) -> Outcome<Arc<T>> {
        let objects = self.objects.read();
        let found = objects.as_ref().and_then(|objects| objects.get(&handle));
        found.cloned().ok_or_else(|| {
            Failure::new(
                Code::FailedPrecondition,
                format!(
                    "no {} with the handle {handle} is open in this process: it was closed, or the handle comes from \
                     another process or a saved iterator",
                    self.kind
                ),
            )
        })
    }

    /// Removes a handle; returns its object, if there was one.
    pub(crate) fn remove(&self, handle: i64) -> Option<Arc<T>> {
        self.objects.write().as_mut()?.remove(&handle)
    }
}
