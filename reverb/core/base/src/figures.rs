// SPDX-License-Identifier: Apache-2.0
//! Numbers and times in sentences for people.

use std::fmt;
use std::time::Duration;

use crate::error::grouped;

/// A bound of a rate limiter. The largest doubles have 309 digits and mean "none".
pub struct Bound(pub f64);

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.abs() >= f64::MAX { f.write_str("none") } else { write!(f, "{}", self.0) }
    }
}

/// Count for people: `1,234`. Negative numbers become 0.
pub fn count(number: i64) -> String {
    grouped(usize::try_from(number).unwrap_or(0))
}

/// Count with its noun and verb: `1 insert is`, `2 inserts are`.
pub fn plural(number: i64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Number with one digit after the point below 10, unless that is 0, and none above.
pub fn number(value: f64) -> String {
    if value >= 10.0 {
        return grouped(value.round() as usize);
    }
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), ToOwned::to_owned)
}

/// Time in one unit: `41 s`.
pub fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.0} h", seconds / 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_people_write_them() {
        let numbers = [0.0, 0.25, 3.0, 9.5, 10.4, 12_345.6].map(number);
        assert_eq!(numbers, ["0", "0.2", "3", "9.5", "10", "12,346"]);
        let times = [0.012, 1.0, 41.2, 125.0, 7200.0]
            .map(|duration| seconds(Duration::from_secs_f64(duration)));
        assert_eq!(times, ["12 ms", "1.0 s", "41 s", "2 min", "2 h"]);
        assert_eq!(plural(1, "insert is", "inserts are"), "1 insert is");
        assert_eq!(plural(1234, "insert is", "inserts are"), "1,234 inserts are");
        assert_eq!(count(-1), "0");
        assert_eq!([Bound(-f64::MAX), Bound(2.5)].map(|bound| bound.to_string()), ["none", "2.5"]);
    }
}
