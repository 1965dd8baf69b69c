// SPDX-License-Identifier: Apache-2.0
//! Listening ports of a parent process, in its forked child.

#![allow(unsafe_code)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use reverb_rpc::server::{SocketIdentity, listening};

/// Must be called in the child of a fork. Otherwise the ports of a parent that has stopped its
/// servers, or was killed, would stay in use until its children end. Each file descriptor stays
/// open but is replaced, because objects of the parent's servers may close it here.
pub(crate) fn leave_to_parent() {
    for identity in listening() {
        let number = identity.file_number();
        // SAFETY: the number came from an open file, and the child has no other thread that could
        // close it meanwhile.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        if SocketIdentity::of(file) != Some(identity) {
            continue;
        }
        // SAFETY: as above. It stays with its owner.
        let mut socket = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        match File::open("/dev/null") {
            Ok(nothing) => {
                let _ = rustix::io::dup2(nothing, &mut socket);
                let _ = rustix::io::fcntl_setfd(&*socket, rustix::io::FdFlags::CLOEXEC);
            }
            // No more files can be opened; nothing in this process uses the owner.
            Err(_) => drop(ManuallyDrop::into_inner(socket)),
        }
    }
}
