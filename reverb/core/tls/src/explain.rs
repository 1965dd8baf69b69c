// SPDX-License-Identifier: Apache-2.0
//! Explanations of TLS failures for people.

use std::io;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

/// Replaces an error of a TLS failure by one with a text for people. Its kind is `InvalidData`
/// then: another attempt with the same certificates would fail as well.
pub(crate) fn explained(error: io::Error, describe: fn(&Error) -> String) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(tls) => io::Error::new(io::ErrorKind::InvalidData, describe(tls)),
        None => error,
    }
}

/// Explanation at a client. The text before it names the server.
pub(crate) fn at_client(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(reason) => server_certificate(reason),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                "it wants a certificate of the client: give ClientTls(cert=..., key=...) or set \
                 REVERB_TLS_CERT and REVERB_TLS_KEY"
                    .to_owned()
            }
            AlertDescription::UnknownCA => {
                "it does not accept the client's certificate: no CA of its client_ca has signed it"
                    .to_owned()
            }
            AlertDescription::CertificateExpired => {
                "it does not accept the client's certificate, which has expired or is not valid yet"
                    .to_owned()
            }
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError => {
                format!("it does not accept the client's certificate ({alert:?})")
            }
            AlertDescription::HandshakeFailure => {
                "it speaks no TLS, or none that this client knows: for a server without TLS write \
                 host:port, not grpcs://host:port"
                    .to_owned()
            }
            AlertDescription::ProtocolVersion => {
                "it does not speak TLS 1.3, the only version of this client".to_owned()
            }
            AlertDescription::NoApplicationProtocol => {
                "it speaks TLS, but neither gRPC nor HTTP/2".to_owned()
            }
            alert => format!("it refused TLS ({alert:?})"),
        },
        Error::InvalidMessage(_) => "it does not speak TLS: for a server without TLS write \
                                     host:port, not grpcs://host:port"
            .to_owned(),
        error => format!("TLS failed: {error}"),
    }
}

/// Explanation at a server. The text before it names the client.
pub(crate) fn at_server(error: &Error) -> String {
    match error {
        Error::NoCertificatesPresented => "it has shown no certificate".to_owned(),
        Error::InvalidCertificate(reason) => match reason {
            CertificateError::UnknownIssuer => {
                "its certificate is signed by no CA of client_ca".to_owned()
            }
            reason => match out_of_date(reason) {
                Some(text) => format!("its certificate {text}"),
                None => format!("its certificate {}", not_good(reason)),
            },
        },
        Error::AlertReceived(alert) => {
            format!("it does not accept the certificate of this server ({alert:?})")
        }
        error => format!("TLS failed: {error}"),
    }
}

fn server_certificate(reason: &CertificateError) -> String {
    match reason {
        CertificateError::UnknownIssuer => "no CA that this client knows has signed its \
                                            certificate: give ClientTls(ca=...) or set \
                                            REVERB_TLS_CA"
            .to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            if presented.is_empty() {
                return format!(
                    "its certificate has no subject alternative name, so it is not for {}",
                    expected.to_str()
                );
            }
            let names: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
            format!(
                "its certificate is for {}, not for {}: write such a name in the address or give \
                 ClientTls(server_name=...)",
                names.join(", "),
                expected.to_str()
            )
        }
        reason => match out_of_date(reason) {
            Some(text) => format!("its certificate {text}"),
            None => format!("its certificate {}", not_good(reason)),
        },
    }
}

/// Explanation of other problems of a certificate; with a remedy for two frequent ones.
fn not_good(reason: &CertificateError) -> String {
    let text = format!("{reason:?}");
    if text.contains("CaUsedAsEndEntity") {
        "is that of a CA (CA:TRUE): use it to sign another certificate, and give that one"
            .to_owned()
    } else if text.contains("UnsupportedCertVersion") {
        "is of version 1: make one of version 3, with a subject alternative name".to_owned()
    } else {
        format!("is invalid: {reason}")
    }
}

fn out_of_date(reason: &CertificateError) -> Option<String> {
    match reason {
        CertificateError::Expired => Some("has expired".to_owned()),
        CertificateError::ExpiredContext { not_after, .. } => {
            Some(format!("has expired at {}", utc(*not_after)))
        }
        CertificateError::NotValidYet => Some("is not valid yet".to_owned()),
        CertificateError::NotValidYetContext { not_before, .. } => {
            Some(format!("is not valid before {}: look at the clocks", utc(*not_before)))
        }
        _ => None,
    }
}

/// Time in the form for people and logs.
pub(crate) fn utc(time: UnixTime) -> String {
    let since = Duration::from_secs(time.as_secs());
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let text = (OffsetDateTime::UNIX_EPOCH + since).format(&format);
    text.unwrap_or_else(|_| format!("{} s after 1970", time.as_secs()))
}

/// Name without the type that rustls writes around it: `DnsName("a")` becomes `a`.
fn plain_name(name: &str) -> &str {
    let inner = name.split_once("(\"").and_then(|(_, rest)| rest.strip_suffix("\")"));
    inner
        .or_else(|| name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')))
        .unwrap_or(name)
}
