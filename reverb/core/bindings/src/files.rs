// SPDX-License-Identifier: Apache-2.0
//! Files for Python, opened like the core's own, so that no pipe can block a program.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_base::Unreadable;

/// Numbers of errors, the same on all systems: an invalid argument, and a file that is too large.
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;

/// Opens a file for reading, or for appending, which creates it for its user alone if it is
/// missing. Returns its descriptor.
#[pyfunction]
#[pyo3(signature = (path, append))]
pub(crate) fn open_file(py: Python<'_>, path: PathBuf, append: bool) -> PyResult<i32> {
    let mut options = OpenOptions::new();
    options.read(!append).append(append).create(append);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let opened = py.detach(|| reverb_base::open_file(&path, &mut options));
    opened.map_err(|why| to_os_error(&path, &why)).and_then(into_descriptor)
}

/// Reads a whole file of at most `max_bytes`.
#[pyfunction]
#[pyo3(signature = (path, max_bytes))]
pub(crate) fn read_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    max_bytes: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let content = py.detach(|| reverb_base::read_file(&path, max_bytes));
    content.map(|bytes| PyBytes::new(py, &bytes)).map_err(|why| to_os_error(&path, &why))
}

/// Python raises `FileNotFoundError` and its siblings by the number.
fn to_os_error(path: &Path, why: &Unreadable) -> PyErr {
    let (number, text) = match why {
        Unreadable::Refused(error) => {
            let text = error.to_string();
            let number = error.raw_os_error();
            let text = text.split(" (os error").next().unwrap_or(&text).to_owned();
            (number.unwrap_or(EINVAL), text)
        }
        Unreadable::NoFile => (EINVAL, why.to_string()),
        Unreadable::TooLarge(_) => (EFBIG, why.to_string()),
    };
    PyOSError::new_err((number, text, path.to_owned()))
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems have no descriptors")]
fn into_descriptor(file: File) -> PyResult<i32> {
    Ok(std::os::fd::IntoRawFd::into_raw_fd(file))
}

#[cfg(not(unix))]
fn into_descriptor(_: File) -> PyResult<i32> {
    Err(PyOSError::new_err("descriptors of files are there on Unix only"))
}
