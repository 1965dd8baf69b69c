// SPDX-License-Identifier: Apache-2.0
//! The ports on which the servers of a parent listen, in its forked child.

#![allow(unsafe_code)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use reverb_rpc::server::{SocketIdentity, listening};

/// Must be called in the child of a fork. Otherwise the ports of a parent that has stopped its
/// servers, or was killed, would stay taken until its children end. The files stay open, on
/// nothing: what the parent's servers left here may close them.
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
            // Files have run out: nobody here uses its owner.
            Err(_) => drop(ManuallyDrop::into_inner(socket)),
        }
    }
}
