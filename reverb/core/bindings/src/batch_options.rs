// SPDX-License-Identifier: Apache-2.0
//! Request for a batch, from Python.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use reverb_base::{Error, Result};
use reverb_client::{BatchColumn, BatchRequest, RaggedForm};
use reverb_data::column_names::ColumnNames;
use reverb_data::{ColumnSpan, StepWindow, WithinEpoch};

use crate::batch::{BatchAnswer, Lent, Numbers, Outputs};
use crate::error::OrRaise;
use crate::flat_nest::ColumnNames as FlatNames;
use crate::wait::sample_timeout_ms;

/// Upper bound of the default memory limit of a batch, or of an item that is decoded alone. The
/// default is half of the memory that the process may use.
const MAX_BATCH_BYTES: u64 = 8 << 30;

/// Memory limit of a batch: the given one, or the default.
pub(crate) fn max_batch_bytes(given: Option<u64>) -> usize {
    static DEFAULT: OnceLock<u64> = OnceLock::new();
    let bytes = given.unwrap_or_else(|| {
        *DEFAULT.get_or_init(|| {
            reverb_server::process_memory()
                .map_or(MAX_BATCH_BYTES, |bytes| MAX_BATCH_BYTES.min(bytes / 2))
        })
    });
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Memory limit for batches that Python joins.
#[pyfunction]
#[pyo3(name = "max_batch_bytes")]
pub(crate) fn max_batch_bytes_of(given: Option<u64>) -> usize {
    max_batch_bytes(given)
}

/// Request for a batch: the attributes of Python's `BatchRequest`.
pub(crate) struct BatchOptions {
    pub(crate) table: String,
    pub(crate) batch_size: usize,
    timeout: Option<Duration>,
    partial: bool,
    pub(crate) distinct: bool,
    pub(crate) form: BatchForm,
}

pub(crate) struct BatchForm {
    pub(crate) ragged: RaggedForm,
    /// Indices of the chosen columns; empty for all.
    pub(crate) columns: Vec<u32>,
    /// Names of these columns for errors.
    pub(crate) names: Option<Arc<ColumnNames>>,
    pub(crate) max_bytes: usize,
    /// The epoch of the items.
    epoch: Option<WithinEpoch>,
    /// Window of each item's steps, and the columns of which only a part of it is requested.
    pub(crate) window: Option<(StepWindow, Vec<ColumnSpan>)>,
    /// Arrays of the program that the batch is written to.
    outputs: Option<Py<Outputs>>,
}

impl<'py> FromPyObject<'_, 'py> for BatchOptions {
    type Error = PyErr;

    fn extract(request: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = request.py();
        let timeout_ms = request.getattr(intern!(py, "timeout_ms"))?.extract()?;
        // The usual form has no object, because each attribute takes time.
        let form: Option<BatchForm> = request.getattr(intern!(py, "form"))?.extract()?;
        Ok(Self {
            table: request.getattr(intern!(py, "table"))?.extract()?,
            batch_size: request.getattr(intern!(py, "batch_size"))?.extract()?,
            timeout: sample_timeout_ms(timeout_ms).or_raise()?,
            partial: request.getattr(intern!(py, "partial"))?.extract()?,
            distinct: request.getattr(intern!(py, "distinct"))?.extract()?,
            form: form.unwrap_or_else(BatchForm::usual),
        })
    }
}

impl<'py> FromPyObject<'_, 'py> for BatchForm {
    type Error = PyErr;

    fn extract(form: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = form.py();
        let ragged = form.getattr(intern!(py, "ragged"))?;
        let multiple_of = form.getattr(intern!(py, "multiple_of"))?.extract()?;
        let max_batch_bytes = form.getattr(intern!(py, "max_batch_bytes"))?.extract()?;
        let names: Option<Bound<'_, FlatNames>> = form.getattr(intern!(py, "names"))?.extract()?;
        let epoch: Option<i64> = form.getattr(intern!(py, "epoch"))?.extract()?;
        Ok(Self {
            epoch: epoch.map(
                |number| {
                    if number < 0 { WithinEpoch::New } else { WithinEpoch::UpTo(number) }
                },
            ),
            ragged: ragged_form(ragged.cast::<PyString>()?.to_str()?, multiple_of)?,
            columns: form.getattr(intern!(py, "indices"))?.extract()?,
            names: names.map(|names| Arc::clone(&names.get().0)),
            max_bytes: self::max_batch_bytes(max_batch_bytes),
            window: form
                .getattr(intern!(py, "window"))?
                .extract::<Option<Window>>()?
                .map(|window| window.0),
            outputs: form.getattr(intern!(py, "outputs"))?.extract()?,
        })
    }
}

/// Window with its spans: Python's tuple of the length, the number of steps before the anchor,
/// whether both ends are padded, and for each span its column, start and stop.
pub(crate) struct Window(pub(crate) (StepWindow, Vec<ColumnSpan>));

impl<'py> FromPyObject<'_, 'py> for Window {
    type Error = PyErr;

    fn extract(window: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        type Spans = Vec<(u32, i32, i32)>;
        let (length, before, pads_left, pads_right, spans): (u32, u32, bool, bool, Spans) =
            window.extract()?;
        let window = StepWindow { length, before, pads_left, pads_right };
        let span = |(column, start, stop)| ColumnSpan { column, start, stop };
        let spans: Vec<ColumnSpan> = spans.into_iter().map(span).collect();
        window.validate().and_then(|()| ColumnSpan::validate(&spans, window)).or_raise()?;
        Ok(Self((window, spans)))
    }
}

impl BatchForm {
    /// All columns, in new memory.
    fn usual() -> Self {
        let max_bytes = max_batch_bytes(None);
        let ragged = RaggedForm::Refuse;
        let columns = Vec::new();
        Self { ragged, columns, names: None, max_bytes, epoch: None, window: None, outputs: None }
    }
}

impl BatchOptions {
    pub(crate) fn request(&self) -> BatchRequest<'_> {
        BatchRequest {
            table: &self.table,
            batch_size: self.batch_size,
            timeout: self.timeout,
            partial: self.partial,
            distinct: self.distinct,
            epoch: self.form.epoch,
            window: self.form.window.as_ref().map(|(window, _)| *window),
            spans: self.form.window.as_ref().map_or(&[], |(_, spans)| spans),
            ragged: self.form.ragged,
            columns: &self.form.columns,
            names: self.form.names.as_deref(),
            max_bytes: self.form.max_bytes,
        }
    }

    /// Lends the arrays of the program, if there are any, for a batch.
    pub(crate) fn lend(&self) -> Result<Option<Lent<'_>>> {
        self.form.outputs.as_ref().map(|outputs| outputs.get().lend()).transpose()
    }

    /// Creates the arrays of a batch, except for those that the program provided.
    pub(crate) fn answer(
        &self,
        py: Python<'_>,
        samples: &[impl Numbers],
        columns: Vec<BatchColumn>,
    ) -> PyResult<BatchAnswer> {
        let outputs = self.form.outputs.as_ref().map(Py::get);
        BatchAnswer::new(py, outputs, samples, columns, self.form.ragged == RaggedForm::Packed)
    }
}

/// Parses Python's name of the way in which items of different lengths become a batch.
fn ragged_form(name: &str, multiple_of: usize) -> PyResult<RaggedForm> {
    match name {
        "error" => Ok(RaggedForm::Refuse),
        "pad" => Ok(RaggedForm::Padded(multiple_of)),
        "packed" => Ok(RaggedForm::Packed),
        "squeeze" => Ok(RaggedForm::Squeezed),
        _ => Err(Error::invalid_argument(format!(
            "ragged must be \"error\", \"pad\" or \"packed\", got {name:?}"
        )))
        .or_raise(),
    }
}
