// SPDX-License-Identifier: Apache-2.0
//! The server as Python sees it.

use pyo3::prelude::*;
use reverb_server::{Server as Core, ServerOptions};

use crate::error::OrRaise;
use crate::process::{Local, runtime};
use crate::table::Table;
use crate::wait::wait;

/// Serves from construction until stopped or dropped.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Server {
    core: Local<Core>,
    tables: Vec<Py<Table>>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (tables, port, host))]
    fn new(
        py: Python<'_>,
        tables: Vec<Py<Table>>,
        port: i64,
        host: Option<String>,
    ) -> PyResult<Self> {
        let port = u16::try_from(port).map_err(|_| {
            reverb_data::Error::invalid_argument(format!(
                "port must be between 0 and 65535, got {port}"
            ))
        });
        let port = port.or_raise()?;
        let engines: PyResult<Vec<_>> = tables.iter().map(|table| table.get().engine()).collect();
        let engines = engines?;
        let claims = Claims::new(&tables)?;
        let core = py
            .detach(|| Core::start(engines, &ServerOptions { host, port }, runtime().handle()))
            .or_raise()?;
        claims.keep();
        Ok(Self { core: Local::new(core), tables })
    }

    fn port(&self) -> u16 {
        self.core.port()
    }

    fn stop(&self, py: Python<'_>) {
        if self.core.origin().is_here() {
            py.detach(|| self.core.stop());
        }
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.core.origin().check("Server").or_raise()?;
        wait(py, async {
            self.core.wait().await;
            Ok(())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tables: PyResult<Vec<String>> =
            self.tables.iter().map(|table| Ok(table.bind(py).repr()?.to_string())).collect();
        Ok(format!("Server(port={}, tables=[{}])", self.port(), tables?.join(", ")))
    }
}

/// Tables taken for a server, given back unless it starts.
struct Claims<'a>(Vec<&'a Py<Table>>);

impl<'a> Claims<'a> {
    fn new(tables: &'a [Py<Table>]) -> PyResult<Self> {
        let mut claims = Self(Vec::with_capacity(tables.len()));
        for table in tables {
            table.get().claim()?;
            claims.0.push(table);
        }
        Ok(claims)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|table| table.get().release());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.core.origin().is_here() {
            // The collector holds the GIL, and stopping waits for the listener.
            Python::attach(|py| py.detach(|| self.core.stop()));
        }
    }
}
