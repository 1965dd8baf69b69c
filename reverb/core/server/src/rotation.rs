// SPDX-License-Identifier: Apache-2.0
//! Certificates and tokens that change while a server runs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_auth::Authenticator;
use reverb_data::{Error, Result};
use reverb_rpc::server::Stop;
use reverb_tls::ServerTls;
use tokio::time::MissedTickBehavior;

/// How often a server looks whether its files have changed.
const INTERVAL: Duration = Duration::from_secs(10);

/// The files that say who may call a server, and how it proves who it is.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) authenticator: Option<Arc<Authenticator>>,
    /// The last problem that was logged: a broken file is told of once.
    told: Mutex<Option<String>>,
}

impl Rotation {
    pub(crate) fn new(
        tls: Option<Arc<ServerTls>>,
        authenticator: Option<Arc<Authenticator>>,
    ) -> Arc<Self> {
        Arc::new(Self { tls, authenticator, told: Mutex::default() })
    }

    /// Reads the files again. Each part changes if it is good; logs and returns a line for each
    /// that has changed. May block for a moment.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with all problems. A part with a problem stays as it was.
    pub(crate) fn reload(&self) -> Result<Vec<String>> {
        let (mut lines, mut problems) = (Vec::new(), Vec::new());
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(false) => {}
                Ok(true) => {
                    let path = tls.files().cert.display();
                    lines.push(format!("TLS: the certificate in {path} is in use"));
                    lines.extend(tls.warning());
                }
                Err(error) => problems.push(error.message().to_owned()),
            }
        }
        if let Some(authenticator) = &self.authenticator {
            match authenticator.reload() {
                Ok(false) => {}
                Ok(true) => {
                    let path = authenticator.path().display();
                    lines.push(format!("tokens: those in {path} are in force"));
                }
                Err(error) => problems.push(error.message().to_owned()),
            }
        }
        for line in &lines {
            tracing::info!("{line}");
        }
        let problems = problems.join("\n");
        if problems.is_empty() {
            *self.told.lock() = None;
            return Ok(lines);
        }
        Err(Error::invalid_argument(problems))
    }

    /// Looks at the files until the server stops.
    pub(crate) async fn watch(self: Arc<Self>, stop: Stop) {
        if self.tls.is_none() && self.authenticator.is_none() {
            return;
        }
        let mut clock = tokio::time::interval(INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.or(clock.tick()).await.is_ok() {
            let rotation = Arc::clone(&self);
            // Files may be slow.
            let looked = tokio::task::spawn_blocking(move || rotation.reload()).await;
            if let Ok(Err(error)) = looked {
                self.tell(&error);
            }
        }
    }

    fn tell(&self, error: &Error) {
        let mut told = self.told.lock();
        if told.as_deref() != Some(error.message()) {
            tracing::error!("{error}. What was there before stays in force");
            *told = Some(error.message().to_owned());
        }
    }
}
