// SPDX-License-Identifier: Apache-2.0
//! Connections to the shards of a group.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reverb_data::Result;
use reverb_rpc::target::Target;
use reverb_server::local_shard_of_id;
use reverb_shards::member::{Dial, Line};
use reverb_wire::shard::Shard;

use crate::connector::{AnyConnector, Options};

/// A shard that cannot be reached within this time is left out for a while.
const SHARD_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes lines to shards.
pub(crate) struct Dialer(pub(crate) Options);

impl Dial for Dialer {
    fn dial(&self, address: &str, server_id: Option<u64>) -> Result<Box<dyn Line>> {
        Target::parse(address)?;
        let connect_timeout = self.0.connect_timeout.min(SHARD_CONNECT_TIMEOUT);
        let options = Options { connect_timeout, ..self.0.clone() };
        let connector = AnyConnector::new(address, options);
        Ok(Box::new(ShardLine { connector, server_id }))
    }

    /// None with TLS: a socket has none, and a map must not choose less than the client did.
    fn dial_socket(&self, unix_path: &str) -> Option<Box<dyn Line>> {
        if self.0.security.has_tls() || !Path::new(unix_path).exists() {
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
