// SPDX-License-Identifier: Apache-2.0
//! The coordinator of a group of shards, for Python.

use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_rpc::Keepalive;
use reverb_rpc::client::{ConnectionOptions, Credentials, Environment};
use reverb_shards::address::GroupAddress;
use reverb_shards::coordinator::Coordinator as Core;

use crate::connect::{group_of, target_of};
use crate::error::OrRaise;
use crate::locks::Visit;
use crate::process::{Local, runtime};
use crate::security::ClientSecurity;

/// Time limit of one attempt to reach a shard.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Moves the windows of a group's rate limiters until it is stopped.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Coordinator(Mutex<Option<Local<Core>>>);

#[pymethods]
impl Coordinator {
    #[new]
    #[pyo3(signature = (address, credentials))]
    fn new(py: Python<'_>, address: &str, credentials: Option<ClientSecurity>) -> PyResult<Self> {
        GroupAddress::parse(address).or_raise()?;
        let target = target_of(address).or_raise()?;
        let credentials =
            credentials.map_or_else(Credentials::default, ClientSecurity::credentials);
        let security = py.detach(|| credentials.open(&target, Environment::now())).or_raise()?;
        let keepalive = Keepalive::default();
        let options = ConnectionOptions { connect_timeout: CONNECT_TIMEOUT, keepalive, security };
        let group = group_of(address, options).or_raise()?;
        let core = Core::start(group, runtime().handle());
        Ok(Self(Mutex::new(Some(Local::new(core)))))
    }

    /// Returns true while it runs; it ends when a later one takes over.
    fn is_running(&self) -> bool {
        self.0.visit(|core| {
            core.as_ref().is_some_and(|core| core.origin().is_here() && core.is_running())
        })
    }

    #[pyo3(signature = (is_frozen))]
    fn freeze(&self, is_frozen: bool) {
        self.0.visit(|core| {
            if let Some(core) = core.as_ref().filter(|core| core.origin().is_here()) {
                core.freeze(is_frozen);
            }
        });
    }

    fn stop(&self, py: Python<'_>) {
        let core = self.0.visit(Option::take);
        py.detach(|| drop(core));
    }
}
