// SPDX-License-Identifier: Apache-2.0
//! Memory limit of this process: the memory of the machine, or less by control groups.

use std::path::{Path, PathBuf};

use reverb_base::read_file;

/// Smallest number that means "unlimited": old control groups write the largest page count.
const NO_LIMIT: u64 = 1 << 60;

/// What is read of a file; longer ones are passed over.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Bytes that this process may use: the smallest limit of its control groups, or the memory of the
/// machine. `None` if the system does not report it.
pub fn process_memory() -> Option<u64> {
    process_limits().into_iter().flatten().min()
}

/// The smallest limit of the control groups of this process, which an operator may change, and the
/// memory of the machine; `None` without a limit, or if the system does not report it.
pub(crate) fn process_limits() -> [Option<u64>; 2] {
    limits(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn limits(proc: &Path, groups: &Path) -> [Option<u64>; 2] {
    let memberships = text(&proc.join("self/cgroup"));
    let of_groups = memberships.lines().flat_map(|line| group_limits(line, groups)).min();
    [of_groups, total(&text(&proc.join("meminfo")))]
}

/// A small file; empty if it cannot be read.
fn text(path: &Path) -> String {
    let content = read_file(path, MAX_FILE_BYTES).unwrap_or_default();
    String::from_utf8(content).unwrap_or_default()
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The limits of a control group and of those above it. `line` is `number:controllers:path`.
fn group_limits(line: &str, groups: &Path) -> Vec<u64> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let (root, file) = if controllers.is_empty() {
        (groups.to_owned(), "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        (groups.join("memory"), "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let mut directory: PathBuf = root.join(path.trim_start_matches('/'));
    let mut limits = Vec::new();
    // A container may see its own control group as the root, unlike the path in `/proc`.
    while directory.starts_with(&root) {
        let text = text(&directory.join(file));
        limits.extend(text.trim().parse().ok().filter(|&limit: &u64| limit < NO_LIMIT));
        if !directory.pop() {
            break;
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, cgroup: &str, limits: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("reverb-{}-{name}", std::process::id()));
            let files = Self(root);
            files.write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
            files.write("proc/self/cgroup", cgroup);
            for (path, text) in limits {
                files.write(&format!("sys/{path}"), text);
            }
            files
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn limits(&self) -> [Option<u64>; 2] {
            limits(&self.0.join("proc"), &self.0.join("sys"))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_limit_above_the_process_counts() {
        let long = format!("1000{}", " ".repeat(MAX_FILE_BYTES as usize));
        for (name, groups, files, expected) in [
            (
                "v2",
                "0::/a/b\n",
                [("a/b/memory.max", "max\n"), ("a/memory.max", "9000000\n")],
                Some(9_000_000),
            ),
            (
                "v1",
                "4:cpu,cpuacct:/c\n5:memory:/c\n",
                [("memory/c/memory.limit_in_bytes", "8000000\n"), ("memory.max", "7\n")],
                Some(8_000_000),
            ),
            // A container may see its own control group as the root, unlike the path in `/proc`.
            (
                "root",
                "0::/docker/abc\n",
                [("memory.max", "7000000\n"), ("docker/memory.max", "none of ours")],
                Some(7_000_000),
            ),
            (
                "large",
                "5:memory:/c\n",
                [("memory/c/memory.limit_in_bytes", "9223372036854771712\n"), ("memory.max", "7")],
                None,
            ),
            ("long", "0::/a\n", [("a/memory.max", &*long), ("memory.max", "max")], None),
            ("none", "", [("memory.max", "7"), ("a/memory.max", "7")], None),
            ("odd", "0:\n0::/../a\n\u{fffd}", [("memory.max", "-1"), ("a/memory.max", "")], None),
        ] {
            let files = Files::new(name, groups, &files);
            assert_eq!(files.limits(), [expected, Some(16384 * 1024)], "{name}");
        }
        assert_eq!(limits(Path::new("/nothing"), Path::new("/nothing")), [None, None]);
    }
}
