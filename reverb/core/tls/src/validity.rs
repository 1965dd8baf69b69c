// SPDX-License-Identifier: Apache-2.0
//! Period for which a certificate is valid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::error::X509Error;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

use crate::explain::utc;

/// Remaining time below which a certificate expires soon.
const SOON: Duration = Duration::from_secs(14 * DAY_S);

/// Second condition: less than one in this many of its lifetime is left, because certificates that
/// live for days are replaced late, too.
const SOON_PART: u32 = 3;

const DAY_S: u64 = 86_400;
const HOUR_S: u64 = 3600;

/// Period in which clients accept a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Beginning of the period.
    pub not_before: SystemTime,
    /// Last moment of the period.
    pub not_after: SystemTime,
}

/// Position of a moment relative to the validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Before the period.
    NotYetValid,
    /// Within the period.
    Valid,
    /// Near the end of the period.
    ExpiresSoon,
    /// After the period.
    Expired,
}

impl Validity {
    /// Validity of a certificate.
    ///
    /// # Errors
    ///
    /// Error of the parser.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, X509Error> {
        let (_, certificate) = parse_x509_certificate(certificate)?;
        let validity = certificate.validity();
        Ok(Self {
            not_before: system_time(validity.not_before),
            not_after: system_time(validity.not_after),
        })
    }

    /// Position of `now`.
    pub fn standing(&self, now: SystemTime) -> Standing {
        let lifetime = self.not_after.duration_since(self.not_before).unwrap_or_default();
        match self.not_after.duration_since(now) {
            Err(_) => Standing::Expired,
            Ok(_) if now < self.not_before => Standing::NotYetValid,
            Ok(left) if left < SOON.min(lifetime / SOON_PART) => Standing::ExpiresSoon,
            Ok(_) => Standing::Valid,
        }
    }

    /// End of a sentence that begins with the certificate: its state and the remedy.
    pub fn describe(&self, now: SystemTime) -> String {
        let end = time_text(self.not_after);
        match self.standing(now) {
            Standing::NotYetValid => {
                let begin = time_text(self.not_before);
                format!("is not valid before {begin}, and clients refuse it: look at the clocks")
            }
            Standing::Valid => format!("expires at {end}"),
            Standing::ExpiresSoon => {
                let left = self.not_after.duration_since(now).unwrap_or_default();
                format!("expires at {end}, in {}: replace it", duration_text(left))
            }
            Standing::Expired => format!("has expired at {end}, and clients refuse it: replace it"),
        }
    }
}

fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

fn time_text(time: SystemTime) -> String {
    utc(UnixTime::since_unix_epoch(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn duration_text(duration: Duration) -> String {
    match (duration.as_secs() / DAY_S, duration.as_secs() / HOUR_S) {
        (0, 0) => "less than an hour".to_owned(),
        (0, 1) => "1 hour".to_owned(),
        (0, hours) => format!("{hours} hours"),
        (1, _) => "1 day".to_owned(),
        (days, _) => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use time::OffsetDateTime;

    use super::*;

    const NOW_S: i64 = 1_800_000_000;

    fn at(seconds: i64) -> SystemTime {
        if seconds < 0 {
            UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs())
        } else {
            UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())
        }
    }

    /// Validity from and to these numbers of days from now.
    fn days(from: i64, to: i64) -> Validity {
        seconds(NOW_S + from * DAY_S as i64, NOW_S + to * DAY_S as i64)
    }

    fn seconds(from: i64, to: i64) -> Validity {
        let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
        parameters.not_before = OffsetDateTime::from_unix_timestamp(from).unwrap();
        parameters.not_after = OffsetDateTime::from_unix_timestamp(to).unwrap();
        let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let validity = Validity::of(certificate.der()).unwrap();
        assert_eq!(validity, Validity { not_before: at(from), not_after: at(to) });
        validity
    }

    #[test]
    fn each_standing_has_its_text() {
        for (validity, standing, text) in [
            (days(-1, 15), Standing::Valid, "expires at 2027-01-30T08:00:00Z"),
            (
                days(-40, 13),
                Standing::ExpiresSoon,
                "expires at 2027-01-28T08:00:00Z, in 13 days: replace it",
            ),
            (
                days(-3, -1),
                Standing::Expired,
                "has expired at 2027-01-14T08:00:00Z, and clients refuse it: replace it",
            ),
            (
                days(1, 3),
                Standing::NotYetValid,
                "is not valid before 2027-01-16T08:00:00Z, and clients refuse it: look at the \
                 clocks",
            ),
        ] {
            assert_eq!(validity.standing(at(NOW_S)), standing);
            assert_eq!(validity.describe(at(NOW_S)), text);
        }
    }

    #[test]
    fn its_first_and_last_moments_are_within() {
        let validity = days(-1, 1);
        assert_eq!(validity.standing(validity.not_before), Standing::Valid);
        assert_eq!(validity.standing(validity.not_after), Standing::ExpiresSoon);
        let second = Duration::from_secs(1);
        assert_eq!(validity.standing(validity.not_before - second), Standing::NotYetValid);
        assert_eq!(validity.standing(validity.not_after + second), Standing::Expired);
    }

    #[test]
    fn those_that_live_for_days_expire_soon_in_their_last_third() {
        assert_eq!(days(-1, 3).standing(at(NOW_S)), Standing::Valid);
        assert_eq!(days(-3, 1).standing(at(NOW_S)), Standing::ExpiresSoon);
    }

    #[test]
    fn distant_times_are_read() {
        // From before 1970 to the year of certificates that never expire.
        let for_ever = seconds(-86_400, 253_402_300_799);
        assert_eq!(for_ever.describe(at(NOW_S)), "expires at 9999-12-31T23:59:59Z");
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        assert!(Validity::of(&CertificateDer::from_slice(b"no certificate")).is_err());
    }

    #[test]
    fn the_time_that_is_left_is_rounded_down() {
        for (seconds, text) in [
            (0, "less than an hour"),
            (3600, "1 hour"),
            (86_399, "23 hours"),
            (86_400, "1 day"),
            (3 * 86_400 - 1, "2 days"),
        ] {
            assert_eq!(duration_text(Duration::from_secs(seconds)), text);
        }
    }
}
