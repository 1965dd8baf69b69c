// SPDX-License-Identifier: Apache-2.0
//! What a peer is told before its connection is closed.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of a peer that are read and thrown away. What a client sends first is far less.
pub(super) const MAX_READ_BYTES: u64 = 64 << 10;

/// Sends the last words and waits until the peer closes its end. If the connection were closed
/// while bytes of the peer are unread, the system would reset it, and the peer might never see the
/// words.
pub(super) async fn say<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: S,
    words: &[u8],
) -> io::Result<()> {
    socket.write_all(words).await?;
    socket.shutdown().await?;
    let mut rest = socket.take(MAX_READ_BYTES);
    let mut buffer = [0; 1024];
    while rest.read(&mut buffer).await? > 0 {}
    Ok(())
}
