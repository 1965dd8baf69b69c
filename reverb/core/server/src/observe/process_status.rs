// SPDX-License-Identifier: Apache-2.0
//! Resources of the server's process, from Linux's `/proc`. All 0 on other systems.

use std::fs;
use std::path::Path;

use reverb_wire::generated::reverb::ProcessStatus;

/// Unit of times in `/proc`: Linux reports 100 ticks per second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;
const NS_PER_SECOND: f64 = 1e9;

/// The status of this process.
pub(crate) fn process_status() -> ProcessStatus {
    read(Path::new("/proc"))
}

fn read(proc: &Path) -> ProcessStatus {
    let own = proc.join("self");
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let stat = text(&own.join("stat"));
    // The program's name may contain spaces. Fields after it are numbered from 3.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let field = |number: usize| -> f64 {
        fields.split(' ').nth(number - 3).and_then(|field| field.parse().ok()).unwrap_or(0.0)
    };
    let booted = number_after(&text(&proc.join("stat")), "btime ").unwrap_or(0);
    let started = match field(22) {
        0.0 => 0.0,
        ticks => booted as f64 + ticks / TICKS_PER_SECOND,
    };
    ProcessStatus {
        started_at_ns: (started * NS_PER_SECOND) as i64,
        cpu_s: (field(14) + field(15)) / TICKS_PER_SECOND,
        resident_bytes: number_after(&text(&own.join("status")), "VmRSS:").unwrap_or(0) * 1024,
        open_fds: fs::read_dir(own.join("fd")).map_or(0, |files| files.count() as i64),
        max_fds: number_after(&text(&own.join("limits")), "Max open files").unwrap_or(0),
    }
}

/// The first number of the line that begins with `name`.
fn number_after(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_proc() {
        let root = std::env::temp_dir().join(format!("reverb-proc-{}", std::process::id()));
        fs::create_dir_all(root.join("self/fd")).unwrap();
        let write = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
        write("stat", "cpu  1 2 3\nbtime 1700000000\n");
        let rest = "0 0 0 0 0 0 0 0 0 0 250 50 0 0 20 0 4 0 1234 9999 77";
        write("self/stat", &format!("42 (a program) (x) S {rest}"));
        write("self/status", "Name:\tx\nVmRSS:\t   2048 kB\n");
        write("self/limits", "Limit  Soft  Hard\nMax open files            1024  4096  files\n");
        for fd in ["0", "1", "2"] {
            write(&format!("self/fd/{fd}"), "");
        }
        let expected = ProcessStatus {
            started_at_ns: 1_700_000_012_340_000_000,
            cpu_s: 3.0,
            resident_bytes: 2 << 20,
            open_fds: 3,
            max_fds: 1024,
        };
        assert_eq!(read(&root), expected);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn without_proc_everything_is_0() {
        assert_eq!(read(Path::new("/nothing")), ProcessStatus::default());
    }
}
