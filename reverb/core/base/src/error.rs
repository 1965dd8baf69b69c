// SPDX-License-Identifier: Apache-2.0
//! The error type of the whole core: a kind that programs branch on, and a message for people.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::token_text::without_tokens;

/// The result type of the whole core.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! error_kinds {
    ($($(#[$doc:meta])* $kind:ident $(=> $constructor:ident)?,)*) => {
        /// The kind of an error, which programs branch on. One `match` converts it into a gRPC
        /// code, and another into a Python class.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)*
        }

        impl ErrorKind {
            /// All kinds, in order.
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }

        /// Constructors of the kinds whose errors have nothing but a message.
        impl Error {
            $($(
                #[doc = concat!("An error of the kind [`ErrorKind::", stringify!($kind), "`].")]
                pub fn $constructor(message: impl Into<String>) -> Self {
                    Self::new(ErrorKind::$kind, message)
                }
            )?)*
        }
    };
}

error_kinds! {
    /// A value that is invalid in every state of the system.
    InvalidArgument => invalid_argument,
    /// Shape, dtype or number of columns differ from what was declared.
    SignatureMismatch => signature_mismatch,
    /// No table has that name.
    TableNotFound,
    /// A deadline passed; the text says what the call was waiting for.
    DeadlineExceeded,
    /// A table's rate limiter did not allow the call in time.
    RateLimiterTimeout,
    /// The object is in a state that does not allow the call: closed, expired.
    FailedPrecondition => failed_precondition,
    /// The server, or a proxy in front of it, does not allow this caller to make the call.
    PermissionDenied,
    /// The server, or a proxy in front of it, cannot authenticate the caller.
    Unauthenticated,
    /// A limit of memory or size was reached.
    ResourceExhausted => resource_exhausted,
    /// The call is not supported.
    Unimplemented => unimplemented,
    /// No server could be reached, or the connection to it was lost.
    Unavailable => unavailable,
    /// The call was cancelled: the server is shutting down, or the caller is gone.
    Cancelled => cancelled,
    /// Stored or received bytes are damaged.
    DataLoss => data_loss,
    /// A bug of ours.
    Internal => internal,
}

/// An error: its kind, and a message that names the argument, its value and what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "marks that do not exclude each other")]
struct Inner {
    kind: ErrorKind,
    message: String,
    limit: Option<&'static str>,
    is_lasting: bool,
    is_final: bool,
    is_no_window: bool,
    is_partial: bool,
    column: Option<ColumnMark>,
}

/// A column in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ColumnMark {
    /// Position of the column.
    index: usize,
    /// The place in the message that has the position.
    place: Range<usize>,
}

/// Sentence in each error of a rate limiter timeout: programs written for dm-reverb look for its
/// words.
pub const RATE_LIMITER_TIMEOUT: &str = "Rate Limiter: Timeout exceeded.";

/// The same sentence on the wire, by which dm-reverb's clients recognise a rate limiter timeout.
///
/// It is the only message of the protocol that clients match. It speaks of inserts where samples
/// have timed out, so people do not see it.
pub const SENT_RATE_LIMITER_TIMEOUT: &str =
    "Rate Limiter: Timeout exceeded before the right to insert was acquired.";

impl Error {
    /// Creates an error of a kind; the named constructors below are preferred. A token in the
    /// message, given by mistake as a path or an address, is not shown in full.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = without_tokens(message.into());
        Self(Box::new(Inner {
            kind,
            message,
            limit: None,
            is_lasting: false,
            is_final: false,
            is_no_window: false,
            is_partial: false,
            column: None,
        }))
    }

    /// A value of the column at a position that is invalid in every state. The position stands
    /// between both parts of the message; `with_column` puts a name there.
    pub fn invalid_column(before: &str, index: usize, after: &str) -> Self {
        let number = index.to_string();
        let mut error = Self::invalid_argument(format!("{before}{number}{after}"));
        let place = before.len()..before.len() + number.len();
        error.0.column = Some(ColumnMark { index, place });
        error
    }

    /// The column whose position the message has.
    pub fn column(&self) -> Option<usize> {
        self.0.column.as_ref().map(|mark| mark.index)
    }

    /// Writes the column of the message, if it has one, as `name` does. A second call changes
    /// nothing.
    #[must_use]
    pub fn with_column(mut self, name: impl FnOnce(usize) -> String) -> Self {
        if let Some(ColumnMark { index, place }) = self.0.column.take()
            && self.0.message.is_char_boundary(place.end)
        {
            self.0.message.replace_range(place, &name(index));
        }
        self
    }

    /// No table `name`; `known` lists the existing tables.
    pub fn table_not_found(name: &str, known: &[String]) -> Self {
        let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
        names.sort_unstable();
        let names = match names[..] {
            [] => String::new(),
            _ => format!(" The tables of this server are: {}.", names.join(", ")),
        };
        let message = format!("Priority table {} was not found.{names}", cut(name));
        Self::new(ErrorKind::TableNotFound, message)
    }

    /// A deadline passed during `operation`.
    pub fn deadline_exceeded(operation: &str, after: Duration, waiting_for: &str) -> Self {
        // It may end with the sentence of another error.
        let waiting_for = waiting_for.strip_suffix('.').unwrap_or(waiting_for);
        Self::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "Timeout exceeded: {operation} did not finish within {} ms. It was waiting for {waiting_for}.",
                after.as_millis()
            ),
        )
    }

    /// The rate limiter of a table did not allow a call in time; `waiting_for` describes its
    /// counters.
    pub fn rate_limiter_timeout(waiting_for: &str) -> Self {
        Self::new(
            ErrorKind::RateLimiterTimeout,
            format!("The sample timed out. {waiting_for} ({RATE_LIMITER_TIMEOUT})"),
        )
    }

    /// The server has stopped for good: nobody should wait for it.
    pub fn stopped_for_good(message: impl Into<String>) -> Self {
        let mut error = Self::unavailable(message).lasting();
        error.0.is_final = true;
        error
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Prefixes the message with the place of the error.
    #[must_use]
    pub fn context(self, prefix: &str) -> Self {
        let message = without_tokens(format!("{prefix}: {}", self.0.message));
        // The place of a column has moved.
        Self(Box::new(Inner { message, column: None, ..*self.0 }))
    }

    /// Adds a sentence after the message.
    #[must_use]
    pub fn followed_by(self, sentence: &str) -> Self {
        let message = without_tokens(format!("{} {sentence}", self.0.message));
        Self(Box::new(Inner { message, ..*self.0 }))
    }

    /// Sets the limit of the server that was exceeded.
    #[must_use]
    pub fn over_limit(mut self, name: &'static str) -> Self {
        self.0.limit = Some(name);
        self
    }

    /// Marks an error that the same call would meet again: the server is there, and something has
    /// to be changed before it can be reached.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.0.is_lasting = true;
        self
    }

    /// Marks a refusal, or a timeout, of a table in which no item has the window of the request.
    #[must_use]
    pub fn without_window(mut self) -> Self {
        self.0.is_no_window = true;
        self
    }

    /// Marks an error of a group in which some shards have done what others have not.
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.0.is_partial = true;
        self
    }

    /// Limit of the server that was exceeded. Only the server knows it; it is not sent.
    pub fn limit(&self) -> Option<&'static str> {
        self.0.limit
    }

    /// Returns true if the server has said that it does not come back.
    pub fn is_final(&self) -> bool {
        self.0.is_final
    }

    /// Returns true if no item of the table has the window of the request. Other shards may have
    /// one.
    pub fn is_no_window(&self) -> bool {
        self.0.is_no_window
    }

    /// Returns true if some shards of a group have done what others have not.
    pub fn is_partial(&self) -> bool {
        self.0.is_partial
    }

    /// Returns true if the server is gone, for now or for good. Another one may have an answer.
    pub fn is_gone(&self) -> bool {
        self.is_transient() || self.is_final()
    }

    /// Returns true if a client retries by itself: the server is gone or shutting down.
    pub fn is_transient(&self) -> bool {
        !self.0.is_lasting && matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Cancelled)
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

/// Maximum length of a name in an error, in characters.
const MAX_SHOWN: usize = 200;

/// Text of a caller for an error: only its beginning, if it is long.
pub fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_SHOWN) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            Cow::Owned(format!("{}... ({} bytes)", &text[..end], grouped(text.len())))
        }
    }
}

/// A number with commas between groups of three digits, for error texts.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

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
    fn a_column_gets_its_name() {
        let name = |index| format!("reward ({index})");
        let error =
            |index| Error::invalid_column("but column ", index, " is long").followed_by("So.");
        assert_eq!(error(1).message(), "but column 1 is long So.");
        let named = error(0).with_column(name).with_column(|_| unreachable!());
        assert_eq!(named.message(), "but column reward (0) is long So.");
        let moved = error(1).context("batch").with_column(name);
        assert_eq!(moved.message(), "batch: but column 1 is long So.");
    }

    #[test]
    fn what_a_call_waited_for_ends_with_one_full_stop() {
        for what in ["a server", "a server."] {
            let error = Error::deadline_exceeded("flush", Duration::from_millis(7), what);
            assert!(error.message().ends_with("within 7 ms. It was waiting for a server."));
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        assert_eq!(cut("replay"), "replay");
        assert_eq!(cut(&"x".repeat(200)), "x".repeat(200));
        let long = "\u{e9}".repeat(5000);
        assert_eq!(cut(&long), format!("{}... (10,000 bytes)", "\u{e9}".repeat(200)));
        assert!(Error::table_not_found(&long, &[]).message().len() < 500);
    }
}
