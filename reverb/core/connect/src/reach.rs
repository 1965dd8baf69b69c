// SPDX-License-Identifier: Apache-2.0
//! The transport behind an address, as a client and a coordinator get it.

use std::sync::Arc;

use reverb_client::Connector;
use reverb_data::Result;
use reverb_rpc::target::Target;
use reverb_shards::address::GroupAddress;
use reverb_shards::group::Group;
use reverb_shards::transport::GroupTransport;
use reverb_wire::transport::Transport;

use crate::connector::{AnyConnector, Options};
use crate::dialer::Dialer;

/// What an address leads to: a server, several in turn, or a group of shards.
#[derive(Debug, Clone)]
pub enum Reach {
    /// A server, or several in turn.
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
    pub fn new(address: &str, options: Options) -> Result<Self> {
        if GroupAddress::is_one(address) {
            let has_token = options.security.has_token();
            let transport = GroupTransport::new(group_of(address, options)?);
            return Ok(Self::Group(Arc::new(transport), has_token));
        }
        Ok(Self::Servers(Arc::new(AnyConnector::new(address, options))))
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
            Self::Servers(servers) => servers.has_token(),
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
pub fn group_of(address: &str, options: Options) -> Result<Arc<Group>> {
    let parsed = GroupAddress::parse(address)?;
    let runtime = options.runtime.clone();
    Ok(Group::new(address, parsed, Box::new(Dialer(options)), runtime))
}

/// The servers that credentials are for: those of an address, or the seeds of a group.
///
/// # Errors
///
/// `InvalidArgument` for an address that cannot be.
pub fn target_of(address: &str) -> Result<Target> {
    if GroupAddress::is_one(address) {
        Target::parse(&GroupAddress::parse(address)?.seeds_as_target())
    } else {
        Target::parse(address)
    }
}
