// SPDX-License-Identifier: Apache-2.0
//! The gRPC status: the only place that converts error kinds to gRPC codes and back.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reverb_base::error::{RATE_LIMITER_TIMEOUT, SENT_RATE_LIMITER_TIMEOUT};
use reverb_base::{Error, ErrorKind};

/// Header or trailer that holds the code.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Header or trailer that holds the percent-encoded message.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Header or trailer of a status `UNAVAILABLE` that says that the server does not come back.
const STOPPED_FOR_GOOD: HeaderName = HeaderName::from_static("reverb-stopped-for-good");

/// Header or trailer of a status that says that no item of the table has the window of a request.
const NO_WINDOW: HeaderName = HeaderName::from_static("reverb-no-window");

/// dm-reverb's clients refuse header lists of more than 8 KiB, so a longer message is cut.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Beginning of the answer to a call without TLS at a port that requires it. Clients of dm-reverb
/// raise an error of this code at once; after any other they would retry forever.
pub const WANTS_TLS: &str = "This port wants TLS";

/// The message of old gRPC libraries for a lost connection. It means `UNAVAILABLE`.
const STREAM_REMOVED: &str = "Stream removed";

/// The codes of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are those of the gRPC specification")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// All codes, in the order of their numbers.
pub const CODES: [Code; 17] = [
    Code::Ok,
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

impl Code {
    /// Name in the specification of gRPC: `INVALID_ARGUMENT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The message for people; empty on success.
    pub message: String,
    /// True if the server has stopped for good. Clients that do not know it read the code alone.
    pub is_final: bool,
    /// True if no item of the table has the window of the request.
    pub is_no_window: bool,
}

impl Status {
    /// The status of a call, with a message for people.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), is_final: false, is_no_window: false }
    }

    /// Success.
    pub fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    /// Status of a call that failed with `error`.
    pub fn from_error(error: &Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::SignatureMismatch => Code::InvalidArgument,
            ErrorKind::TableNotFound => Code::NotFound,
            ErrorKind::DeadlineExceeded | ErrorKind::RateLimiterTimeout => Code::DeadlineExceeded,
            ErrorKind::FailedPrecondition => Code::FailedPrecondition,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::Unauthenticated => Code::Unauthenticated,
            ErrorKind::ResourceExhausted => Code::ResourceExhausted,
            ErrorKind::Unimplemented => Code::Unimplemented,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Cancelled => Code::Cancelled,
            ErrorKind::DataLoss => Code::DataLoss,
            ErrorKind::Internal => Code::Internal,
        };
        let message = match error.kind() {
            ErrorKind::RateLimiterTimeout => {
                error.message().replace(RATE_LIMITER_TIMEOUT, SENT_RATE_LIMITER_TIMEOUT)
            }
            _ => error.message().to_owned(),
        };
        Self {
            is_final: error.is_final(),
            is_no_window: error.is_no_window(),
            ..Self::new(code, message)
        }
    }

    /// The status as an error, or `None` if the call succeeded.
    pub fn into_error(mut self) -> Option<Error> {
        let kind = match self.code {
            Code::Ok => return None,
            Code::Cancelled => ErrorKind::Cancelled,
            Code::Unknown if self.message == STREAM_REMOVED => ErrorKind::Unavailable,
            Code::InvalidArgument | Code::OutOfRange => ErrorKind::InvalidArgument,
            Code::DeadlineExceeded if self.message.contains(SENT_RATE_LIMITER_TIMEOUT) => {
                self.message =
                    self.message.replace(SENT_RATE_LIMITER_TIMEOUT, RATE_LIMITER_TIMEOUT);
                ErrorKind::RateLimiterTimeout
            }
            Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            Code::NotFound => ErrorKind::TableNotFound,
            Code::FailedPrecondition if self.message.starts_with(WANTS_TLS) => {
                return Some(Error::unavailable(self.message).lasting());
            }
            Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => {
                ErrorKind::FailedPrecondition
            }
            Code::PermissionDenied => ErrorKind::PermissionDenied,
            Code::Unauthenticated => ErrorKind::Unauthenticated,
            Code::ResourceExhausted => ErrorKind::ResourceExhausted,
            Code::Unimplemented => ErrorKind::Unimplemented,
            Code::Unknown | Code::Internal => ErrorKind::Internal,
            Code::Unavailable if self.is_final => {
                return Some(Error::stopped_for_good(self.message));
            }
            Code::Unavailable => ErrorKind::Unavailable,
            Code::DataLoss => ErrorKind::DataLoss,
        };
        let error = Error::new(kind, self.message);
        Some(if self.is_no_window { error.without_window() } else { error })
    }

    /// Writes the status into headers or trailers.
    pub fn put_headers(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        if !self.message.is_empty()
            && let Ok(message) = HeaderValue::from_str(&percent_encode(&self.message))
        {
            headers.insert(GRPC_MESSAGE, message);
        }
        if self.is_final {
            headers.insert(STOPPED_FOR_GOOD, HeaderValue::from_static("1"));
        }
        if self.is_no_window {
            headers.insert(NO_WINDOW, HeaderValue::from_static("1"));
        }
    }

    /// Reads the status from headers or trailers, if they have one.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let number = headers.get(GRPC_STATUS)?.to_str().ok().and_then(|text| text.parse().ok());
        let code = number.and_then(|at: usize| CODES.get(at).copied()).unwrap_or(Code::Unknown);
        let message = headers.get(GRPC_MESSAGE).map(|text| percent_decode(text.as_bytes()));
        let is_final = headers.contains_key(&STOPPED_FOR_GOOD);
        let is_no_window = headers.contains_key(&NO_WINDOW);
        Some(Self { is_final, is_no_window, ..Self::new(code, message.unwrap_or_default()) })
    }

    /// The status for a bare HTTP status: the peer does not speak gRPC.
    pub fn from_http(status: StatusCode) -> Self {
        let code = match status.as_u16() {
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            _ => Code::Internal,
        };
        Self::new(code, format!("The answer is not gRPC: HTTP status {status}."))
    }
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for character in text.chars() {
        let before = encoded.len();
        if matches!(character, ' '..='~') && character != '%' {
            encoded.push(character);
        } else {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
            }
        }
        if encoded.len() > MAX_MESSAGE_BYTES {
            encoded.truncate(before);
            encoded.push_str("...");
            break;
        }
    }
    encoded
}

fn percent_decode(text: &[u8]) -> String {
    let hex = |at: usize| text.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'%'
            && let (Some(high), Some(low)) = (hex(at + 1), hex(at + 2))
        {
            decoded.push((high << 4 | low) as u8);
            at += 3;
        } else {
            decoded.push(text[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(status: &Status) -> Status {
        let mut headers = HeaderMap::new();
        status.put_headers(&mut headers);
        Status::from_headers(&headers).unwrap()
    }

    #[test]
    fn every_kind_survives_a_round_trip() {
        for &kind in ErrorKind::ALL {
            // They differ from others of their code by their text, or in this process alone.
            if matches!(kind, ErrorKind::SignatureMismatch | ErrorKind::RateLimiterTimeout) {
                continue;
            }
            let error = Error::new(kind, "100 % of größe\nfailed");
            assert_eq!(round_trip(&Status::from_error(&error)).into_error(), Some(error));
        }
        assert_eq!(round_trip(&Status::ok()).into_error(), None);
    }

    #[test]
    fn a_stop_for_good_is_told_beside_a_code_that_old_clients_know() {
        let error = Error::stopped_for_good("It is over.");
        let status = round_trip(&Status::from_error(&error));
        assert_eq!(status.code, Code::Unavailable);
        let read = status.into_error().unwrap();
        assert_eq!(read, error);
        assert!(read.is_final() && read.is_gone() && !read.is_transient());
    }

    #[test]
    fn a_missing_window_is_told_beside_the_kind_of_the_error() {
        for error in [Error::invalid_argument("never"), Error::rate_limiter_timeout("not yet")] {
            let error = error.without_window();
            let read = round_trip(&Status::from_error(&error)).into_error().unwrap();
            assert_eq!(read, error);
            assert!(read.is_no_window() && read.context("shard 3").is_no_window());
        }
    }

    #[test]
    fn a_rate_limiter_timeout_is_recognised_by_a_sentence_that_readers_do_not_see() {
        let error = Error::rate_limiter_timeout("Table t holds 0 items.");
        let status = round_trip(&Status::from_error(&error));
        assert_eq!(status.code, Code::DeadlineExceeded);
        // Clients of dm-reverb match it.
        let sentence = "Rate Limiter: Timeout exceeded before the right to insert was acquired.";
        assert!(status.message.contains(sentence), "{}", status.message);
        assert!(!error.message().contains("right to insert"), "{}", error.message());
        assert_eq!(status.into_error(), Some(error));
        let of_peer = Status::new(Code::DeadlineExceeded, sentence).into_error().unwrap();
        assert_eq!(of_peer.kind(), ErrorKind::RateLimiterTimeout);
        assert_eq!(of_peer.message(), "Rate Limiter: Timeout exceeded.");
        let other = Status::new(Code::DeadlineExceeded, "Deadline Exceeded");
        assert_eq!(other.into_error().unwrap().kind(), ErrorKind::DeadlineExceeded);
    }

    #[test]
    fn a_removed_stream_is_an_unavailable_server() {
        let status = Status::new(Code::Unknown, STREAM_REMOVED);
        assert_eq!(status.into_error().unwrap().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn long_messages_are_cut_to_the_limit_of_old_clients() {
        let message = "ü".repeat(100_000);
        let mut headers = HeaderMap::new();
        Status::new(Code::Internal, message.clone()).put_headers(&mut headers);
        assert!(headers[GRPC_MESSAGE].len() <= MAX_MESSAGE_BYTES + 3);
        let cut = Status::from_headers(&headers).unwrap().message;
        assert!(message.starts_with(cut.trim_end_matches("...")));
    }

    #[test]
    fn damaged_headers_are_read_as_far_as_possible() {
        let mut headers = HeaderMap::new();
        assert_eq!(Status::from_headers(&headers), None);
        headers.insert(GRPC_STATUS, HeaderValue::from_static("99"));
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static("50%25 %zz %4"));
        let status = Status::from_headers(&headers).unwrap();
        assert_eq!((status.code, status.message.as_str()), (Code::Unknown, "50% %zz %4"));
    }
}
