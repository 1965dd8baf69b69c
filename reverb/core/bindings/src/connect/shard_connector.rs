// SPDX-License-Identifier: Apache-2.0
//! Connections to the shards of a group.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::Result;
use reverb_rpc::client::ConnectionOptions;
use reverb_rpc::target::Target;
use reverb_server::local_shard_of_id;
use reverb_shards::member::{Connect, ShardConnection};
use reverb_wire::shard::Shard;

use super::server_connector::ServerConnector;

/// Time limit for reaching a shard. A shard that exceeds it is left out for a while.
const SHARD_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct ShardConnector(pub(crate) ConnectionOptions);

impl Connect for ShardConnector {
    fn connect(&self, address: &str, server_id: Option<u64>) -> Result<Box<dyn ShardConnection>> {
        Target::parse(address)?;
        let connect_timeout = self.0.connect_timeout.min(SHARD_CONNECT_TIMEOUT);
        let options = ConnectionOptions { connect_timeout, ..self.0.clone() };
        let connector = ServerConnector::new(address, options);
        Ok(Box::new(Connection { connector, server_id }))
    }

    /// `None` with TLS: a socket has no TLS, and a map must not weaken the client's choice.
    fn connect_socket(&self, unix_path: &str) -> Option<Box<dyn ShardConnection>> {
        if self.0.security.has_tls() || !Path::new(unix_path).exists() {
            return None;
        }
        self.connect(&format!("unix://{unix_path}"), None).ok()
    }
}

struct Connection {
    connector: ServerConnector,
    server_id: Option<u64>,
}

impl ShardConnection for Connection {
    fn shard(&self) -> Result<Arc<dyn Shard>> {
        match self.server_id.and_then(local_shard_of_id) {
            Some(local) => Ok(local),
            None => self.connector.shard(),
        }
    }
}
