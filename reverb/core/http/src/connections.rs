// SPDX-License-Identifier: Apache-2.0
//! The open connections of a port: a few, and those that do nothing make room for new ones.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of connections. A scraper, a probe and some pages need ten.
const MAX_CONNECTIONS: usize = 64;

/// The open connections, those without a request for the longest time first.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<VecDeque<Arc<Connection>>>);

/// An open connection.
#[derive(Debug, Default)]
pub(crate) struct Connection(Notify);

impl Connections {
    /// Adds a connection. If there are too many, the one that has sent nothing for the longest time
    /// ends.
    pub(crate) fn open(&self) -> Arc<Connection> {
        let mut open = self.0.lock();
        if open.len() >= MAX_CONNECTIONS
            && let Some(idle) = open.pop_front()
        {
            idle.0.notify_one();
        }
        let connection = Arc::new(Connection::default());
        open.push_back(Arc::clone(&connection));
        connection
    }

    /// Records that a connection has sent a request.
    pub(crate) fn touch(&self, connection: &Arc<Connection>) {
        let mut open = self.0.lock();
        if let Some(at) = open.iter().position(|it| Arc::ptr_eq(it, connection)) {
            open.remove(at);
            open.push_back(Arc::clone(connection));
        }
    }

    /// Removes a connection that has ended.
    pub(crate) fn close(&self, connection: &Arc<Connection>) {
        self.0.lock().retain(|open| !Arc::ptr_eq(open, connection));
    }
}

impl Connection {
    /// Resolves when the connection has to make room.
    pub(crate) async fn ended(&self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_did_nothing_for_longest_makes_room() {
        let connections = Connections::default();
        let first = connections.open();
        let second = connections.open();
        (2..MAX_CONNECTIONS).for_each(|_| drop(connections.open()));
        connections.touch(&first);
        connections.open();
        let open = connections.0.lock().clone();
        assert_eq!(open.len(), MAX_CONNECTIONS);
        assert!(open.iter().any(|it| Arc::ptr_eq(it, &first)));
        assert!(!open.iter().any(|it| Arc::ptr_eq(it, &second)));
        connections.touch(&second);
        connections.close(&first);
        assert_eq!(connections.0.lock().len(), MAX_CONNECTIONS - 1);
    }
}
