// SPDX-License-Identifier: Apache-2.0
//! Limits on the memory that one peer can use.

use std::time::Duration;

use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use reverb_rpc::server::{ConnectionLimits, max_files, reserved_files};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// A client keeps up to nine idle streams for later calls; its other calls need more.
const MIN_STREAMS: usize = 16;
/// Largest count of a semaphore.
const MAX_CONNECTIONS: usize = tokio::sync::Semaphore::MAX_PERMITS;
/// Largest length of a gRPC message.
const MAX_MESSAGE_BYTES: usize = u32::MAX as usize;

/// Limits of one peer. A peer that exceeds one gets `ResourceExhausted` with the name of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of a message on an insert stream.
    pub message_bytes: usize,
    /// Size of a message of any other call.
    pub call_bytes: usize,
    /// Bytes of the chunks that an insert stream holds for later items.
    pub stream_bytes: usize,
    /// Bytes of the items that are queued for a table.
    pub queued_bytes: usize,
    /// Number of connections.
    pub connections: usize,
    /// Number of concurrent streams of all connections.
    pub streams: usize,
    /// Number of concurrent streams of a connection.
    pub streams_per_connection: usize,
    /// Time that a reader may leave sent data unread.
    pub unread_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: GIB,
            call_bytes: 64 * MIB,
            stream_bytes: GIB,
            queued_bytes: 256 * MIB,
            connections: 10_000,
            streams: 100_000,
            streams_per_connection: 10_000,
            unread_timeout: Duration::from_secs(300),
        }
    }
}

impl Limits {
    /// # Errors
    ///
    /// `InvalidArgument` for a limit that is out of its range.
    pub fn validate(&self) -> Result<()> {
        let ranges = [
            ("message_bytes", self.message_bytes, 1, MAX_MESSAGE_BYTES),
            ("call_bytes", self.call_bytes, 1, MAX_MESSAGE_BYTES),
            ("stream_bytes", self.stream_bytes, 1, usize::MAX),
            ("queued_bytes", self.queued_bytes, 1, usize::MAX),
            ("connections", self.connections, 1, usize::MAX),
            ("streams", self.streams, MIN_STREAMS, usize::MAX),
            ("streams_per_connection", self.streams_per_connection, MIN_STREAMS, u32::MAX as usize),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                let max = if max == usize::MAX {
                    String::new()
                } else {
                    format!(" and at most {}", grouped(max))
                };
                return Err(Error::invalid_argument(format!(
                    "Limits.{name} must be at least {min}{max}, got {}.",
                    grouped(value)
                )));
            }
        }
        Ok(())
    }

    /// Caps the number of connections by the process's limit of open files. Logs it.
    #[must_use]
    pub(crate) fn cut_to_files(self) -> Self {
        let max_files = max_files();
        let cut = self.cut_to(max_files);
        if cut != self {
            let text = format!(
                "Limits.connections is {} instead of {}: this process may open {} files (ulimit -n), \
                 and {} of them are kept for checkpoints, the log and the HTTP port",
                grouped(cut.connections),
                grouped(self.connections),
                grouped(max_files),
                grouped(reserved_files(max_files)),
            );
            // A lowered default is no warning, because no option asked for it.
            if self.connections == Self::default().connections {
                tracing::info!("{text}");
            } else {
                tracing::warn!("{text}");
            }
        }
        cut
    }

    fn cut_to(self, max_files: usize) -> Self {
        let most = max_files.saturating_sub(reserved_files(max_files)).max(1);
        Self { connections: self.connections.min(most).min(MAX_CONNECTIONS), ..self }
    }

    pub(crate) fn of_connections(&self, stream_window_bytes: u32) -> ConnectionLimits {
        ConnectionLimits {
            connections: self.connections,
            streams: self.streams,
            streams_per_connection: u32::try_from(self.streams_per_connection).unwrap_or(u32::MAX),
            stream_window_bytes,
            unread_timeout: self.unread_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_other_things() {
        let cut = |connections, max_files| {
            Limits { connections, ..Limits::default() }.cut_to(max_files).connections
        };
        assert_eq!(cut(10_000, 1024), 896);
        assert_eq!(cut(896, 1024), 896);
        assert_eq!(cut(100, 1024), 100);
        assert_eq!(cut(10_000, 20), 1);
        assert_eq!(cut(10_000, 20_000), 10_000);
        assert_eq!(cut(usize::MAX, usize::MAX), MAX_CONNECTIONS);
    }
}
