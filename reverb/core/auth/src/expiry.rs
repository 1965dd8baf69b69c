// SPDX-License-Identifier: Apache-2.0
//! Expiry time of a tokens-file entry.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_S: u64 = 86_400;

/// A time in UTC, as written in the file: `2027-01-31T00:00:00Z`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expiry {
    text: String,
    at: SystemTime,
}

impl Expiry {
    /// Parses a time; `None` if it is before 1970, invalid, or has another form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let form = b"dddd-dd-ddTdd:dd:ddZ";
        let has_form = text.len() == form.len()
            && text.bytes().zip(form).all(|(byte, &wanted)| match wanted {
                b'd' => byte.is_ascii_digit(),
                other => byte == other,
            });
        if !has_form {
            return None;
        }
        let number = |from: usize, to: usize| text[from..to].parse::<u64>().ok();
        let year = number(0, 4)?;
        let month = number(5, 7)?;
        let day = number(8, 10)?;
        let hour = number(11, 13)?;
        let minute = number(14, 16)?;
        let second = number(17, 19)?;
        let is_real = year >= 1970
            && (1..=12).contains(&month)
            && (1..=days_of(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        let seconds = days_before(year, month) + day.checked_sub(1)?;
        let seconds = seconds * DAY_S + hour * 3600 + minute * 60 + second;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
        is_real.then(|| Self { text: text.to_owned(), at })
    }

    pub(crate) fn is_past(&self, now: SystemTime) -> bool {
        now >= self.at
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970 to the beginning of a month.
fn days_before(year: u64, month: u64) -> u64 {
    let years = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum::<u64>();
    years + (1..month).map(|month| days_of(year, month)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2024-02-29T23:59:59Z", 1_709_251_199),
            ("2026-11-22T14:03:12Z", 1_795_356_192),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            let until = Expiry::parse(text).unwrap();
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert!(
                until.is_past(at) && (seconds == 0 || !until.is_past(at - Duration::from_nanos(1)))
            );
            assert_eq!(until.to_string(), text);
        }
    }

    #[test]
    fn other_forms_and_days_that_do_not_exist_are_none() {
        for text in [
            "",
            "2027-01-31",
            "2027-01-31T00:00:00",
            "2027-01-31T00:00:00+01:00",
            "2027-01-31 00:00:00Z",
            "2027-02-29T00:00:00Z",
            "2027-00-01T00:00:00Z",
            "2027-13-01T00:00:00Z",
            "2027-01-00T00:00:00Z",
            "2027-01-01T24:00:00Z",
            "2027-01-01T00:60:00Z",
            "1969-12-31T00:00:00Z",
            "２027-01-01T00:00Z",
        ] {
            assert_eq!(Expiry::parse(text), None, "{text}");
        }
    }
}
