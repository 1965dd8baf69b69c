// SPDX-License-Identifier: Apache-2.0
//! The one error of the whole core: a kind, which is what programs act on, and a text for people.

use std::fmt;
use std::time::Duration;

/// What the core returns everywhere.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as a caller may act on it. One match each turns it into a gRPC code and a
/// Python class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A value that no state of the system could accept.
    InvalidArgument,
    /// Shape, dtype or number of columns differ from what was declared.
    SignatureMismatch,
    /// No table of that name.
    TableNotFound,
    /// A deadline passed; the text says what the call was waiting for.
    DeadlineExceeded,
    /// A table's rate limiter did not let the call through in time.
    RateLimiterTimeout,
    /// The object is in a state that does not allow the call: closed, expired.
    FailedPrecondition,
    /// The server, or what stands before it, does not let this caller do that.
    PermissionDenied,
    /// The server, or what stands before it, does not know who calls.
    Unauthenticated,
    /// A limit of memory or size was reached.
    ResourceExhausted,
    /// Not offered here.
    Unimplemented,
    /// No server could be reached, or it went away.
    Unavailable,
    /// The call was abandoned: the server is stopping, or the caller went away.
    Cancelled,
    /// Stored or received bytes are damaged.
    DataLoss,
    /// A bug of ours.
    Internal,
}

/// An error with its kind and a sentence that names the argument, its value and what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
}

/// The sentence by which clients of the original recognise a rate limiter timeout.
///
/// It is the only text in the protocol that anybody matches; "insert" is right even for samples.
pub const RATE_LIMITER_TIMEOUT: &str =
    "Rate Limiter: Timeout exceeded before the right to insert was acquired.";

impl Error {
    /// Makes an error of a kind; the named constructors below are preferred.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into() }))
    }

    /// A value that no state could accept.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Data that differs from its declaration.
    pub fn signature_mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::SignatureMismatch, message)
    }

    /// No table `name`; `known` are the tables there are.
    pub fn table_not_found(name: &str, known: &[String]) -> Self {
        let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
        names.sort_unstable();
        Self::new(
            ErrorKind::TableNotFound,
            format!(
                "Priority table {name} was not found. The tables of this server are: {}.",
                names.join(", ")
            ),
        )
    }

    /// A deadline passed during `operation`.
    pub fn deadline_exceeded(operation: &str, after: Duration, waiting_for: &str) -> Self {
        Self::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "Timeout exceeded: {operation} did not finish within {} ms. It was waiting for {waiting_for}.",
                after.as_millis()
            ),
        )
    }

    /// The rate limiter of a table did not let a call through; `waiting_for` tells its numbers.
    pub fn rate_limiter_timeout(waiting_for: &str) -> Self {
        Self::new(ErrorKind::RateLimiterTimeout, format!("{RATE_LIMITER_TIMEOUT} {waiting_for}"))
    }

    /// The object's state does not allow the call.
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::FailedPrecondition, message)
    }

    /// A limit was reached.
    pub fn resource_exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ResourceExhausted, message)
    }

    /// Not offered here.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unimplemented, message)
    }

    /// The server at `address` cannot be reached.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// The call was abandoned.
    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Cancelled, message)
    }

    /// Bytes are damaged.
    pub fn data_loss(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DataLoss, message)
    }

    /// A bug of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// What went wrong, as a caller may act on it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The same error with words in front that say where it happened.
    #[must_use]
    pub fn context(self, prefix: &str) -> Self {
        Self::new(self.0.kind, format!("{prefix}: {}", self.0.message))
    }

    /// Whether a client retries by itself: the server went away or is going away.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Cancelled)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_table_names_the_tables_there_are() {
        let error = Error::table_not_found("x", &["b".into(), "a".into()]);
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        assert_eq!(
            error.message(),
            "Priority table x was not found. The tables of this server are: a, b."
        );
    }

    #[test]
    fn a_rate_limiter_timeout_holds_the_sentence_that_old_clients_match() {
        let error = Error::rate_limiter_timeout("Table t holds 0 items.");
        assert!(
            error.message().contains(
                "Rate Limiter: Timeout exceeded before the right to insert was acquired."
            )
        );
    }
}
