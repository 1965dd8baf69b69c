// SPDX-License-Identifier: Apache-2.0
//! Refusal of connections beyond the limit: each gets a reason, and is closed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::error::grouped;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use super::graceful_close;
use super::traffic::Traffic;
use crate::status::{Code, Status};

/// Maximum number of connections that are sent a reason at the same time. More are closed without
/// one.
const MAX_IN_PROGRESS: usize = 64;

/// Time in which a peer has to read the reason and close its end.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The type of the frame that ends a connection (RFC 9113, section 6.8).
const GOAWAY: u8 = 7;

/// Refuses connections. Only a few are open at a time, and none for long.
pub(super) struct RefusedConnections {
    limit: usize,
    reason: String,
    goaway: Vec<u8>,
    in_progress: JoinSet<()>,
    traffic: Arc<Traffic>,
}

impl RefusedConnections {
    /// Refusals of a server that accepts `limit` connections.
    pub(super) fn new(limit: usize, traffic: &Arc<Traffic>) -> Self {
        let reason =
            format!("Limits.connections is {}, and as many clients are connected", grouped(limit));
        Self {
            limit,
            goaway: goaway(h2::Reason::ENHANCE_YOUR_CALM, &reason),
            reason,
            in_progress: JoinSet::new(),
            traffic: Arc::clone(traffic),
        }
    }

    /// Answer to a call of somebody else on a connection that is kept for operators.
    pub(super) fn status(&self) -> Status {
        Status::new(
            Code::Unavailable,
            format!(
                "{}. This connection is kept for calls by which operators see and steer the server, \
                 and the caller must have the right to them.",
                self.reason
            ),
        )
    }

    /// Closes a connection, after sending it the reason if there are not too many of them.
    pub(super) fn refuse<S>(&mut self, socket: S, peer: impl fmt::Display)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.traffic.count_refusal("connections");
        tracing::warn!(
            %peer,
            "refused the connection: there are {} connections, which is the limit \
             (Limits.connections)",
            grouped(self.limit)
        );
        while self.in_progress.try_join_next().is_some() {}
        if self.in_progress.len() < MAX_IN_PROGRESS {
            let goaway = self.goaway.clone();
            self.in_progress.spawn(async move {
                // The peer may not read it.
                let _ = tokio::time::timeout(TIMEOUT, graceful_close::close(socket, &goaway)).await;
            });
        }
    }
}

/// A GOAWAY frame, as the first frame of the server.
///
/// HTTP/2 requires a server's settings first. They are left out on purpose. With them, gRPC's own
/// library takes the connection for a good one and its loss for an accident: it connects again at
/// once, up to hundreds of times a second, logs each time, and its calls wait until their deadline;
/// writers of dm-reverb fail for good. Without them, the attempt has failed: calls end with
/// `UNAVAILABLE`, or try again, and the next attempt comes after a second or more. Clients of this
/// package read the text in both cases.
pub(super) fn goaway(reason: h2::Reason, text: &str) -> Vec<u8> {
    const LAST_STREAM: [u8; 4] = [0; 4];
    let reason = u32::from(reason).to_be_bytes();
    let length = LAST_STREAM.len() + reason.len() + text.len();
    let [_, length @ ..] = u32::try_from(length).expect("the text is short").to_be_bytes();
    let flags = [0];
    let stream = [0; 4];
    [&length[..], &[GOAWAY], &flags, &stream, &LAST_STREAM, &reason, text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::graceful_close::MAX_READ_BYTES;
    use super::*;

    const PEER: &str = "127.0.0.1:1";

    fn refused_beyond(limit: usize) -> RefusedConnections {
        RefusedConnections::new(limit, &Arc::new(Traffic::new(Vec::new())))
    }

    async fn everything(socket: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn the_reason_names_the_limit() {
        let mut refused = refused_beyond(10_000);
        let (ours, mut theirs) = duplex(1 << 16);
        refused.refuse(ours, PEER);
        let bytes = everything(&mut theirs).await;
        let text = b"Limits.connections is 10,000, and as many clients are connected";
        assert_eq!(bytes[..9], [0, 0, 8 + text.len() as u8, 7, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[9..17], [0, 0, 0, 0, 0, 0, 0, 0xb]);
        assert_eq!(bytes[17..], text[..]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_neither_reads_nor_closes_is_kept_for_a_second() {
        let mut refused = refused_beyond(1);
        // No room for the whole reason.
        let (ours, _theirs) = duplex(10);
        let began = Instant::now();
        refused.refuse(ours, PEER);
        refused.in_progress.join_next().await.unwrap().unwrap();
        assert_eq!(began.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_without_end_is_cut_off() {
        let mut refused = refused_beyond(1);
        let (ours, mut theirs) = duplex(1 << 10);
        refused.refuse(ours, PEER);
        let mut sent = 0;
        while theirs.write_all(&[0; 1 << 10]).await.is_ok() {
            sent += 1 << 10;
        }
        assert!(sent <= MAX_READ_BYTES + (2 << 10), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_few_are_told_at_a_time() {
        let mut refused = refused_beyond(1);
        let mut peers = Vec::new();
        for _ in 0..=MAX_IN_PROGRESS {
            let (ours, theirs) = duplex(1 << 16);
            refused.refuse(ours, PEER);
            peers.push(theirs);
        }
        assert!(everything(peers.last_mut().unwrap()).await.is_empty());
        assert!(!everything(&mut peers[0]).await.is_empty());
        tokio::time::sleep(2 * TIMEOUT).await;
        let (ours, mut theirs) = duplex(1 << 16);
        refused.refuse(ours, PEER);
        assert!(!everything(&mut theirs).await.is_empty());
    }
}
