// SPDX-License-Identifier: Apache-2.0
//! The transport behind an address, for clients and coordinators.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_client::Connector;
use reverb_rpc::client::ConnectionOptions;
use reverb_rpc::target::Target;
use reverb_shards::address::GroupAddress;
use reverb_shards::group::Group;
use reverb_shards::transport::GroupTransport;
use reverb_wire::transport::Transport;

use crate::process::runtime;

use super::server_connector::ServerConnector;
use super::shard_connector::ShardConnector;

/// Connector of an address: of a server, several in turn, or a group of shards.
#[derive(Debug, Clone)]
pub(crate) enum AddressConnector {
    /// A server, or several in turn.
    Servers(Arc<ServerConnector>),
    /// All shards of a group as one server.
    Group {
        /// The transport to all shards.
        transport: Arc<GroupTransport>,
        /// True if calls carry a token.
        has_token: bool,
    },
}

impl AddressConnector {
    /// Creates a connector; does not connect yet.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an invalid address.
    pub(crate) fn new(address: &str, options: ConnectionOptions) -> Result<Self> {
        if GroupAddress::is_one(address) {
            let has_token = options.security.has_token();
            let transport = GroupTransport::new(group_of(address, options)?);
            return Ok(Self::Group { transport: Arc::new(transport), has_token });
        }
        Ok(Self::Servers(Arc::new(ServerConnector::new(address, options))))
    }
}

impl Connector for AddressConnector {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        match self {
            Self::Servers(servers) => Ok(servers.shard()?),
            Self::Group { transport, .. } => Ok(Arc::clone(transport) as Arc<dyn Transport>),
        }
    }

    fn has_ended(&self, error: &Error) -> bool {
        match self {
            Self::Servers(servers) => servers.has_ended(error),
            Self::Group { transport, .. } => transport.has_ended(error),
        }
    }

    fn has_token(&self) -> bool {
        match self {
            Self::Servers(servers) => servers.has_token(),
            Self::Group { has_token, .. } => *has_token,
        }
    }

    /// The streams of a group go to all shards, not to one in turn.
    fn has_several_servers(&self) -> bool {
        match self {
            Self::Servers(servers) => servers.has_several_servers(),
            Self::Group { .. } => false,
        }
    }

    fn leads_to_group(&self) -> bool {
        match self {
            Self::Servers(_) => false,
            Self::Group { transport, .. } => transport.insert_group().is_some(),
        }
    }
}

/// The group behind an address. Does not connect yet.
///
/// # Errors
///
/// `InvalidArgument` for an address that is not that of a group.
pub(crate) fn group_of(address: &str, options: ConnectionOptions) -> Result<Arc<Group>> {
    let parsed = GroupAddress::parse(address)?;
    let runtime = runtime().handle().clone();
    Ok(Group::new(address, parsed, Box::new(ShardConnector(options)), runtime))
}

/// Servers that credentials are for: those of an address, or the seeds of a group.
///
/// # Errors
///
/// `InvalidArgument` for an invalid address.
pub(crate) fn target_of(address: &str) -> Result<Target> {
    if GroupAddress::is_one(address) {
        Target::parse(&GroupAddress::parse(address)?.seeds_as_target())
    } else {
        Target::parse(address)
    }
}
