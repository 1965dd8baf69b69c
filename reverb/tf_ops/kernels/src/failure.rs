// SPDX-License-Identifier: Apache-2.0
//! Error of an op: a code of TensorFlow and a text.

use std::fmt;

use reverb_base::{Error, ErrorKind};

/// A result of an op.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Codes of `TF_Code` in TensorFlow's `tf_status.h` that the ops use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    /// Code 10, also used for `UNAVAILABLE`, which TensorFlow replaces by `INTERNAL` inside
    /// functions.
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// Error of an op.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// The error that ends a dataset.
    pub(crate) fn end_of_sequence() -> Self {
        Self::new(Code::OutOfRange, "End of sequence")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::SignatureMismatch => Code::InvalidArgument,
            ErrorKind::TableNotFound => Code::NotFound,
            ErrorKind::DeadlineExceeded | ErrorKind::RateLimiterTimeout => Code::DeadlineExceeded,
            ErrorKind::FailedPrecondition => Code::FailedPrecondition,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::Unauthenticated => Code::Unauthenticated,
            ErrorKind::ResourceExhausted => Code::ResourceExhausted,
            ErrorKind::Unimplemented => Code::Unimplemented,
            ErrorKind::Unavailable => Code::Aborted,
            ErrorKind::Cancelled => Code::Cancelled,
            ErrorKind::DataLoss => Code::DataLoss,
            ErrorKind::Internal => Code::Internal,
        };
        Self::new(code, error.message())
    }
}
