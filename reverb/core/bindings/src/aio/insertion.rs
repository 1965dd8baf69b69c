// SPDX-License-Identifier: Apache-2.0
//! An insert in two parts: the runtime finds a stream, then Python's values are encoded for it.

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_base::{Error, Result};
use reverb_client::Insertion as Core;

use crate::locks::Visit;
use crate::process::Local;

/// An insert that was begun; used once.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Insertion(Mutex<Option<Local<Core>>>);

impl Insertion {
    pub(super) fn new(core: Core) -> Self {
        Self(Mutex::new(Some(Local::new(core))))
    }

    pub(super) fn take(&self) -> Result<Core> {
        let Some(core) = self.0.visit(Option::take) else {
            return Err(Error::internal("an insert was finished twice"));
        };
        core.origin().check("insert")?;
        Ok(core.into_inner())
    }
}
