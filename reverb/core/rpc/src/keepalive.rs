// SPDX-License-Identifier: Apache-2.0
//! Keepalive: detects that the other end of a connection is gone.
//!
//! A machine that loses power or its network does not close its connections. If both ends belong to
//! this package, each sends an HTTP/2 PING at intervals while a call is open. gRPC's own library
//! closes a connection after a few PINGs (`too_many_pings`), so peers that have not identified
//! themselves as ours get none. For them there is only TCP keepalive, which takes longer and does
//! not detect a process that hangs.

mod liveness;

pub use liveness::{Liveness, OpenCall, WatchedSocket};

use std::pin::pin;
use std::time::Duration;

use h2::{Ping, PingPong};
use http::HeaderValue;
use reverb_base::{Error, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior};

/// The product name of both ends: clients send it as `user-agent`, servers as `server`.
pub const PRODUCT: &str = concat!("grpc-rust-reverb/", env!("CARGO_PKG_VERSION"));

/// Metadata with the client's name, for people who look at the server.
pub const CLIENT_NAME: &str = "reverb-client";

/// Longer names of clients are cut.
pub(crate) const MAX_CLIENT_NAME_BYTES: usize = 256;

/// The prefix of `PRODUCT` that all versions share.
const PRODUCT_NAME: &[u8] = b"grpc-rust-reverb/";

/// Idle time after which TCP probes a connection.
const TCP_PROBE_AFTER: Duration = Duration::from_secs(10);

const TCP_PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Number of unanswered probes after which TCP closes a connection.
const TCP_PROBES: u32 = 4;

/// Time for which data may stay unacknowledged before TCP closes a connection. Linux applies it to
/// probes too, instead of their number, and to a peer that acknowledges but has no room for more.
/// It is checked when a probe is due, so it is slightly less than the time of all probes.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(28);

/// The timeout is measured in this many parts, see `Keepalive::is_answered`.
const PARTS: u32 = 5;

/// Shortest and longest interval and timeout, in seconds.
const LIMITS_S: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Intervals of PINGs, and the time limit for their answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Time between two PINGs while a call is open. `None` sends none.
    pub interval: Option<Duration>,
    /// A peer that is silent for this long after a PING counts as gone.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Some(Duration::from_secs(10)), timeout: Duration::from_secs(5) }
    }
}

impl Keepalive {
    /// Makes the options from seconds.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the option, its value and its limits.
    pub fn from_seconds(keepalive_s: Option<f64>, keepalive_timeout_s: f64) -> Result<Self> {
        let check = |name: &str, or: &str, seconds: f64| {
            if LIMITS_S.contains(&seconds) {
                return Ok(Duration::from_secs_f64(seconds));
            }
            let least = LIMITS_S.start();
            let most = LIMITS_S.end();
            Err(Error::invalid_argument(format!(
                "{name} must be from {least} to {most} seconds{or}, got {seconds}"
            )))
        };
        let or = ", or None for no pings";
        Ok(Self {
            interval: keepalive_s.map(|seconds| check("keepalive_s", or, seconds)).transpose()?,
            timeout: check("keepalive_timeout_s", "", keepalive_timeout_s)?,
        })
    }

    /// Sets TCP keepalive, which detects a lost peer within about half a minute. An option that the
    /// system does not support is skipped.
    pub fn set_tcp_options(self, socket: &TcpStream) {
        let socket = SockRef::from(socket);
        let keepalive = TcpKeepalive::new().with_time(TCP_PROBE_AFTER);
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", windows))]
        let keepalive = keepalive.with_interval(TCP_PROBE_INTERVAL).with_retries(TCP_PROBES);
        let _ = socket.set_tcp_keepalive(&keepalive);
        // If the user gives a frozen peer more time, TCP must do so too.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket.set_tcp_user_timeout(Some(
            TCP_USER_TIMEOUT.max(self.interval.unwrap_or_default() + self.timeout),
        ));
    }

    /// Sends pings while a call is open and the peer is one of ours. Resolves when a ping was not
    /// answered. Never resolves if the connection ends in another way.
    pub async fn watch(self, mut pings: PingPong, liveness: &Liveness) {
        let Some(interval) = self.interval else { return std::future::pending().await };
        let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if liveness.needs_pings() && !self.is_answered(&mut pings, liveness).await {
                liveness.set_gone();
                return;
            }
        }
    }

    /// Returns true if the peer answers a PING. Any data that it sends or acknowledges meanwhile
    /// counts as a sign of life, because on a slow network the PING may be queued behind megabytes.
    ///
    /// Time in which this process itself did not run does not count. So the timeout is split into
    /// parts, and a part that took too long is repeated.
    async fn is_answered(self, pings: &mut PingPong, liveness: &Liveness) -> bool {
        liveness.take_heard();
        let mut pong = pin!(pings.ping(Ping::opaque()));
        let part = self.timeout / PARTS;
        let mut silent_parts = 0;
        while silent_parts < PARTS {
            let began = Instant::now();
            match tokio::time::timeout(part, &mut pong).await {
                Ok(Ok(_)) => return true,
                // The connection has ended. The task that drives it has the reason.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) if liveness.take_heard() => silent_parts = 0,
                Err(_) if began.elapsed() > 2 * part => {}
                Err(_) => silent_parts += 1,
            }
        }
        false
    }
}

/// Returns true if a `user-agent` or `server` header is from this package.
pub fn is_ours(product: Option<&HeaderValue>) -> bool {
    product.is_some_and(|product| product.as_bytes().starts_with(PRODUCT_NAME))
}

#[cfg(test)]
mod tests;
