// SPDX-License-Identifier: Apache-2.0
//! Keepalive: how an end of a connection notices that the other one has gone without a word.
//!
//! A machine that loses power or its network closes no connection. Between two ends of this
//! package, each sends a PING of HTTP/2 from time to time while a call is open. gRPC's own library
//! closes a connection after a few of them (`too_many_pings`), so peers that have not said that
//! they are ours are left to TCP, which notices later and cannot see a process that hangs.

mod liveness;

pub use liveness::{Liveness, OpenCall, WatchedSocket};

use std::pin::pin;
use std::time::Duration;

use h2::{Ping, PingPong};
use http::HeaderValue;
use reverb_data::{Error, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior};

/// What both ends call themselves: clients as `user-agent`, servers as `server`.
pub const PRODUCT: &str = concat!("grpc-rust-reverb/", env!("CARGO_PKG_VERSION"));

/// The part of it that all versions share.
const PRODUCT_NAME: &[u8] = b"grpc-rust-reverb/";

/// A connection on which nothing came this long is probed by TCP.
const TCP_PROBE_AFTER: Duration = Duration::from_secs(10);

/// Time from one probe to the next.
const TCP_PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Probes without an answer that end a connection.
const TCP_PROBES: u32 = 4;

/// What is sent and not acknowledged for this long ends a connection. Linux applies it to probes as
/// well, in place of their number, and to a peer that acknowledges but has no room for more. It is
/// compared when a probe is due, so it is a little less than what all probes take.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(28);

/// The time to answer is counted in so many parts, see `Keepalive::is_answered`.
const PARTS: u32 = 5;

/// Shortest and longest interval and timeout, in seconds.
const LIMITS_S: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// When to ask a peer whether it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Time from one PING to the next while a call is open; `None`: none are sent.
    pub interval: Option<Duration>,
    /// A peer that is silent for so long after a PING is gone.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Some(Duration::from_secs(10)), timeout: Duration::from_secs(5) }
    }
}

impl Keepalive {
    /// The same in seconds, as users write them.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the option, its value and its limits.
    pub fn from_seconds(keepalive_s: Option<f64>, keepalive_timeout_s: f64) -> Result<Self> {
        let check = |name: &str, or: &str, seconds: f64| {
            if LIMITS_S.contains(&seconds) {
                return Ok(Duration::from_secs_f64(seconds));
            }
            let (least, most) = (LIMITS_S.start(), LIMITS_S.end());
            Err(Error::invalid_argument(format!(
                "{name} must be from {least} to {most} seconds{or}, got {seconds}"
            )))
        };
        let or = ", or None for no pings";
        Ok(Self {
            interval: keepalive_s.map(|it| check("keepalive_s", or, it)).transpose()?,
            timeout: check("keepalive_timeout_s", "", keepalive_timeout_s)?,
        })
    }

    /// Makes TCP notice a peer that is gone, in about half a minute. Where an option cannot be had,
    /// the connection works without.
    pub fn set_tcp_options(self, socket: &TcpStream) {
        let socket = SockRef::from(socket);
        let keepalive = TcpKeepalive::new().with_time(TCP_PROBE_AFTER);
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", windows))]
        let keepalive = keepalive.with_interval(TCP_PROBE_INTERVAL).with_retries(TCP_PROBES);
        let _ = socket.set_tcp_keepalive(&keepalive);
        // A user who grants a frozen peer more time means it for TCP too.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket.set_tcp_user_timeout(Some(
            TCP_USER_TIMEOUT.max(self.interval.unwrap_or_default() + self.timeout),
        ));
    }

    /// Sends pings while a call is open and the peer is one of ours. Resolves when one was not
    /// answered, and never on a connection that ends in another way.
    pub async fn watch(self, mut pings: PingPong, liveness: &Liveness) {
        let Some(interval) = self.interval else { return std::future::pending().await };
        let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if liveness.is_to_be_pinged() && !self.is_answered(&mut pings, liveness).await {
                liveness.set_gone();
                return;
            }
        }
    }

    /// Whether the peer answers a PING. Anything else that it sends or takes meanwhile shows that
    /// it is there: on a slow line the PING may wait behind megabytes.
    ///
    /// Time in which this process itself did not run does not count. So the timeout is waited for
    /// in parts, and a part that took too long is waited for again.
    async fn is_answered(self, pings: &mut PingPong, liveness: &Liveness) -> bool {
        liveness.forget();
        let mut pong = pin!(pings.ping(Ping::opaque()));
        let part = self.timeout / PARTS;
        let mut silent_parts = 0;
        while silent_parts < PARTS {
            let began = Instant::now();
            match tokio::time::timeout(part, &mut pong).await {
                Ok(Ok(_)) => return true,
                // The connection has ended, and whoever drives it knows why.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) if liveness.forget() => silent_parts = 0,
                Err(_) if began.elapsed() > 2 * part => {}
                Err(_) => silent_parts += 1,
            }
        }
        false
    }
}

/// Whether a `user-agent` or `server` header is one of this package.
pub fn is_ours(product: Option<&HeaderValue>) -> bool {
    product.is_some_and(|it| it.as_bytes().starts_with(PRODUCT_NAME))
}

#[cfg(test)]
mod tests;
