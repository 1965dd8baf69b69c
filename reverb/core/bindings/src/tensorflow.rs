// SPDX-License-Identifier: Apache-2.0
//! Support for TensorFlow's ops: the address of their register function, and clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_base::{PerProcess, Result};
use reverb_client::Client;
use reverb_rpc::Keepalive;
use reverb_rpc::client::{Credentials, Environment};

use crate::client::new_parts;
use crate::connect::target_of;
use crate::locks::Visit;

/// Time that an op waits while no server answers; the default of `reverb.Client`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle time after which a client of ops is evicted, with its connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum time between two comparisons of the environment.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

/// One client per address, shared by all ops.
static CLIENTS: PerProcess<Mutex<HashMap<String, Entry>>> = PerProcess::new();

struct Entry {
    client: Arc<Client>,
    used: Instant,
    /// Source of its credentials, and the time of the last comparison.
    environment: Environment,
    compared: Instant,
}

impl Entry {
    /// Returns true if a new client would have the same credentials, as of at most a second ago.
    fn is_current(&mut self) -> bool {
        if self.compared.elapsed() >= COMPARE_INTERVAL {
            self.compared = Instant::now();
            return self.environment == Environment::now();
        }
        true
    }
}

/// Address of the function that registers the ops. `reverb.tf_ops` passes it to the library that
/// TensorFlow loads.
#[pyfunction]
pub(crate) fn tensorflow_register_address() -> usize {
    reverb_tf::install(reverb_tf::Environment { client });
    reverb_tf::register_address()
}

/// Closes a sampler that an op started; one that is closed already is left alone.
#[pyfunction]
pub(crate) fn close_sampler(py: Python<'_>, handle: i64) {
    py.detach(|| reverb_tf::close_sampler(handle));
}

fn client(address: &str) -> Result<Arc<Client>> {
    CLIENTS.get().visit(|clients| client_of(clients, address))
}

fn client_of(clients: &mut HashMap<String, Entry>, address: &str) -> Result<Arc<Client>> {
    if let Some(entry) = clients.get_mut(address)
        && entry.is_current()
    {
        entry.used = Instant::now();
        return Ok(Arc::clone(&entry.client));
    }
    let environment = Environment::now();
    // Ops have an address and nothing else; the environment has the rest.
    let security = Credentials::default().open(&target_of(address)?, environment.clone())?;
    let parts = new_parts(address, CONNECT_TIMEOUT, Keepalive::default(), security)?;
    let client = parts.core;
    let used = Instant::now();
    let compared = Instant::now();
    let entry = Entry { client: Arc::clone(&client), used, environment, compared };
    clients.insert(address.to_owned(), entry);
    Ok(client)
}

/// Evicts the clients that no op has used for a while, with their connections.
pub(crate) fn evict_idle_clients() {
    let is_idle = |entry: &mut Entry| {
        entry.used.elapsed() > IDLE_TIMEOUT && Arc::strong_count(&entry.client) == 1
    };
    let evicted: Vec<_> =
        CLIENTS.get().visit(|clients| clients.extract_if(|_, entry| is_idle(entry)).collect());
    // Without the lock: a client closes its connections.
    drop(evicted);
}
