// SPDX-License-Identifier: Apache-2.0
//! Functions of the process that the ops use.

use std::sync::{Arc, OnceLock};

use reverb_base::Result;
use reverb_client::Client;

use crate::failure::{Failure, Outcome};

/// Installed by the binary that links this crate, before ops are registered.
pub struct Environment {
    /// Returns the process's client of an address.
    pub client: fn(&str) -> Result<Arc<Client>>,
}

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// Installs the environment. Only the first call has an effect.
pub fn install(environment: Environment) {
    let _ = ENVIRONMENT.set(environment);
}

/// The process's client of an address.
pub(crate) fn client(address: &str) -> Outcome<Arc<Client>> {
    let environment =
        ENVIRONMENT.get().ok_or_else(|| Failure::internal("reverb was not set up"))?;
    Ok((environment.client)(address)?)
}
