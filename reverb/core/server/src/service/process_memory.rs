// SPDX-License-Identifier: Apache-2.0
//! Memory limit of this process: the memory of the machine, or less by control groups.

use std::path::{Path, PathBuf};

/// Smallest number that means "unlimited": old control groups write the largest page count.
const NO_LIMIT: u64 = 1 << 60;

/// Bytes that this process may use: the smallest limit of its control groups, or the memory of the
/// machine. `None` if the system does not report it.
pub fn process_memory() -> Option<u64> {
    limit(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn limit(proc: &Path, groups: &Path) -> Option<u64> {
    let machine = std::fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| total(&text));
    let memberships = std::fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    memberships.lines().flat_map(|line| group_limits(line, groups)).chain(machine).min()
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
        let text = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
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

        fn limit(&self) -> Option<u64> {
            limit(&self.0.join("proc"), &self.0.join("sys"))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_limit_above_the_process_counts() {
        let nested = [("a/b/memory.max", "max\n"), ("a/memory.max", "9000000\n")];
        assert_eq!(Files::new("v2", "0::/a/b\n", &nested).limit(), Some(9_000_000));
        let old = [("memory/c/memory.limit_in_bytes", "8000000\n")];
        let groups = "4:cpu,cpuacct:/c\n5:memory:/c\n";
        assert_eq!(Files::new("v1", groups, &old).limit(), Some(8_000_000));
    }

    #[test]
    fn without_a_limit_it_is_the_machine() {
        let large = [("memory/c/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(Files::new("large", "5:memory:/c\n", &large).limit(), Some(16384 * 1024));
        assert_eq!(Files::new("none", "", &[]).limit(), Some(16384 * 1024));
        assert_eq!(limit(Path::new("/nothing"), Path::new("/nothing")), None);
    }

    #[test]
    fn a_container_that_sees_its_group_as_the_root_finds_the_limit() {
        let root = [("memory.max", "7000000\n")];
        assert_eq!(Files::new("root", "0::/docker/abc\n", &root).limit(), Some(7_000_000));
    }
}
