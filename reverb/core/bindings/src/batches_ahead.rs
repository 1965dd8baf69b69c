// SPDX-License-Identifier: Apache-2.0
//! Batches that are sampled ahead, for Python.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use reverb_base::Result;
use reverb_client::{AheadOptions, BatchesAhead as Core, NextBatch, RaggedForm, ReadyBatch};

use crate::batch::BatchAnswer;
use crate::batch_options::BatchOptions;
use crate::client::Client;
use crate::error::{OrRaise, to_python};
use crate::exit;
use crate::process::Local;
use crate::sampler::with_samples;
use crate::wait::wait;

/// Time for which a thread keeps its processor while a batch is arriving. Sleeping and waking takes
/// as long.
const SPIN: Duration = Duration::from_micros(50);

/// Maximum time that `close` waits for a request to be withdrawn.
const MAX_CLOSING: Duration = Duration::from_secs(5);

/// Whole batches of one table, which a task of the core samples while the program is busy.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct BatchesAhead {
    core: Arc<Local<Core>>,
    are_packed: bool,
}

#[pymethods]
impl BatchesAhead {
    #[new]
    #[pyo3(signature = (client, request, num_ahead))]
    fn new(client: &Client, request: BatchOptions, num_ahead: usize) -> PyResult<Self> {
        let ragged = request.form.ragged;
        let options = AheadOptions {
            table: request.table,
            batch_size: request.batch_size,
            num_ahead,
            distinct: request.distinct,
            ragged,
            columns: request.form.columns,
            window: request.form.window,
            names: request.form.names,
            max_bytes: request.form.max_bytes,
        };
        let core = Arc::new(Local::new(Core::new(client.core()?, options)));
        Ok(Self { core, are_packed: ragged == RaggedForm::Packed })
    }

    /// Starts sampling.
    fn start(&self) -> PyResult<()> {
        self.core.origin().check("iterator over batches").or_raise()?;
        self.core.start();
        Ok(())
    }

    /// Next batch, its age in seconds, and the number of batches that the call had to wait for;
    /// `None` after the timeout, and when it is closed.
    #[pyo3(signature = (timeout_s))]
    fn next(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<(BatchAnswer, f64, f64)>> {
        self.core.origin().check("iterator over batches").or_raise()?;
        let mut next = self.core.next();
        let mut waited = 0.0;
        if matches!(next, NextBatch::OnItsWay) {
            let start = Instant::now();
            let waiting = exit::Waiting::begin();
            py.detach(|| {
                self.core.spin(SPIN);
                waiting.park_if_finalizing();
            });
            next = self.core.next();
            // Negative: do not wait. Not representable: wait forever.
            let limit = timeout_s.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok());
            while matches!(next, NextBatch::OnItsWay) {
                let rest = limit.map(|limit| limit.saturating_sub(start.elapsed()));
                if rest.is_some_and(|rest| rest.is_zero()) {
                    return Ok(None);
                }
                wait(py, self.arrival(rest))?;
                next = self.core.next();
            }
            waited = start.elapsed().as_secs_f64();
        }
        match next {
            NextBatch::Ready(ReadyBatch { numbers, columns, since }) => {
                let answer = BatchAnswer::new(py, None, &numbers, columns, self.are_packed)?;
                Ok(Some((answer, since.elapsed().as_secs_f64(), waited)))
            }
            NextBatch::Failed(error, samples) => Err(with_samples(py, to_python(&error), &samples)),
            NextBatch::OnItsWay | NextBatch::Ended => Ok(None),
        }
    }

    /// Reason why the next batch takes long, if that is known.
    fn waits_for(&self) -> Option<String> {
        self.core.waits_for().map(|error| error.message().to_owned())
    }

    /// Returns true if `next` would return or raise at once.
    fn is_ready(&self) -> bool {
        !self.core.origin().is_here() || self.core.has_arrived()
    }

    /// Number of batches that are ready.
    fn num_ready(&self) -> usize {
        if self.core.origin().is_here() { self.core.num_ready() } else { 0 }
    }

    /// Drops the batches and stops sampling: waits until no request takes items of the table, for
    /// at most 5 s.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.core.origin().is_here() {
            return Ok(());
        }
        self.core.close();
        wait(py, self.arrival(Some(MAX_CLOSING)))
    }
}

impl BatchesAhead {
    /// The batches, for a call that outlives this one.
    pub(crate) fn core(&self) -> PyResult<Arc<Local<Core>>> {
        self.core.origin().check("iterator over batches").or_raise()?;
        Ok(Arc::clone(&self.core))
    }

    /// Waits for the next batch, for at most `limit`.
    async fn arrival(&self, limit: Option<Duration>) -> Result<()> {
        match limit {
            None => self.core.arrival().await,
            Some(limit) => drop(tokio::time::timeout(limit, self.core.arrival()).await),
        }
        Ok(())
    }
}
