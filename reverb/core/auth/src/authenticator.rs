// SPDX-License-Identifier: Apache-2.0
//! The tokens file of a running server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use reverb_base::{Error, Result, Unreadable, read_file};

use crate::access::Access;
use crate::access_list::AccessList;
use crate::refusal::{Reason, Refusal};

/// Maximum size of a tokens file: a hundred thousand lines.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Identifies callers by the content of a tokens file, which it reads again on request.
#[derive(Debug)]
pub struct Authenticator {
    path: PathBuf,
    current: RwLock<Current>,
    /// Held while the file is read again, so that the last read takes effect last.
    reloading: Mutex<()>,
    failures: [AtomicU64; Reason::ALL.len()],
}

#[derive(Debug)]
struct Current {
    text: String,
    list: Arc<AccessList>,
}

impl Authenticator {
    /// Reads a tokens file. A warning is logged if others may write to it, or read it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the file, every problem, and its line.
    pub fn open(path: impl Into<PathBuf>) -> Result<Arc<Self>> {
        let path = path.into();
        let text = read(&path)?;
        let list = parse(&path, &text)?;
        warn_of_others(&path);
        let current = RwLock::new(Current { text, list });
        let reloading = Mutex::new(());
        Ok(Arc::new(Self { path, current, reloading, failures: Default::default() }))
    }

    /// The tokens file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again; returns true if it has changed. Calls that begin from now on are
    /// checked by the new content; use [`Authenticator::still_gives`] for open ones.
    ///
    /// # Errors
    ///
    /// Those of [`Authenticator::open`]. The previous content stays in force then.
    pub fn reload(&self) -> Result<bool> {
        let _reloading = self.reloading.lock();
        let text = read(&self.path)?;
        if text == self.current.read().text {
            return Ok(false);
        }
        let list = parse(&self.path, &text)?;
        warn_of_others(&self.path);
        *self.current.write() = Current { text, list };
        Ok(true)
    }

    /// Identifies a caller; see [`AccessList::authenticate`]. Counts nothing.
    ///
    /// # Errors
    ///
    /// Reason of the refusal.
    pub fn authenticate(
        &self,
        token: Option<&str>,
        certificate_names: &[String],
    ) -> std::result::Result<Arc<Access>, Refusal> {
        let list = Arc::clone(&self.current.read().list);
        list.authenticate(token, certificate_names, SystemTime::now())
    }

    /// Returns true if the holder of this access would get the same access now: its entry was
    /// neither deleted nor changed, and has not expired.
    pub fn still_gives(&self, access: &Access) -> bool {
        let list = Arc::clone(&self.current.read().list);
        list.still_gives(access, SystemTime::now())
    }

    /// Counts a caller that was refused.
    pub fn count_failure(&self, reason: Reason) {
        self.failures[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of refused callers, by reason. The counts only grow.
    pub fn failures(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.failures.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

fn parse(path: &Path, text: &str) -> Result<Arc<AccessList>> {
    AccessList::parse(text).map(Arc::new).map_err(|error| {
        let lines = error.message().lines().map(|line| format!("{}: {line}", path.display()));
        Error::invalid_argument(lines.collect::<Vec<_>>().join("\n")).context("tokens")
    })
}

fn read(path: &Path) -> Result<String> {
    let problem = |what: &dyn std::fmt::Display| {
        Error::invalid_argument(format!("tokens: {}: {what}.", path.display()))
    };
    let bytes = read_file(path, MAX_FILE_BYTES).map_err(|why| match why {
        Unreadable::TooLarge(bytes) => {
            problem(&format_args!("it is larger than {} MiB", bytes >> 20))
        }
        why => problem(&format_args!("it {why}")),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|&byte| byte == b'\n').count();
        problem(&format_args!("line {line}: it is not UTF-8"))
    })
}

/// Warns if others may write to the file, because they could give themselves any right, or read it:
/// it holds names, rights and hashes of tokens. `reverb token` prints that, too.
#[cfg(unix)]
fn warn_of_others(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(metadata) = std::fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if let Some(problem) = problem_of_mode(mode) {
        let path = path.display();
        tracing::warn!("tokens: {path} has mode {mode:04o}: {problem}: chmod 600 {path}");
    }
}

#[cfg(unix)]
fn problem_of_mode(mode: u32) -> Option<&'static str> {
    if mode & 0o022 != 0 {
        Some("other users may write to it, and so give themselves any right")
    } else if mode & 0o004 != 0 {
        // Its group may: mounts of secrets are for a group.
        Some("other users may read it, with its names, rights and hashes")
    } else {
        None
    }
}

#[cfg(not(unix))]
fn warn_of_others(_: &Path) {}

#[cfg(test)]
mod tests {
    use reverb_base::ErrorKind;

    use super::*;
    use crate::{Right, TableSet, hash_line, new_token};

    struct TestFile(PathBuf);

    impl TestFile {
        fn new(name: &str, text: impl AsRef<[u8]>) -> Self {
            let name = format!("reverb-auth-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).unwrap();
            Self(path)
        }

        fn write(&self, text: impl AsRef<[u8]>) {
            std::fs::write(&self.0, text).unwrap();
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn line(token: &str) -> String {
        let rights = [Right::Sample].into_iter().collect();
        hash_line("learner", rights, &TableSet::All, token).unwrap()
    }

    #[test]
    fn tokens_are_rotated_without_a_gap() {
        let old = new_token().unwrap();
        let new = new_token().unwrap();
        let file = TestFile::new("rotated", line(&old));
        let tokens = Authenticator::open(&file.0).unwrap();
        let is_known = |token: &str| tokens.authenticate(Some(token), &[]).is_ok();
        assert!(is_known(&old) && !is_known(&new));
        assert!(!tokens.reload().unwrap());
        file.write(format!("{}\n{}", line(&old), line(&new)));
        assert!(tokens.reload().unwrap());
        assert!(is_known(&old) && is_known(&new));
        file.write(line(&new));
        assert!(tokens.reload().unwrap() && !tokens.reload().unwrap());
        assert!(!is_known(&old) && is_known(&new));
    }

    #[test]
    fn a_bad_file_leaves_the_old_content() {
        let token = new_token().unwrap();
        let file = TestFile::new("bad", line(&token));
        let tokens = Authenticator::open(&file.0).unwrap();
        for bad in ["learner sample *", "", "# nobody\n"] {
            file.write(bad);
            let error = tokens.reload().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let path = file.0.display().to_string();
            assert!(error.message().starts_with(&format!("tokens: {path}: ")), "{error}");
            assert!(tokens.authenticate(Some(&token), &[]).is_ok());
        }
        std::fs::remove_file(&file.0).unwrap();
        let error = tokens.reload().unwrap_err();
        assert!(error.message().contains("cannot be read: No such file"), "{error}");
        assert!(tokens.authenticate(Some(&token), &[]).is_ok());
    }

    #[test]
    fn what_is_no_text_file_is_refused() {
        let error = Authenticator::open(std::env::temp_dir()).unwrap_err();
        assert!(error.message().ends_with(": it is not a file."), "{error}");
        let file = TestFile::new("binary", b"# one\n\xff");
        let error = Authenticator::open(&file.0).unwrap_err();
        assert!(error.message().ends_with(": line 2: it is not UTF-8."), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_write_or_read_is_noticed() {
        for mode in [0o600, 0o440, 0o711] {
            assert_eq!(problem_of_mode(mode), None, "{mode:o}");
        }
        for (mode, what) in [(0o644, "read"), (0o664, "write"), (0o602, "write")] {
            let problem = problem_of_mode(mode).unwrap();
            assert!(problem.starts_with(&format!("other users may {what}")), "{mode:o} {problem}");
        }
    }

    #[test]
    fn failures_are_counted_by_their_reason() {
        let file = TestFile::new("counted", line("a token"));
        let tokens = Authenticator::open(&file.0).unwrap();
        tokens.count_failure(Reason::Unknown);
        tokens.count_failure(Reason::Unknown);
        tokens.count_failure(Reason::Denied);
        let counts: Vec<_> = tokens.failures().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(Reason::Unknown, 2), (Reason::Denied, 1)]);
    }
}
