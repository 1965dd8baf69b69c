// SPDX-License-Identifier: Apache-2.0
//! Selects the transport to a server: function calls if it runs in this process, gRPC otherwise.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reverb_client::Connector;
use reverb_data::Result;
use reverb_rpc::Keepalive;
use reverb_rpc::client::Security;
use reverb_rpc::socket_path::SocketPath;
use reverb_rpc::target::{Loopback, Target};
use reverb_server::{local_transport, local_transport_of_socket};
use reverb_wire::GrpcTransport;
use reverb_wire::transport::Transport;

use crate::process::runtime;

/// Checks on every use whether a server of this process listens at the address: one may have
/// started meanwhile.
pub(crate) struct AnyConnector {
    address: String,
    loopback: Option<Loopback>,
    socket: Option<SocketPath>,
    connect_timeout: Duration,
    keepalive: Keepalive,
    security: Security,
    remote: OnceLock<Arc<GrpcTransport>>,
}

impl AnyConnector {
    pub(crate) fn new(
        address: &str,
        connect_timeout: Duration,
        keepalive: Keepalive,
        security: Security,
    ) -> Self {
        Self {
            address: address.to_owned(),
            loopback: Loopback::of(address),
            socket: Target::parse(address).ok().and_then(|target| target.socket().cloned()),
            connect_timeout,
            keepalive,
            security,
            remote: OnceLock::new(),
        }
    }
}

impl Connector for AnyConnector {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        let of_socket = || self.socket.as_ref().and_then(local_transport_of_socket);
        if let Some(local) = self.loopback.and_then(local_transport).or_else(of_socket) {
            return Ok(local);
        }
        if let Some(remote) = self.remote.get() {
            return Ok(Arc::clone(remote) as Arc<dyn Transport>);
        }
        let _entered = runtime().enter();
        let remote = GrpcTransport::new(&self.address)?;
        let remote = remote.with_connect_timeout(self.connect_timeout);
        let remote = remote.with_keepalive(self.keepalive);
        let remote = Arc::new(remote.with_security(self.security.clone()));
        Ok(Arc::clone(self.remote.get_or_init(|| remote)) as Arc<dyn Transport>)
    }

    fn has_token(&self) -> bool {
        self.security.has_token()
    }

    /// A server of this process is a single one, and an address that was never reached is not known
    /// to be several.
    fn has_several_servers(&self) -> bool {
        self.remote.get().is_some_and(|remote| remote.has_several_servers())
    }
}
