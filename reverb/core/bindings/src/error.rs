// SPDX-License-Identifier: Apache-2.0
//! Maps the core's errors to the classes of `reverb.errors`, in this one place.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use reverb_base::{Error, ErrorKind};

mod classes {
    use pyo3::import_exception;

    import_exception!(reverb.errors, CancelledError);
    import_exception!(reverb.errors, DataLossError);
    import_exception!(reverb.errors, DeadlineExceededError);
    import_exception!(reverb.errors, FailedPreconditionError);
    import_exception!(reverb.errors, InternalError);
    import_exception!(reverb.errors, InvalidArgumentError);
    import_exception!(reverb.errors, PermissionDeniedError);
    import_exception!(reverb.errors, ResourceExhaustedError);
    import_exception!(reverb.errors, SignatureMismatchError);
    import_exception!(reverb.errors, TableNotFoundError);
    import_exception!(reverb.errors, UnauthenticatedError);
    import_exception!(reverb.errors, UnavailableError);
    import_exception!(reverb.errors, UnimplementedError);
}

pub(crate) fn to_python(error: &Error) -> PyErr {
    let text = error.message().to_owned();
    let raised = match error.kind() {
        ErrorKind::InvalidArgument => classes::InvalidArgumentError::new_err(text),
        ErrorKind::SignatureMismatch => classes::SignatureMismatchError::new_err(text),
        ErrorKind::TableNotFound => classes::TableNotFoundError::new_err(text),
        ErrorKind::DeadlineExceeded | ErrorKind::RateLimiterTimeout => {
            classes::DeadlineExceededError::new_err(text)
        }
        ErrorKind::FailedPrecondition => classes::FailedPreconditionError::new_err(text),
        ErrorKind::PermissionDenied => classes::PermissionDeniedError::new_err(text),
        ErrorKind::Unauthenticated => classes::UnauthenticatedError::new_err(text),
        ErrorKind::ResourceExhausted => classes::ResourceExhaustedError::new_err(text),
        ErrorKind::Unimplemented => classes::UnimplementedError::new_err(text),
        ErrorKind::Unavailable => classes::UnavailableError::new_err(text),
        ErrorKind::Cancelled => classes::CancelledError::new_err(text),
        ErrorKind::DataLoss => classes::DataLossError::new_err(text),
        ErrorKind::Internal => classes::InternalError::new_err(format!(
            "{text} (This is a bug of reverb; please report it.)"
        )),
    };
    if error.is_partial() {
        // Its classes take any attribute.
        #[expect(clippy::disallowed_methods, reason = "calls of groups fail under no lock")]
        Python::attach(|py| drop(raised.value(py).setattr("is_partial", true)));
    }
    raised
}

/// Error for a value that cannot be read; the text names its column. Other errors name the column
/// themselves.
pub(crate) fn in_column(py: Python<'_>, column: impl std::fmt::Display, error: PyErr) -> PyErr {
    if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(format!("Column {column}: {}", error.value(py)))
    } else {
        of_value(py, &format!("column {column}"), error)
    }
}

/// Error for a value that is not in the processor's memory; the text names the value.
pub(crate) fn of_value(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    if error.is_instance_of::<classes::InvalidArgumentError>(py) {
        classes::InvalidArgumentError::new_err(format!("{name} is {}", error.value(py)))
    } else {
        error
    }
}

/// Lets `?` carry the core's errors out of a binding.
pub(crate) trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for reverb_base::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| to_python(&error))
    }
}
