// SPDX-License-Identifier: Apache-2.0
//! Reload of certificates and tokens while a server runs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use reverb_auth::Authenticator;
use reverb_base::{Error, Result};
use reverb_rpc::server::Stop;
use reverb_tls::{ServerTls, Standing, Validity};
use tokio::time::MissedTickBehavior;

use crate::service::throttle::{DAILY, Throttle};

/// Interval between checks of the files.
const INTERVAL: Duration = Duration::from_secs(10);

/// Files with the server's certificate and its tokens.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    tls: Option<Arc<ServerTls>>,
    authenticator: Option<Arc<Authenticator>>,
    tls_failures: Failures,
    token_failures: Failures,
    /// Limits repeated warnings about an expiring certificate.
    warned: Mutex<Throttle<(Validity, Standing), DAILY>>,
}

impl Rotation {
    pub(crate) fn new(
        tls: Option<Arc<ServerTls>>,
        authenticator: Option<Arc<Authenticator>>,
    ) -> Arc<Self> {
        Arc::new(Self { tls, authenticator, ..Self::default() })
    }

    /// Reads the files again, and uses each part that is valid. Logs and returns a line for each
    /// changed part; logs and counts each problem once. May block briefly.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with all problems. A part with a problem keeps its old contents.
    pub(crate) fn reload(&self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut problems = Vec::new();
        for part in [self.reload_tls(), self.reload_tokens()] {
            match part {
                Ok(more) => lines.extend(more),
                Err(error) => problems.push(error.message().to_owned()),
            }
        }
        if problems.is_empty() {
            return Ok(lines);
        }
        Err(Error::invalid_argument(problems.join("\n")))
    }

    fn reload_tls(&self) -> Result<Vec<String>> {
        let Some(tls) = &self.tls else { return Ok(Vec::new()) };
        let mut lines = Vec::new();
        let changed = self.tls_failures.count(tls.reload());
        if let Ok(true) = changed {
            lines.push(format!("TLS: the certificate in {} is in use", cert_path(tls)));
            lines.extend(tls.warning());
        }
        for line in &lines {
            tracing::info!("{line}");
        }
        self.warn_of_certificate(SystemTime::now());
        changed.map(|_| lines)
    }

    fn reload_tokens(&self) -> Result<Vec<String>> {
        let Some(authenticator) = &self.authenticator else { return Ok(Vec::new()) };
        if !self.token_failures.count(authenticator.reload())? {
            return Ok(Vec::new());
        }
        let line = format!("tokens: those in {} are in force", authenticator.path().display());
        tracing::info!("{line}");
        Ok(vec![line])
    }

    /// Checks the files until the server stops. Each part has its own task, because reading the
    /// files of the other may be slow.
    pub(crate) async fn watch(self: Arc<Self>, stop: Stop) {
        if self.tls.is_none() && self.authenticator.is_none() {
            return;
        }
        tokio::join!(self.look(&stop, Self::reload_tls), self.look(&stop, Self::reload_tokens));
    }

    async fn look(self: &Arc<Self>, stop: &Stop, reload: fn(&Self) -> Result<Vec<String>>) {
        let mut clock = tokio::time::interval(INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.or(clock.tick()).await.is_ok() {
            let rotation = Arc::clone(self);
            let looked = tokio::task::spawn_blocking(move || reload(&rotation));
            // Problems are already logged.
            if stop.or(looked).await.is_err() {
                return;
            }
        }
    }

    /// Warns if the certificate in use is invalid or expires soon: at once, then once a day.
    /// Returns true if it did.
    pub(crate) fn warn_of_certificate(&self, now: SystemTime) -> bool {
        let Some(tls) = &self.tls else { return false };
        let validity = tls.validity();
        let standing = validity.standing(now);
        let mut warned = self.warned.lock();
        if standing == Standing::Valid {
            warned.end();
            return false;
        }
        let is_due = warned.count((validity, standing), 1, now).is_some();
        if is_due {
            tracing::warn!("TLS: the certificate in {} {}", cert_path(tls), validity.describe(now));
        }
        is_due
    }

    /// Expiry of the certificate in use; `None` without TLS.
    pub(crate) fn certificate_expires_at(&self) -> Option<SystemTime> {
        self.tls.as_ref().map(|tls| tls.validity().not_after)
    }

    /// Number of failed reloads of each kind of file.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let tls = self.tls.as_ref().map(|_| ("tls", self.tls_failures.total()));
        let tokens = self.authenticator.as_ref().map(|_| ("tokens", self.token_failures.total()));
        tls.into_iter().chain(tokens)
    }
}

fn cert_path(tls: &ServerTls) -> impl std::fmt::Display {
    Path::display(&tls.files().cert)
}

/// Checks of one part. A problem counts once, however often it is found.
#[derive(Debug, Default)]
struct Failures(Mutex<(u64, Option<String>)>);

impl Failures {
    /// Records the result of a check. Logs and counts a problem that is new.
    fn count(&self, looked: Result<bool>) -> Result<bool> {
        let (total, last) = &mut *self.0.lock();
        let problem = looked.as_ref().err().map(|error| error.message().to_owned());
        if let Some(problem) = &problem
            && last.as_ref() != Some(problem)
        {
            *total += 1;
            let problem = problem.trim_end_matches('.');
            tracing::error!("{problem}. What was there before stays in force");
        }
        *last = problem;
        looked
    }

    fn total(&self) -> u64 {
        self.0.lock().0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use reverb_tls::{ServerFiles, self_signed};

    use super::*;

    /// Files of a server, in a directory that is removed on drop.
    struct Files(std::path::PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let name = format!("reverb-rotation-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            self_signed(&directory, &["localhost".to_owned()], 30).unwrap();
            let files = Self(directory);
            files.write("tokens", &line("a"));
            files
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap()
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join(name), text).unwrap();
        }

        fn rotation(&self) -> Arc<Rotation> {
            let cert = self.0.join("tls.crt");
            let key = self.0.join("tls.key");
            let tls = ServerTls::open(ServerFiles { cert, key, client_ca: None }).unwrap();
            Rotation::new(Some(tls), Some(Authenticator::open(self.0.join("tokens")).unwrap()))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn line(name: &str) -> String {
        format!("{name}  sample  *  sha256:{}\n", "0".repeat(64))
    }

    fn failures(rotation: &Rotation) -> [u64; 2] {
        let counts: Vec<_> = rotation.failures().collect();
        let [("tls", tls), ("tokens", tokens)] = counts[..] else { panic!("{counts:?}") };
        [tls, tokens]
    }

    #[test]
    fn a_problem_counts_once_until_it_is_another_or_comes_back() {
        let files = Files::new("failures");
        let rotation = files.rotation();
        let key = files.read("tls.key");
        assert_eq!(rotation.reload().unwrap(), [""; 0]);
        assert_eq!(failures(&rotation), [0, 0]);
        files.write("tls.key", "");
        files.write("tokens", "half a line");
        for _ in 0..2 {
            let error = rotation.reload().unwrap_err();
            assert!(error.message().contains("tls.key has no private key"), "{error}");
            assert!(error.message().contains("line 1"), "{error}");
            assert_eq!(failures(&rotation), [1, 1]);
        }
        files.write("tls.key", &files.read("ca.key"));
        rotation.reload().unwrap_err();
        assert_eq!(failures(&rotation), [2, 1], "another problem of one part");
        files.write("tls.key", &key);
        files.write("tokens", &line("b"));
        assert_eq!(rotation.reload().unwrap().len(), 1, "only tokens have changed");
        files.write("tls.key", "");
        rotation.reload().unwrap_err();
        assert_eq!(failures(&rotation), [3, 1], "it came back");
    }

    #[test]
    fn only_files_that_there_are_have_counts() {
        let rotation = Rotation::new(None, None);
        assert_eq!(rotation.failures().count(), 0);
        assert_eq!(rotation.certificate_expires_at(), None);
        assert!(!rotation.warn_of_certificate(SystemTime::now()));
    }

    #[test]
    fn a_certificate_that_runs_out_is_told_of_once_a_day_and_when_it_has_expired() {
        let files = Files::new("expiry");
        let rotation = files.rotation();
        let hour = Duration::from_secs(3600);
        let end = rotation.certificate_expires_at().unwrap();
        let warned: Vec<_> = (0..15 * 24)
            .rev()
            .filter(|hours| rotation.warn_of_certificate(end - hour * *hours))
            .collect();
        // Hours before the end: the last third of the 30 days.
        assert_eq!(warned, [240, 216, 192, 168, 144, 120, 96, 72, 48, 24, 0]);
        assert!(rotation.warn_of_certificate(end + hour));
        assert!(!rotation.warn_of_certificate(end + hour * 2));

        // Another certificate gets a warning of its own.
        let other = Files::new("expiry-new");
        files.write("tls.crt", &other.read("tls.crt"));
        files.write("tls.key", &other.read("tls.key"));
        rotation.reload().unwrap();
        let new_end = rotation.certificate_expires_at().unwrap();
        assert!(!rotation.warn_of_certificate(SystemTime::now()));
        assert!(rotation.warn_of_certificate(new_end - hour));
    }
}
