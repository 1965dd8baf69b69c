// SPDX-License-Identifier: Apache-2.0
//! Protocol of a peer, recognised by its first bytes; and answers to the wrong ones.

use std::io;
use std::time::Duration;

use reverb_tls::Socket;

use super::accepted::Accepted;
use super::graceful_close;

/// Pause before another look at a beginning that fits several protocols.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

const HTTP1_METHODS: [&[u8]; 8] =
    [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH "];

/// A record of TLS: a handshake, of a version that begins with 3.
const TLS_HANDSHAKE: &[u8] = &[0x16, 3];

/// A fatal alert of TLS: `handshake_failure` (RFC 8446, section 6.2).
const TLS_ALERT: &[u8] = &[0x15, 3, 1, 0, 2, 2, 40];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerProtocol {
    /// HTTP/2, or an unknown protocol.
    Http2,
    Http1,
    Tls,
}

impl PeerProtocol {
    /// Protocol that these bytes begin; `None` if more are needed.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut beginnings = HTTP1_METHODS.iter().map(|method| (*method, Self::Http1));
        let mut is_open = false;
        let mut matches = |beginning: &[u8]| {
            let common = beginning.len().min(bytes.len());
            let is_match = beginning[..common] == bytes[..common];
            is_open |= is_match && bytes.len() < beginning.len();
            is_match && bytes.len() >= beginning.len()
        };
        if matches(TLS_HANDSHAKE) {
            return Some(Self::Tls);
        }
        if let Some((_, protocol)) = beginnings.find(|(beginning, _)| matches(beginning)) {
            return Some(protocol);
        }
        (!is_open).then_some(Self::Http2)
    }

    /// Waits for the first bytes of a peer and looks at them. They stay unread.
    pub(super) async fn recognize(socket: &Accepted) -> io::Result<Self> {
        let mut bytes = [0; 8];
        loop {
            let read = socket.peek(&mut bytes).await?;
            // A peer that has closed its end gets the answer of HTTP/2.
            if read == 0 {
                return Ok(Self::Http2);
            }
            if let Some(protocol) = Self::of(&bytes[..read]) {
                return Ok(protocol);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Answers an HTTP/1 peer with a hint to the right port, and closes the connection.
pub(super) async fn answer_http1(socket: Socket, hint: &str) -> io::Result<()> {
    let body = format!("This port speaks gRPC, not HTTP/1. {hint}\n");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: \
         {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    graceful_close::close(socket, answer.as_bytes()).await
}

/// Answers a TLS peer that this port has no TLS, and closes the connection.
pub(super) async fn answer_tls(socket: Socket) -> io::Result<()> {
    graceful_close::close(socket, TLS_ALERT).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_known_by_its_first_bytes() {
        for (bytes, protocol) in [
            (&b"PRI * HTTP/2.0"[..], Some(PeerProtocol::Http2)),
            (b"PR", Some(PeerProtocol::Http2)),
            (b"P", None),
            (b"PO", None),
            (b"POST /", Some(PeerProtocol::Http1)),
            (b"GET / HTTP/1.1", Some(PeerProtocol::Http1)),
            (b"GE", None),
            (b"GETS", Some(PeerProtocol::Http2)),
            (b"HEAD /", Some(PeerProtocol::Http1)),
            (&[0x16], None),
            (&[0x16, 3, 1], Some(PeerProtocol::Tls)),
            (&[0x16, 4], Some(PeerProtocol::Http2)),
            (b"\0\0\0", Some(PeerProtocol::Http2)),
            (b"what is this?", Some(PeerProtocol::Http2)),
        ] {
            assert_eq!(PeerProtocol::of(bytes), protocol, "{bytes:?}");
        }
    }
}
