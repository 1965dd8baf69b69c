// SPDX-License-Identifier: Apache-2.0
//! Numbers of bytes, formatted for people.

const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

/// The number with a unit, for example `4.0 GiB`.
pub fn describe(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be written as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn sizes_have_a_unit_and_one_digit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (512 << 20, "512.0 MiB"),
            (10_093_173_145, "9.4 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(describe(bytes), text);
        }
    }
}
