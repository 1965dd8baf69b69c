// SPDX-License-Identifier: Apache-2.0
//! The Unix socket of a server: its directory, its file, and the removal of an abandoned one.

use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use reverb_base::{Error, Result, open_directory};
use rustix::process::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use super::listener::BACKLOG;
use crate::socket_path::SocketPath;

const DIRECTORY_MODE: u32 = 0o700;

/// Mode bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Time limit for another server that is opening a socket in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A Unix socket that a server listens on. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct UnixPort {
    // The order matters: as long as a server listens, no other one takes its path.
    file: SocketFile,
    pub(super) listener: UnixListener,
}

/// The file of a socket, removed on drop if it is still the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and number of the file. While a process listens on it, no other file has them.
    identity: (u64, u64),
}

impl UnixPort {
    /// Listens on a path. A missing directory is created, for this user alone. Blocks for a moment
    /// if another server does the same in the same directory. Must be called on a tokio runtime
    /// with I/O.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the obstacle and the remedy: a path that is too long, a
    /// directory that others may write to, a process that listens there, a file that is no socket.
    pub fn bind(path: &Path) -> Result<Self> {
        let path = SocketPath::from_root(path.to_owned())?;
        let path = path.as_path();
        listen(path).map_err(|what| {
            Error::invalid_argument(format!(
                "The server cannot listen on the Unix socket {} (unix_path): {what}",
                path.display()
            ))
        })
    }

    /// Its path, from the root of the file system.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

fn listen(path: &Path) -> std::result::Result<UnixPort, String> {
    let directory = path.parent().ok_or("it has no directory")?;
    let shown = directory.display();
    make_directory(directory).map_err(|error| format!("its directory cannot be made: {error}"))?;
    let opened = open_directory(directory).and_then(|opened| Ok((opened.metadata()?, opened)));
    let (metadata, opened) =
        opened.map_err(|error| format!("its directory cannot be read: {error}"))?;
    check_directory(&metadata, geteuid().as_raw()).map_err(|what| format!("{shown} {what}"))?;
    // Two servers that find the same abandoned socket must not both replace it.
    let _alone = lock(&opened).map_err(|error| format!("{shown} cannot be locked: {error}"))?;
    make_room(path)?;
    let listener = open(path).map_err(|error| error.to_string())?;
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
    Ok(UnixPort { file, listener })
}

fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)
}

/// Checks the owner and mode of a directory: with write access, others could replace the server's
/// socket by their own.
fn check_directory(directory: &Metadata, user: u32) -> std::result::Result<(), String> {
    let owner = directory.uid();
    let mode = directory.mode() & 0o7777;
    if owner != user && owner != 0 {
        return Err(format!(
            "belongs to user {owner}, who could replace the socket: take a directory of user {user}"
        ));
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(format!(
            "has mode {mode:04o}, so others could replace the socket: take a directory in it (it is \
             made with mode 0700 if there is none), or let only its user write to it (chmod go-w)"
        ));
    }
    Ok(())
}

/// A lock on a directory, until it is dropped. File systems without locks have none.
fn lock(directory: &File) -> io::Result<Option<&File>> {
    let began = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(Some(directory)),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!("another process has held it for {} s", LOCK_TIMEOUT.as_secs()),
                ));
            }
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
}

/// Removes the socket of a server that has ended. All other files stay.
fn make_room(path: &Path) -> std::result::Result<(), String> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !metadata.file_type().is_socket() {
        let what = if metadata.is_dir() {
            "a directory"
        } else if metadata.is_symlink() {
            "a link"
        } else {
            "a file"
        };
        return Err(format!(
            "there is {what}, not a socket, and it is never removed: choose another path"
        ));
    }
    match listener_of(path) {
        Ok(Some(process)) => {
            Err(format!("{process} listens on it: stop that one first, or choose another path"))
        }
        Ok(None) => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("the socket of a server that has ended cannot be removed: {error}"))
            }
            _ => Ok(()),
        },
        Err(error) => Err(format!("there is a socket whose server cannot be determined: {error}")),
    }
}

/// Description of the process that listens on a socket; `None` if there is none.
fn listener_of(path: &Path) -> io::Result<Option<String>> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => {
            let socket = UnixStream::from_std(std::os::fd::OwnedFd::from(socket).into())?;
            let pid = socket.peer_cred().ok().and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
            // The process that opened it may have ended and left it to its children.
            Ok(Some(match pid {
                Some(pid) => format!("process {pid}, or one that it has started,"),
                None => "a process of another container".to_owned(),
            }))
        }
        Err(error) => match error.kind() {
            // Its queue is full.
            io::ErrorKind::WouldBlock => Ok(Some("a process with many clients".to_owned())),
            // The second error means that it was removed meanwhile.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        },
    }
}

fn open(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Err(error) = socket.listen(BACKLOG) {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    super::listening::remember(&socket);
    UnixListener::from_std(std::os::fd::OwnedFd::from(socket).into())
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|metadata| identity(&metadata) == self.identity) {
            // If it cannot be removed, the next server finds it abandoned.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A directory of its own, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rvb-{}-{name}", std::process::id()));
            make_directory(&path).unwrap();
            Self(path)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The socket of a server that was killed.
    fn abandoned(path: &Path) {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        assert!(path.exists());
    }

    fn refusal(path: &Path) -> String {
        UnixPort::bind(path).unwrap_err().message().to_owned()
    }

    #[tokio::test]
    async fn a_directory_is_made_for_this_user_alone_and_the_file_goes_with_the_server() {
        let directory = Directory::new("made");
        let path = directory.join("a/b/socket");
        let port = UnixPort::bind(&path).unwrap();
        assert_eq!(port.path(), path);
        for made in ["a", "a/b"] {
            let mode = fs::metadata(directory.join(made)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700, "{made}");
        }
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
        drop(port);
        assert!(!path.exists());
        UnixPort::bind(&path).unwrap();
    }

    #[tokio::test]
    async fn the_socket_of_a_server_that_was_killed_is_replaced() {
        let directory = Directory::new("killed");
        let path = directory.join("socket");
        abandoned(&path);
        let port = UnixPort::bind(&path).unwrap();
        UnixStream::connect(&path).await.unwrap();
        drop(port);
    }

    #[tokio::test]
    async fn a_socket_that_somebody_listens_on_stays() {
        let directory = Directory::new("live");
        let path = directory.join("socket");
        let _port = UnixPort::bind(&path).unwrap();
        let process =
            format!("process {}, or one that it has started, listens on it", std::process::id());
        assert!(refusal(&path).contains(&process), "{}", refusal(&path));
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_no_socket_is_never_removed() {
        let directory = Directory::new("file");
        let path = directory.join("socket");
        fs::write(&path, "precious").unwrap();
        assert!(refusal(&path).contains("a file, not a socket"), "{}", refusal(&path));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::create_dir(directory.join("d")).unwrap();
        assert!(refusal(&directory.join("d")).contains("a directory, not a socket"));
        abandoned(&directory.join("old"));
        symlink(directory.join("old"), directory.join("link")).unwrap();
        assert!(refusal(&directory.join("link")).contains("a link, not a socket"));
        assert!(refusal(&path.join("x")).contains("its directory cannot be made"));
    }

    #[tokio::test]
    async fn a_directory_that_others_may_write_to_is_refused() {
        let directory = Directory::new("open");
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            fs::set_permissions(&directory.0, fs::Permissions::from_mode(mode)).unwrap();
            let text = refusal(&directory.join("socket"));
            assert!(text.contains(&format!("has mode {mode:04o}, so others could")), "{text}");
        }
        fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o755)).unwrap();
        UnixPort::bind(&directory.join("socket")).unwrap();
        let metadata = fs::metadata(&directory.0).unwrap();
        let other = check_directory(&metadata, metadata.uid() + 1);
        // A directory of root is safe for everybody.
        assert_eq!(other.is_ok(), metadata.uid() == 0);
    }

    #[tokio::test]
    async fn another_file_in_its_place_is_not_removed() {
        let directory = Directory::new("replaced");
        let path = directory.join("socket");
        let first = UnixPort::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixPort::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn of_many_servers_that_start_at_once_one_gets_the_socket() {
        let directory = Directory::new("race");
        for round in 0..20 {
            let path = directory.join(&format!("socket-{round}"));
            abandoned(&path);
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let path = path.clone();
                    tokio::task::spawn_blocking(move || UnixPort::bind(&path))
                })
                .collect();
            let mut ports = Vec::new();
            for task in tasks {
                ports.extend(task.await.unwrap().ok());
            }
            assert_eq!(ports.len(), 1);
            UnixStream::connect(&path).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_tells_its_length() {
        let long = format!("/{}", "x".repeat(crate::socket_path::MAX_PATH_BYTES));
        assert!(refusal(Path::new(&long)).contains("has 108 bytes") || !cfg!(target_os = "linux"));
    }
}
