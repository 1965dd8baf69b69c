// SPDX-License-Identifier: Apache-2.0
//! The locks of this crate, and those of other crates that it takes.

use parking_lot::Mutex;

/// Takes a lock. Clippy refuses any other way in this crate.
pub(crate) trait Visit<T> {
    /// Calls `visit` under the lock. It cannot use Python, nothing of which is `Send`: Python runs
    /// code of the program to compare, to index or to free an object, and that code may need the
    /// lock, or wait for a thread that does. An object that the value gives up is a result of
    /// `visit`, so that it is freed without the lock.
    fn visit<R>(&self, visit: impl FnOnce(&mut T) -> R + Send) -> R;
}

impl<T> Visit<T> for Mutex<T> {
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "`visit` cannot use Python")]
    fn visit<R>(&self, visit: impl FnOnce(&mut T) -> R + Send) -> R {
        visit(&mut self.lock())
    }
}
