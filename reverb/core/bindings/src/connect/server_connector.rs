// SPDX-License-Identifier: Apache-2.0
//! Transport to a server: function calls if it runs in this process, gRPC otherwise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use reverb_base::{Error, Result};
use reverb_rpc::client::ConnectionOptions;
use reverb_rpc::socket_path::SocketPath;
use reverb_rpc::target::{Loopback, Target};
use reverb_server::{local_has_ended, local_shard, local_shard_of_socket};
use reverb_wire::GrpcTransport;
use reverb_wire::shard::Shard;
use reverb_wire::transport::Transport;

use crate::process::runtime;

/// Transport to the servers of an address. Each use checks whether a server of this process listens
/// there, because one may have started meanwhile.
#[derive(Debug)]
pub(crate) struct ServerConnector {
    address: String,
    loopback: Option<Loopback>,
    socket: Option<SocketPath>,
    options: ConnectionOptions,
    /// True once a server of this process was found.
    was_local: AtomicBool,
    remote: OnceLock<Arc<GrpcTransport>>,
}

impl ServerConnector {
    pub(crate) fn new(address: &str, options: ConnectionOptions) -> Self {
        Self {
            address: address.to_owned(),
            loopback: Loopback::of(address),
            socket: Target::parse(address).ok().and_then(|target| target.socket().cloned()),
            options,
            was_local: AtomicBool::new(false),
            remote: OnceLock::new(),
        }
    }

    /// Transport to the server, with the calls of a shard of a group, which servers of this package
    /// have.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid address.
    pub(crate) fn shard(&self) -> Result<Arc<dyn Shard>> {
        match self.local() {
            Some(local) => Ok(local),
            None => Ok(self.remote()? as Arc<dyn Shard>),
        }
    }

    /// Returns true if a server of this process listens at the address now.
    pub(crate) fn is_local(&self) -> bool {
        self.local().is_some()
    }

    /// A server of this process is a single one, and an address that was never reached is not known
    /// to be several.
    pub(crate) fn has_several_servers(&self) -> bool {
        self.remote.get().is_some_and(|remote| remote.has_several_servers())
    }

    /// True if, after this error, no server of the address is going to answer any more.
    pub(crate) fn has_ended(&self, error: &Error) -> bool {
        let has_local_ended = || {
            let was_local = self.was_local.load(Ordering::Relaxed);
            was_local && local_has_ended(self.loopback, self.socket.as_ref())
        };
        self.shard().is_ok_and(|shard| shard.has_ended(error)) || has_local_ended()
    }

    pub(crate) fn has_token(&self) -> bool {
        self.options.security.has_token()
    }

    fn local(&self) -> Option<Arc<dyn Shard>> {
        let of_socket = || self.socket.as_ref().and_then(local_shard_of_socket);
        let found = self.loopback.and_then(local_shard).or_else(of_socket);
        if found.is_some() && !self.was_local.load(Ordering::Relaxed) {
            self.was_local.store(true, Ordering::Relaxed);
        }
        found
    }

    fn remote(&self) -> Result<Arc<GrpcTransport>> {
        if let Some(remote) = self.remote.get() {
            return Ok(Arc::clone(remote));
        }
        let _entered = runtime().enter();
        let remote = Arc::new(GrpcTransport::with_options(&self.address, self.options.clone())?);
        Ok(Arc::clone(self.remote.get_or_init(|| remote)))
    }
}
