// SPDX-License-Identifier: Apache-2.0
//! Graceful close: a last message to a peer, and then the end of its connection.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum number of bytes of the peer that are read and discarded. The first message of a client
/// is far smaller.
pub(super) const MAX_READ_BYTES: u64 = 64 << 10;

/// Sends the last bytes and waits until the peer closes its end. If the connection were closed
/// while bytes of the peer are unread, the system would reset it, and the peer might never receive
/// them.
pub(super) async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: S,
    bytes: &[u8],
) -> io::Result<()> {
    socket.write_all(bytes).await?;
    socket.shutdown().await?;
    let mut rest = socket.take(MAX_READ_BYTES);
    let mut buffer = [0; 1024];
    while rest.read(&mut buffer).await? > 0 {}
    Ok(())
}
