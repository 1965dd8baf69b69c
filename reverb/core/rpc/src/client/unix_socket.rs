// SPDX-License-Identifier: Apache-2.0
//! Connecting to a Unix socket, and explaining failures.

use std::io;

use crate::socket_path::SocketPath;

/// Error that persists until somebody fixes its cause.
fn lasting(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(unix)]
pub(super) use on_unix::connect;

#[cfg(unix)]
mod on_unix {
    use std::os::unix::fs::FileTypeExt;
    use std::time::Duration;

    use rustix::io::Errno;
    use tokio::net::UnixStream;

    use super::{SocketPath, io, lasting};

    /// Pause before another attempt when the server's queue of new connections is full.
    const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);

    /// Connects to a Unix socket; with a token, only if the listening process runs as the same user
    /// or as root.
    pub(in crate::client) async fn connect(
        path: &SocketPath,
        has_token: bool,
    ) -> io::Result<UnixStream> {
        let socket = loop {
            match UnixStream::connect(path.as_path()).await {
                Ok(socket) => break socket,
                // TCP would wait here; a Unix socket reports that its queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(FULL_QUEUE_PAUSE).await;
                }
                Err(error) => return Err(explained(path, error)),
            }
        };
        if has_token {
            check_listener(socket.peer_cred()?.uid(), rustix::process::geteuid().as_raw())?;
        }
        Ok(socket)
    }

    /// Checks the user of the listening process. The system reports it, so write access to the
    /// directory cannot fake it.
    fn check_listener(listener: u32, own: u32) -> io::Result<()> {
        if listener == own || listener == 0 {
            return Ok(());
        }
        Err(lasting(format!(
            "the server there runs as user {listener}, and over a Unix socket a token is sent only \
             to a server of the same user (here {own}) or of root: use TLS, grpcs://host:port, or \
             connect without a token"
        )))
    }

    fn explained(path: &SocketPath, error: io::Error) -> io::Error {
        let kind = error.kind();
        let is_socket = || {
            let metadata = std::fs::metadata(path.as_path());
            metadata.map(|metadata| metadata.file_type().is_socket())
        };
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                io::Error::new(kind, "there is no such socket: its server is not running")
            }
            Some(Errno::CONNREFUSED) if matches!(is_socket(), Ok(false)) => {
                lasting("that is not a socket".to_owned())
            }
            Some(Errno::CONNREFUSED) => {
                io::Error::new(kind, "no server listens there: it has ended")
            }
            Some(Errno::ACCESS | Errno::PERM) => lasting(format!(
                "no permission: user {} must be allowed to write to the socket and to enter its \
                 directory",
                rustix::process::geteuid().as_raw()
            )),
            Some(Errno::NOTDIR) => lasting("a part of the path is no directory".to_owned()),
            Some(Errno::PROTOTYPE) => lasting("that is a socket of another kind".to_owned()),
            _ => error,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_token_goes_to_the_same_user_and_to_root() {
            assert!(check_listener(1000, 1000).is_ok());
            assert!(check_listener(0, 1000).is_ok());
            let error = check_listener(1001, 1000).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let text = "user 1001, and over a Unix socket a token is sent only to a server of the \
                        same user (here 1000) or of root";
            assert!(error.to_string().contains(text), "{error}");
            assert!(check_listener(1000, 0).is_err(), "root does not trust everybody");
        }
    }
}

/// Unix sockets do not exist on this system, so this is never called.
#[cfg(not(unix))]
#[allow(clippy::unused_async, reason = "it waits elsewhere")]
pub(super) async fn connect(path: &SocketPath, _has_token: bool) -> io::Result<Socket> {
    Err(lasting(format!("{path} cannot be reached: this system has no Unix sockets")))
}
