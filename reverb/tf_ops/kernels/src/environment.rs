// SPDX-License-Identifier: Apache-2.0
//! What the process lends to the ops.

use std::sync::{Arc, OnceLock};

use reverb_client::Client;
use reverb_data::Result;

use crate::failure::{Failure, Outcome};

/// Handed over by whoever links this crate, before ops are registered.
pub struct Environment {
    /// The process's client of an address.
    pub client: fn(&str) -> Result<Arc<Client>>,
}

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// Hands the environment over. Only the first call counts.
pub fn install(environment: Environment) {
    let _ = ENVIRONMENT.set(environment);
}

/// The process's client of an address.
pub(crate) fn client(address: &str) -> Outcome<Arc<Client>> {
    let environment =
        ENVIRONMENT.get().ok_or_else(|| Failure::internal("reverb was not set up"))?;
    Ok((environment.client)(address)?)
}
