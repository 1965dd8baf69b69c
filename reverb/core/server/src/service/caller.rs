// SPDX-License-Identifier: Apache-2.0
//! Callers over the network, and their rights.

use std::net::SocketAddr;
use std::sync::Arc;

use reverb_auth::{Access, Authenticator, Reason, Refusal, Right, bearer_token};
use reverb_base::{Error, Result};
use reverb_engine::Table;
use reverb_rpc::server::{Peer, Responder};
use reverb_wire::calls::{self, Needs};
use tokio::time::Instant;

use crate::service::Service;

/// Authentication of callers.
#[derive(Debug, Default)]
pub(crate) struct Authentication {
    /// If absent, every caller has every right.
    authenticator: Option<Arc<Authenticator>>,
    /// True if tokens may cross a network in cleartext.
    insecure_tokens: bool,
}

/// The caller of a method or page, and its rights.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// Absent if callers need no rights, or if this call needs none.
    known: Option<Known>,
    /// True if callers need credentials and this one has shown none.
    is_unknown: bool,
}

#[derive(Debug, Clone)]
struct Known {
    access: Arc<Access>,
    authenticator: Arc<Authenticator>,
    peer: String,
    /// Name of the method, or path of the page.
    call: String,
}

/// Outcome of the authentication of a call.
#[derive(Debug)]
pub(crate) struct Identity(std::result::Result<Caller, Refused>);

#[derive(Debug)]
enum Refused {
    /// The caller could not be authenticated. The error is sent at this time.
    Unauthenticated(Refusal, Instant),
    /// Too many calls of the connection failed, so its credentials are no longer checked.
    TooOften,
    /// The caller may make no request of this kind.
    Denied(Error),
}

/// Credentials of an admitted caller.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// The server needs no credentials.
    Anybody,
    /// A token or certificate with this access.
    Known(Arc<Access>),
}

impl PartialEq for Admission {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known(own), Self::Known(other)) => Arc::ptr_eq(own, other) || own == other,
            (own, other) => matches!((own, other), (Self::Anybody, Self::Anybody)),
        }
    }
}

impl Authentication {
    pub(crate) fn new(authenticator: Option<Arc<Authenticator>>, insecure_tokens: bool) -> Self {
        Self { authenticator, insecure_tokens }
    }

    /// Refuses an address at which tokens would cross a network in cleartext.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with a remedy.
    pub(crate) fn check_address(&self, address: SocketAddr, is_encrypted: bool) -> Result<()> {
        let is_safe = is_encrypted || address.ip().to_canonical().is_loopback();
        if self.authenticator.is_none() || self.insecure_tokens || is_safe {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "tokens would travel in cleartext: the server has no TLS and listens on {}, which other \
             machines reach. Give it a certificate (tls, --tls-cert, --tls-key), let it listen on \
             127.0.0.1 (host, --host), or allow it (insecure_tokens, --insecure-tokens).",
            address.ip()
        )))
    }

    /// Number of refused callers by reason; empty without tokens.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counted = self.authenticator.iter().flat_map(|authenticator| authenticator.failures());
        let none = self.authenticator.is_none().then_some(Reason::ALL.map(|reason| (reason, 0)));
        counted.chain(none.into_iter().flatten())
    }

    /// Authenticates a call by its headers, and checks its right before the request is read. There
    /// is no admission for unknown callers, or for calls that need no right.
    pub(crate) fn identify(
        &self,
        path: &str,
        peer: &Peer,
        authorization: Option<&str>,
    ) -> (Identity, Option<Admission>) {
        let needs = calls::row(path).needs;
        let Some(authenticator) = &self.authenticator else {
            let admission = (needs != Needs::Nothing).then_some(Admission::Anybody);
            return (Identity(Ok(Caller::default())), admission);
        };
        if needs == Needs::Nothing {
            return (Identity(Ok(Caller { known: None, is_unknown: true })), None);
        }
        if peer.has_failed_often() {
            return (Identity(Err(Refused::TooOften)), None);
        }
        match self.authenticate(authenticator, peer, authorization) {
            Ok(access) => {
                let admission = Admission::Known(Arc::clone(&access));
                let authenticator = Arc::clone(authenticator);
                let peer = peer.name().to_owned();
                let call = path.rsplit('/').next().unwrap_or(path).to_owned();
                let caller = Caller::new(Known { access, authenticator, peer, call });
                let checked = caller.check_needs(needs).map_err(Refused::Denied);
                (Identity(checked.map(|()| caller)), Some(admission))
            }
            Err(refusal) => {
                count(authenticator, &refusal, peer.name());
                let answered_at = peer.count_failure();
                (Identity(Err(Refused::Unauthenticated(refusal, answered_at))), None)
            }
        }
    }

    /// True if the credentials of an admission are still valid.
    pub(crate) fn still_admits(&self, admission: &Admission) -> bool {
        match (admission, &self.authenticator) {
            (Admission::Known(access), Some(authenticator)) => authenticator.still_gives(access),
            _ => true,
        }
    }

    fn authenticate(
        &self,
        authenticator: &Authenticator,
        peer: &Peer,
        authorization: Option<&str>,
    ) -> std::result::Result<Arc<Access>, Refusal> {
        if authorization.is_some()
            && !(peer.is_encrypted() || peer.is_loopback() || self.insecure_tokens)
        {
            return Err(Refusal::cleartext());
        }
        authenticator.authenticate(authorization.map(bearer_token), peer.certificate_names())
    }

    /// Authenticates the request of a page. `token` returns the token of the request; it is not
    /// called if the server has no tokens.
    ///
    /// # Errors
    ///
    /// `Unauthenticated`, and `PermissionDenied` for a caller without a right to sample from any
    /// table.
    pub(crate) fn admit_page(
        &self,
        path: &str,
        peer: &reverb_http::Peer,
        token: impl FnOnce() -> Option<String>,
    ) -> Result<Caller> {
        let Some(authenticator) = &self.authenticator else { return Ok(Caller::default()) };
        let names = peer.certificate_names().unwrap_or_default();
        let peer = format!("client {}", peer.address);
        let access =
            authenticator.authenticate(token().as_deref(), names).inspect_err(|refusal| {
                count(authenticator, refusal, &peer);
            })?;
        let authenticator = Arc::clone(authenticator);
        let call = path.to_owned();
        let caller = Caller::new(Known { access, authenticator, peer, call });
        caller.check_needs(Needs::OnSomeTable(Right::Sample))?;
        Ok(caller)
    }

    /// True if callers need tokens.
    pub(crate) fn is_on(&self) -> bool {
        self.authenticator.is_some()
    }
}

impl Identity {
    /// True if the caller may make a request of this kind.
    pub(crate) fn is_admitted(&self) -> bool {
        self.0.is_ok()
    }

    /// The caller, after the checks.
    ///
    /// # Errors
    ///
    /// `Unauthenticated`, after a delay; `PermissionDenied` if the caller may make no request of
    /// this kind; `Unavailable` if too many calls of the connection have failed.
    pub(crate) async fn admitted(self, responder: &mut Responder) -> Result<Caller> {
        let (error, answered_at) = match self.0 {
            Ok(caller) => return Ok(caller),
            Err(Refused::Denied(error)) => return Err(error),
            Err(Refused::TooOften) => {
                let why = "Too many calls of this connection had no good token: connect again.";
                return Err(Error::unavailable(why));
            }
            Err(Refused::Unauthenticated(refusal, answered_at)) => (refusal.into(), answered_at),
        };
        tokio::select! {
            () = tokio::time::sleep_until(answered_at) => {}
            () = responder.closed() => {}
        }
        Err(error)
    }
}

fn count(authenticator: &Authenticator, refusal: &Refusal, peer: &str) {
    let reason = refusal.reason();
    authenticator.count_failure(reason);
    let peer = peer.trim_start_matches("client ");
    tracing::warn!(peer, reason = reason.name(), "refused a caller: {}", reason.fault());
}

impl Caller {
    fn new(known: Known) -> Self {
        Self { known: Some(known), is_unknown: false }
    }

    /// True if the caller has shown neither a token nor a certificate, and callers need one.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Checks a right on a table. The answer does not show if the table exists.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` with the call, the table and the rights of the caller.
    pub(crate) fn check(&self, right: Right, table: &str) -> Result<()> {
        self.known(|known| known.access.check(right, table, &known.call))
    }

    fn check_needs(&self, needs: Needs) -> Result<()> {
        self.known(|Known { access, call, .. }| match needs {
            Needs::Nothing | Needs::AnyRight => Ok(()),
            Needs::OnSomeTable(right) | Needs::OnTable(right) => {
                access.check_somewhere(right, call)
            }
            Needs::OnAllTables(right) => access.check_everywhere(right, call),
        })
    }

    /// Checks a caller with limited rights; counts and logs a denial.
    fn known(&self, check: impl FnOnce(&Known) -> Result<()>) -> Result<()> {
        let Some(known) = &self.known else { return Ok(()) };
        check(known).inspect_err(|why| {
            known.authenticator.count_failure(Reason::Denied);
            // The name of the table is left out: callers could choose names that make new warnings.
            let peer = known.peer.trim_start_matches("client ");
            tracing::warn!(peer, %why, "refused a caller: {}", Reason::Denied.fault());
        })
    }

    /// True if the caller has a right on a table.
    pub(crate) fn may(&self, right: Right, table: &str) -> bool {
        self.known.as_ref().is_none_or(|known| known.access.has(right, table))
    }

    /// True if the caller has a right on all tables.
    pub(crate) fn may_everywhere(&self, right: Right) -> bool {
        self.known.as_ref().is_none_or(|known| known.access.has_everywhere(right))
    }

    /// Name of the caller's token or certificate in the server's list, if it is listed.
    pub(crate) fn name(&self) -> Option<&str> {
        self.known.as_ref().map(|known| known.access.name())
    }

    /// True if the caller has any right on a table.
    pub(crate) fn may_see(&self, table: &str) -> bool {
        self.known.as_ref().is_none_or(|known| known.access.has_any(table))
    }
}

impl Service {
    /// The table with this name, for a caller with a right on it.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, and `TableNotFound` with the tables that the caller may see.
    pub(crate) fn table_for(
        &self,
        caller: &Caller,
        right: Right,
        name: &str,
    ) -> Result<(&Arc<str>, &Arc<Table>)> {
        caller.check(right, name)?;
        self.tables.get_among(name, |table| caller.may_see(table))
    }
}
