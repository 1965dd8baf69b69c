// SPDX-License-Identifier: Apache-2.0
//! The other end of a connection to a server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use reverb_tls::ClientCertificate;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::accepted::PeerAddress;

/// Maximum number of calls of a connection that may fail to authenticate.
const MAX_FAILURES: usize = 10;

/// Delay of the answer to such a call. The answers of a connection are delayed one after the other.
const FAILURE_DELAY: Duration = Duration::from_millis(100);

/// The other end of a connection, as far as the connection identifies it.
#[derive(Debug)]
pub struct Peer {
    name: String,
    address: PeerAddress,
    encryption: Encryption,
    connected_at: std::time::Instant,
    failures: AtomicUsize,
    /// Time at which the last of them is answered.
    answers_until: Mutex<Option<Instant>>,
    failed_often: Notify,
}

/// Encryption of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encryption {
    /// No encryption.
    Cleartext,
    /// Encryption by TLS.
    Tls(
        /// The client's certificate, if it sent one.
        Option<ClientCertificate>,
    ),
}

impl Peer {
    pub(super) fn new(address: PeerAddress, encryption: Encryption) -> Self {
        Self {
            name: format!("client {address}"),
            address,
            encryption,
            connected_at: std::time::Instant::now(),
            failures: AtomicUsize::new(0),
            answers_until: Mutex::new(None),
            failed_often: Notify::new(),
        }
    }

    /// Address for messages to people: `client 10.0.0.1:5`, or `client unix:4711` with the process
    /// number if it has connected to the Unix socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The time at which it connected.
    pub fn connected_at(&self) -> std::time::Instant {
        self.connected_at
    }

    /// Returns true if the peer is on this machine.
    pub fn is_loopback(&self) -> bool {
        match self.address {
            PeerAddress::Network(address) => address.ip().to_canonical().is_loopback(),
            PeerAddress::Process { .. } => true,
        }
    }

    /// Counts a call that failed to authenticate. After ten of them the connection is closed.
    /// Returns the time at which the call may be answered.
    pub fn count_failure(&self) -> Instant {
        let now = Instant::now();
        let mut until = self.answers_until.lock();
        let at = until.map_or(now, |last| last.max(now)) + FAILURE_DELAY;
        *until = Some(at);
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == MAX_FAILURES {
            self.failed_often.notify_one();
        }
        at
    }

    /// Returns true if too many calls have failed.
    pub fn has_failed_often(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= MAX_FAILURES
    }

    /// Resolves when too many calls have failed, with the time of the last answer.
    pub(super) async fn failed_often(&self) -> Instant {
        self.failed_often.notified().await;
        self.answers_until.lock().unwrap_or_else(Instant::now)
    }

    /// Returns true if nobody between can read or change the bytes.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.encryption, Encryption::Tls(_))
    }

    fn certificate(&self) -> Option<&ClientCertificate> {
        match &self.encryption {
            Encryption::Cleartext => None,
            Encryption::Tls(certificate) => certificate.as_ref(),
        }
    }

    /// Names in its certificate; empty without a certificate.
    pub fn certificate_names(&self) -> &[String] {
        self.certificate().map_or(&[], |certificate| &certificate.names)
    }

    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        let expires_at = self.certificate().and_then(|certificate| certificate.expires_at);
        expires_at.is_some_and(|expires_at| expires_at < now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(encryption: Encryption) -> Peer {
        Peer::new(PeerAddress::Network("127.0.0.1:1".parse().unwrap()), encryption)
    }

    #[tokio::test(start_paused = true)]
    async fn failed_calls_are_answered_one_after_the_other_and_ten_are_the_last() {
        let peer = peer(Encryption::Cleartext);
        let began = Instant::now();
        for number in 1..=MAX_FAILURES {
            assert!(!peer.has_failed_often());
            assert_eq!(peer.count_failure(), began + FAILURE_DELAY * number as u32);
        }
        assert!(peer.has_failed_often());
        assert_eq!(peer.failed_often().await, began + Duration::from_secs(1));
        // A later answer is never before the call itself.
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(peer.count_failure(), Instant::now() + FAILURE_DELAY);
    }

    #[test]
    fn a_certificate_has_an_end_and_names() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let certificate = ClientCertificate { names: vec!["a".into()], expires_at: Some(end) };
        let known = peer(Encryption::Tls(Some(certificate)));
        assert_eq!(known.certificate_names(), ["a"]);
        assert!(!known.has_expired(end) && known.has_expired(end + Duration::from_secs(1)));
        for encryption in [Encryption::Cleartext, Encryption::Tls(None)] {
            let other = peer(encryption);
            assert!(!other.has_expired(end + Duration::from_secs(1)));
            assert!(other.certificate_names().is_empty());
        }
    }
}
