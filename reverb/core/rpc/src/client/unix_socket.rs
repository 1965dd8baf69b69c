// SPDX-License-Identifier: Apache-2.0
//! Connecting to a Unix socket, and what went wrong, in words.

use std::io;

use reverb_tls::Socket;

use crate::socket_path::SocketPath;

/// An error that another attempt meets, too, unless somebody does something.
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

    use super::{Socket, SocketPath, io, lasting};

    /// How long to wait for room in the queue of a server that many connect to.
    const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);

    /// Connects to who listens there; with a token, only to a process of the same user or of root.
    pub(in crate::client) async fn connect(
        path: &SocketPath,
        has_token: bool,
    ) -> io::Result<Socket> {
        let socket = loop {
            match UnixStream::connect(path.as_path()).await {
                Ok(socket) => break socket,
                // Where TCP waits, a Unix socket says that its queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(FULL_QUEUE_PAUSE).await;
                }
                Err(error) => return Err(explained(path, error)),
            }
        };
        if has_token {
            check_listener(socket.peer_cred()?.uid(), rustix::process::geteuid().as_raw())?;
        }
        Ok(Socket::Unix(socket))
    }

    /// The system knows the user of the process that listens, whoever may write where.
    fn check_listener(listener: u32, own: u32) -> io::Result<()> {
        if listener == own || listener == 0 {
            return Ok(());
        }
        Err(lasting(format!(
            "who listens there is user {listener}, and over a Unix socket a token goes only to a \
             server of the same user (here {own}) or of root: use TLS, grpcs://host:port, or \
             connect without a token"
        )))
    }

    fn explained(path: &SocketPath, error: io::Error) -> io::Error {
        let kind = error.kind();
        let is_socket = || {
            let metadata = std::fs::metadata(path.as_path());
            metadata.map(|it| it.file_type().is_socket())
        };
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                io::Error::new(kind, "there is no such socket: its server does not run")
            }
            Some(Errno::CONNREFUSED) if matches!(is_socket(), Ok(false)) => {
                lasting("that is not a socket".to_owned())
            }
            Some(Errno::CONNREFUSED) => {
                io::Error::new(kind, "nobody listens there: its server has ended")
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
            let text = "user 1001, and over a Unix socket a token goes only to a server of the \
                        same user (here 1000) or of root";
            assert!(error.to_string().contains(text), "{error}");
            assert!(check_listener(1000, 0).is_err(), "root does not trust everybody");
        }
    }
}

/// There are no paths of sockets on such a system, so this is not called.
#[cfg(not(unix))]
#[allow(clippy::unused_async, reason = "it waits elsewhere")]
pub(super) async fn connect(path: &SocketPath, _has_token: bool) -> io::Result<Socket> {
    Err(lasting(format!("{path} cannot be reached: this system has no Unix sockets")))
}
