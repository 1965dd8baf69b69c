// SPDX-License-Identifier: Apache-2.0
//! What a peer speaks, by its first bytes; and the answer to one that speaks something else.

use std::io;
use std::time::Duration;

use reverb_tls::Socket;

use super::accepted::Accepted;
use super::last_words;

/// How long to wait for more bytes of a beginning that could be either.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The methods with which requests of HTTP/1 begin.
const HTTP1_METHODS: [&[u8]; 8] =
    [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH "];

/// A record of TLS: a handshake, of a version that begins with 3.
const TLS_HANDSHAKE: &[u8] = &[0x16, 3];

/// A fatal alert of TLS: `handshake_failure` (RFC 8446, section 6.2).
const TLS_ALERT: &[u8] = &[0x15, 3, 1, 0, 2, 2, 40];

/// What a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    /// HTTP/2, or nothing that is known.
    Http2,
    Http1,
    Tls,
}

impl Spoken {
    /// What these bytes begin; `None` if more are needed.
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
            // A peer that has closed its end gets what HTTP/2 answers.
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

/// Tells a peer of HTTP/1 where it is, and closes the connection.
pub(super) async fn answer_http1(socket: Socket, hint: &str) -> io::Result<()> {
    let body = format!("This port speaks gRPC, not HTTP/1. {hint}\n");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: \
         {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    last_words::say(socket, answer.as_bytes()).await
}

/// Tells a peer that there is no TLS here, and closes the connection.
pub(super) async fn answer_tls(socket: Socket) -> io::Result<()> {
    last_words::say(socket, TLS_ALERT).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_known_by_its_first_bytes() {
        for (bytes, protocol) in [
            (&b"PRI * HTTP/2.0"[..], Some(Spoken::Http2)),
            (b"PR", Some(Spoken::Http2)),
            (b"P", None),
            (b"PO", None),
            (b"POST /", Some(Spoken::Http1)),
            (b"GET / HTTP/1.1", Some(Spoken::Http1)),
            (b"GE", None),
            (b"GETS", Some(Spoken::Http2)),
            (b"HEAD /", Some(Spoken::Http1)),
            (&[0x16], None),
            (&[0x16, 3, 1], Some(Spoken::Tls)),
            (&[0x16, 4], Some(Spoken::Http2)),
            (b"\0\0\0", Some(Spoken::Http2)),
            (b"what is this?", Some(Spoken::Http2)),
        ] {
            assert_eq!(Spoken::of(bytes), protocol, "{bytes:?}");
        }
    }
}
