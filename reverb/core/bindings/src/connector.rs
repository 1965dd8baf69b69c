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
use reverb_server::{local_shard, local_shard_of_id, local_shard_of_socket};
use reverb_shards::address::GroupAddress;
use reverb_shards::group::Group;
use reverb_shards::member::{Dial, Line};
use reverb_shards::transport::GroupTransport;
use reverb_wire::GrpcTransport;
use reverb_wire::shard::Shard;
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

impl AnyConnector {
    /// The server; those of this package have the calls of a shard of a group.
    pub(crate) fn shard(&self) -> Result<Arc<dyn Shard>> {
        match self.local() {
            Some(local) => Ok(local),
            None => Ok(self.remote()? as Arc<dyn Shard>),
        }
    }

    /// Whether a server of this process listens at the address now.
    pub(crate) fn is_local(&self) -> bool {
        self.local().is_some()
    }

    fn local(&self) -> Option<Arc<dyn Shard>> {
        let of_socket = || self.socket.as_ref().and_then(local_shard_of_socket);
        self.loopback.and_then(local_shard).or_else(of_socket)
    }

    fn remote(&self) -> Result<Arc<GrpcTransport>> {
        if let Some(remote) = self.remote.get() {
            return Ok(Arc::clone(remote));
        }
        let _entered = runtime().enter();
        let remote = GrpcTransport::new(&self.address)?;
        let remote = remote.with_connect_timeout(self.connect_timeout);
        let remote = remote.with_keepalive(self.keepalive);
        let remote = Arc::new(remote.with_security(self.security.clone()));
        Ok(Arc::clone(self.remote.get_or_init(|| remote)))
    }

    /// A server of this process is a single one, and an address that was never reached is not known
    /// to be several.
    pub(crate) fn has_several_servers(&self) -> bool {
        self.remote.get().is_some_and(|remote| remote.has_several_servers())
    }
}

/// How to reach what an address leads to.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) connect_timeout: Duration,
    pub(crate) keepalive: Keepalive,
    pub(crate) security: Security,
}

/// What an address leads to: a server, several in turn, or a group of shards.
#[derive(Clone)]
pub(crate) enum Reach {
    Servers(Arc<AnyConnector>),
    /// All shards of a group as one server, and whether calls have a token with them.
    Group(Arc<GroupTransport>, bool),
}

impl Reach {
    /// Does not connect yet.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an address that cannot be.
    pub(crate) fn new(address: &str, options: Options) -> Result<Self> {
        if GroupAddress::is_one(address) {
            let has_token = options.security.has_token();
            let transport = GroupTransport::new(group_of(address, options)?);
            return Ok(Self::Group(Arc::new(transport), has_token));
        }
        let Options { connect_timeout, keepalive, security } = options;
        let connector = AnyConnector::new(address, connect_timeout, keepalive, security);
        Ok(Self::Servers(Arc::new(connector)))
    }
}

impl Connector for Reach {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        match self {
            Self::Servers(servers) => Ok(servers.shard()?),
            Self::Group(transport, _) => Ok(Arc::clone(transport) as Arc<dyn Transport>),
        }
    }

    fn has_token(&self) -> bool {
        match self {
            Self::Servers(servers) => servers.security.has_token(),
            Self::Group(_, has_token) => *has_token,
        }
    }

    /// The streams of a group lead to all shards, not to one in turn.
    fn has_several_servers(&self) -> bool {
        match self {
            Self::Servers(servers) => servers.has_several_servers(),
            Self::Group(..) => false,
        }
    }

    fn leads_to_group(&self) -> bool {
        match self {
            Self::Servers(_) => false,
            Self::Group(transport, _) => transport.insert_group().is_some(),
        }
    }
}

/// The group behind an address. Does not connect yet.
///
/// # Errors
///
/// `InvalidArgument` for an address that is not that of a group.
pub(crate) fn group_of(address: &str, options: Options) -> Result<Arc<Group>> {
    let parsed = GroupAddress::parse(address)?;
    Ok(Group::new(address, parsed, Box::new(Dialer(options)), runtime().handle().clone()))
}

/// The servers that credentials are for: those of an address, or the seeds of a group.
pub(crate) fn target_of(address: &str) -> Result<Target> {
    if GroupAddress::is_one(address) {
        Target::parse(&GroupAddress::parse(address)?.seeds_as_target())
    } else {
        Target::parse(address)
    }
}

/// A shard that cannot be reached within this time is left out for a while.
const SHARD_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes lines to shards.
struct Dialer(Options);

impl Dial for Dialer {
    fn dial(&self, address: &str, server_id: Option<u64>) -> Result<Box<dyn Line>> {
        Target::parse(address)?;
        let Options { connect_timeout, keepalive, security } = self.0.clone();
        let timeout = connect_timeout.min(SHARD_CONNECT_TIMEOUT);
        let connector = AnyConnector::new(address, timeout, keepalive, security);
        Ok(Box::new(ShardLine { connector, server_id }))
    }

    /// None with TLS: a socket has none, and a map must not choose less than the client did.
    fn dial_socket(&self, unix_path: &str) -> Option<Box<dyn Line>> {
        if self.0.security.has_tls() || !std::path::Path::new(unix_path).exists() {
            return None;
        }
        self.dial(&format!("unix://{unix_path}"), None).ok()
    }
}

struct ShardLine {
    connector: AnyConnector,
    server_id: Option<u64>,
}

impl Line for ShardLine {
    fn shard(&self) -> Result<Arc<dyn Shard>> {
        match self.server_id.and_then(local_shard_of_id) {
            Some(local) => Ok(local),
            None => self.connector.shard(),
        }
    }
}
