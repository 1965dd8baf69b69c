// SPDX-License-Identifier: Apache-2.0
//! The HTTP port of a server: metrics, probes and a page. It opens before the tables are loaded.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use percent_encoding::percent_decode_str;
use reverb_auth::{Right, bearer_token, password};
use reverb_base::{ErrorKind, Result};
use reverb_http::{AllowedHosts, Answer, Request, Site, StatusCode};
use reverb_rpc::server::{max_files, reserved_files};
use reverb_tls::ServerTls;
use reverb_wire::generated::reverb::StatusRequest;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::observe::metrics::{Format, metrics};
use crate::observe::page;
use crate::observe::status::json;
use crate::observe::timeline::TablePoint;
use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::done::{Done, DoneGuard};
use crate::service::server::listen;
use crate::service::status::status;

/// Largest number of connections: at most half of the open files that are reserved for this and
/// other purposes. A scraper, a probe and some pages need ten.
const MAX_CONNECTIONS: usize = 64;

/// Answer of a port that does not read tokens.
const ONLY_PROBES: &str = "This port serves only /livez, /readyz and /metrics: the server has \
                           tokens, and what is sent to this port can be read on the way, as it has \
                           no TLS and others than this machine reach it.";

/// Answer to a request without a token.
const WANTS_TOKEN: &str = "This server wants a token, as the password (the user may be empty) or as \
                           Authorization: Bearer TOKEN.";

/// Answer to a request without a certificate.
const WANTS_CERTIFICATE: &str = "This server asks its clients for a certificate. Without one there \
                                 are only /livez, /readyz and /metrics.";

/// An open HTTP port, closed on drop.
#[derive(Debug)]
pub struct HttpPort {
    port: u16,
    pages: Arc<Pages>,
    /// Closes the port when dropped.
    stop: Option<oneshot::Sender<()>>,
    done: Arc<Done>,
}

impl HttpPort {
    /// Opens the port, with or without TLS, and answers on `runtime`. Reports "loading" until a
    /// server is attached.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the port cannot be opened.
    pub fn open(
        host: &str,
        port: u16,
        tls: Option<Arc<ServerTls>>,
        runtime: &Handle,
    ) -> Result<Self> {
        let opened = listen(Some(host), port, runtime);
        let (listener, address) = opened.map_err(|error| error.context("http_port"))?;
        let is_private = tls.is_some() || address.ip().is_loopback();
        let wants_certificate = tls.as_ref().is_some_and(|tls| tls.asks_for_certificates());
        let pages = Arc::new(Pages { service: RwLock::default(), is_private, wants_certificate });
        let done = Arc::new(Done::default());
        let (stop, stopped) = oneshot::channel();
        runtime.spawn({
            let pages = Arc::clone(&pages);
            let hosts = AllowedHosts::of(host);
            let guard = DoneGuard(Arc::clone(&done));
            async move {
                let stopped = async { drop::<std::result::Result<(), _>>(stopped.await) };
                reverb_http::serve(listener, pages, hosts, tls, stopped).await;
                drop(guard);
            }
        });
        Ok(Self { port: address.port(), pages, stop: Some(stop), done })
    }

    /// Port number.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves this server, whose tables are loaded.
    pub(crate) fn attach(&self, service: &Arc<Service>) {
        *self.pages.service.write() = Some(Arc::downgrade(service));
    }

    /// Closes the port. Blocks until it is closed, also on a thread of a runtime.
    pub(crate) fn close_on_any_thread(mut self) {
        self.stop = None;
        self.done.wait();
    }

    /// Closes the port. Blocks until it is closed, except on a thread of a runtime.
    pub(crate) fn close(&mut self) {
        self.stop = None;
        if Handle::try_current().is_err() {
            self.done.wait();
        }
    }
}

impl Drop for HttpPort {
    fn drop(&mut self) {
        self.close();
    }
}

/// Pages of the port.
#[derive(Debug)]
struct Pages {
    /// The server; absent while its tables are loading.
    service: RwLock<Option<Weak<Service>>>,
    /// True if the port is encrypted or only reachable from this machine. Else it reads no tokens.
    is_private: bool,
    /// True if clients need certificates.
    wants_certificate: bool,
}

impl Pages {
    /// The server, or the reason why there is none.
    fn service(&self) -> std::result::Result<Arc<Service>, &'static str> {
        let attached = self.service.read().clone();
        let service = attached.ok_or("not ready: the tables are loading")?;
        let running = service.upgrade().filter(|service| !service.stop.is_stopped());
        running.ok_or("not ready: the server is stopping")
    }

    /// Authenticates the request of a page about tables, or returns the refusal.
    fn admit(
        &self,
        service: &Service,
        request: Request<'_>,
    ) -> std::result::Result<Caller, Answer> {
        if service.authentication.is_on() && !self.is_private {
            return Err(Answer::text(StatusCode::FORBIDDEN, ONLY_PROBES));
        }
        if self.wants_certificate
            && !service.authentication.is_on()
            && request.peer.certificate_names().is_none()
        {
            return Err(Answer::text(StatusCode::FORBIDDEN, WANTS_CERTIFICATE));
        }
        let header = request.authorization;
        let token = || {
            (!header.is_empty())
                .then(|| password(header).unwrap_or_else(|| bearer_token(header).to_owned()))
        };
        service.authentication.admit_page(request.path, request.peer, token).map_err(|error| {
            if error.kind() == ErrorKind::PermissionDenied {
                return Answer::text(StatusCode::FORBIDDEN, error.message());
            }
            let line = if header.is_empty() { WANTS_TOKEN } else { error.message() };
            let mut answer = Answer::text(StatusCode::UNAUTHORIZED, line);
            answer.headers.push(("www-authenticate", "Basic realm=\"reverb\"".to_owned()));
            answer
        })
    }

    /// A page about tables.
    fn page(&self, service: &Arc<Service>, request: Request<'_>) -> Answer {
        let caller = match self.admit(service, request) {
            Ok(caller) => caller,
            Err(answer) => return answer,
        };
        match request.path {
            "/" => {
                let page = page::page(&status(service, StatusRequest::default(), &caller));
                let mut answer = Answer::ok("text/html; charset=utf-8", page);
                answer.headers.push(("content-security-policy", page::POLICY.to_owned()));
                answer.headers.push(("referrer-policy", "no-referrer".to_owned()));
                answer
            }
            "/api/history" => {
                let query = request.query.unwrap_or("");
                Answer::ok("application/json", history(service, query, &caller))
            }
            _ => {
                let status = status(service, StatusRequest { with_streams: true }, &caller);
                Answer::ok("application/json", json::encode(&status))
            }
        }
    }
}

impl Site for Pages {
    fn paths(&self) -> &'static [&'static str] {
        &["/", "/metrics", "/livez", "/readyz", "/api/status", "/api/history"]
    }

    fn max_connections(&self) -> usize {
        (reserved_files(max_files()) / 2).min(MAX_CONNECTIONS)
    }

    fn answer(&self, request: Request<'_>) -> Answer {
        let service = self.service();
        match (request.path, service) {
            ("/livez", _) => Answer::text(StatusCode::OK, "alive"),
            ("/readyz", Ok(service)) if service.drain.by().is_some() => {
                let why = "not ready: the server is draining";
                Answer::text(StatusCode::SERVICE_UNAVAILABLE, why)
            }
            ("/readyz", Ok(_)) => Answer::text(StatusCode::OK, "ready"),
            (_, Err(why)) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, why),
            ("/metrics", Ok(service)) => {
                let format = Format::accepted_by(request.accept);
                let status = status(&service, StatusRequest::default(), &Caller::default());
                let place = service.group.place();
                let place = place.as_ref().map(|place| (&place.map, place.index));
                Answer::ok(format.content_type(), metrics(&status, place, format))
            }
            (_, Ok(service)) => self.page(&service, request),
        }
    }
}

/// The last minutes of the tables in a query (`table=a&table=b`), as JSON: the age of each point,
/// and the counters of each table.
fn history(service: &Service, query: &str, caller: &Caller) -> Vec<u8> {
    let names = query.split('&').filter_map(|part| part.strip_prefix("table="));
    let names: Vec<String> =
        names.map(|name| percent_decode_str(name).decode_utf8_lossy().into_owned()).collect();
    let all = service.tables.all();
    let is_asked =
        |name: &str| names.iter().any(|asked| asked == name) && caller.may(Right::Sample, name);
    let found: Vec<usize> = (0..all.len()).filter(|&at| is_asked(all[at].name())).collect();
    let (ago, points) = service.timeline.points(&found);
    let tables = found.iter().zip(points).map(|(&at, points)| {
        let column = |value: fn(&TablePoint) -> f64| points.iter().map(value).collect::<Vec<_>>();
        let counted = json!({
            "inserts": column(|point| point.inserts as f64),
            "samples": column(|point| point.samples as f64),
            "insertBlockedS": column(|point| point.insert_blocked.as_secs_f64()),
            "sampleBlockedS": column(|point| point.sample_blocked.as_secs_f64()),
        });
        (all[at].name().to_owned(), counted)
    });
    let ago: Vec<f64> = ago.iter().map(Duration::as_secs_f64).collect();
    let tables: serde_json::Map<_, _> = tables.collect();
    json!({ "secondsAgo": ago, "tables": tables }).to_string().into_bytes()
}
