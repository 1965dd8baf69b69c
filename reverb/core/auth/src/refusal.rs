// SPDX-License-Identifier: Apache-2.0
//! Refusals of callers.

use reverb_base::{Error, ErrorKind};

/// Reason of a refusal, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The caller sent neither token nor certificate.
    Missing,
    /// The token, or the certificate, is not in the file.
    Unknown,
    /// The entry has expired.
    Expired,
    /// The token came in cleartext over a network.
    Cleartext,
    /// The caller is known, and lacks the right.
    Denied,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Missing, Self::Unknown, Self::Expired, Self::Cleartext, Self::Denied];

    /// Name in counters: `missing`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Cleartext => "cleartext",
            Self::Denied => "denied",
        }
    }

    /// Description for the log.
    pub fn fault(self) -> &'static str {
        match self {
            Self::Missing => "it has no token",
            Self::Unknown => "its token or certificate is not known",
            Self::Expired => "its token or certificate has expired",
            Self::Cleartext => "it has sent its token in cleartext",
            Self::Denied => "it lacks the right",
        }
    }
}

/// Refusal to authenticate a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    message: String,
}

impl Refusal {
    pub(crate) fn missing() -> Self {
        let message = "This server wants a token: give Client(..., token=...) or set REVERB_TOKEN.";
        Self { reason: Reason::Missing, message: message.to_owned() }
    }

    pub(crate) fn unknown_token(shown: Option<&str>) -> Self {
        let shown = shown.map_or_else(String::new, |shown| format!(" ({shown})"));
        let message = format!("This server does not know this token{shown}.");
        Self { reason: Reason::Unknown, message }
    }

    pub(crate) fn no_bearer() -> Self {
        let message = "This server wants a token in the header authorization, as: Bearer TOKEN.";
        Self { reason: Reason::Unknown, message: message.to_owned() }
    }

    pub(crate) fn unknown_certificate(names: &[String]) -> Self {
        let message = format!(
            "This server does not know this certificate ({}): it wants one that its tokens file \
             names, or a token.",
            names.join(", ")
        );
        Self { reason: Reason::Unknown, message }
    }

    /// The caller's entry has expired; `caller` is [`crate::Access::name`].
    pub(crate) fn expired(caller: &str, until: &impl std::fmt::Display) -> Self {
        let message = format!("The access of {caller} expired at {until}: ask for a new one.");
        Self { reason: Reason::Expired, message }
    }

    /// The token came over a network without encryption.
    pub fn cleartext() -> Self {
        let message = "A token was sent in cleartext: it is now known to the network; replace it, \
                       and connect over TLS (grpcs://).";
        Self { reason: Reason::Cleartext, message: message.to_owned() }
    }

    /// Reason, as it is counted.
    pub fn reason(&self) -> Reason {
        self.reason
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Error::new(ErrorKind::Unauthenticated, refusal.message)
    }
}
