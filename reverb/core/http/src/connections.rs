// SPDX-License-Identifier: Apache-2.0
//! Open connections of a port: a limited number, and idle ones are closed for new ones.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Open connections, those without a request for the longest time first.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Limit on connections; ended ones count until they have closed.
    room: Arc<Semaphore>,
    open: Mutex<VecDeque<Arc<Connection>>>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    ended: Notify,
    _room: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(max_connections: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(max_connections.max(1))), open: Mutex::default() }
    }

    /// Adds a connection. If there are too many, the one that has sent nothing for the longest time
    /// ends first.
    pub(crate) async fn open(&self) -> Arc<Connection> {
        if self.room.available_permits() == 0
            && let Some(idle) = self.open.lock().pop_front()
        {
            idle.ended.notify_one();
        }
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.expect("nobody closes the semaphore");
        let connection = Arc::new(Connection { ended: Notify::new(), _room: room });
        self.open.lock().push_back(Arc::clone(&connection));
        connection
    }

    /// Records that a connection has sent a request.
    pub(crate) fn touch(&self, connection: &Arc<Connection>) {
        let mut open = self.open.lock();
        if let Some(at) = open.iter().position(|known| Arc::ptr_eq(known, connection)) {
            open.remove(at);
            open.push_back(Arc::clone(connection));
        }
    }

    pub(crate) fn close(&self, connection: &Arc<Connection>) {
        self.open.lock().retain(|open| !Arc::ptr_eq(open, connection));
    }
}

impl Connection {
    /// Resolves when the connection must close to make room.
    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_one_that_did_nothing_for_longest_makes_room() {
        let connections = Connections::new(3);
        let [first, second, third] =
            [connections.open().await, connections.open().await, connections.open().await];
        connections.touch(&first);
        let mut newest = std::pin::pin!(connections.open());
        let waited = tokio::time::timeout(std::time::Duration::from_millis(10), newest.as_mut());
        assert!(waited.await.is_err(), "the oldest has not closed yet");
        second.ended().await;
        connections.touch(&second);
        connections.close(&second);
        drop(second);
        newest.await;
        let open = connections.open.lock().clone();
        assert_eq!(open.len(), 3);
        assert!([&third, &first].iter().zip(&open).all(|(a, b)| Arc::ptr_eq(a, b)));
        connections.close(&first);
        assert_eq!(connections.open.lock().len(), 2);
    }
}
