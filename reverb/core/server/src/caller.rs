// SPDX-License-Identifier: Apache-2.0
//! Who calls over the network, and what that caller may do.

use std::net::SocketAddr;
use std::sync::Arc;

use reverb_auth::{Access, Authenticator, Reason, Refusal, Right, bearer_token};
use reverb_data::{Error, Result};
use reverb_engine::Table;
use reverb_rpc::server::{Peer, Responder};
use reverb_wire::calls::{self, Needs};
use tokio::time::Instant;

use crate::service::Service;

/// How a server finds out who calls.
#[derive(Debug, Default)]
pub(crate) struct Authentication {
    /// Everybody may do everything if it is absent.
    authenticator: Option<Arc<Authenticator>>,
    /// Whether tokens may come over a network in cleartext.
    insecure_tokens: bool,
}

/// The maker of a call, and what it may do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// Absent if everybody may do everything, or if the call needs no right.
    known: Option<Known>,
    /// Whether the server knows callers, and did not ask who this one is.
    is_unknown: bool,
}

#[derive(Debug, Clone)]
struct Known {
    access: Arc<Access>,
    authenticator: Arc<Authenticator>,
    peer: String,
    /// The name of the method, or the path of the page.
    call: String,
}

/// Who makes a call, or why that one is refused.
#[derive(Debug)]
pub(crate) struct Identity(std::result::Result<Caller, Refused>);

#[derive(Debug)]
enum Refused {
    /// The caller could not be authenticated, and is told so at this time.
    Unauthenticated(Refusal, Instant),
    /// So many calls of the connection were, that nobody looks at what it shows.
    TooOften,
    /// No request of this kind could be allowed.
    Denied(Error),
}

/// What a caller has shown.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// The server asks for nothing.
    Anybody,
    /// Its token or certificate gives it this access.
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

    /// Refuses to listen where tokens would travel in cleartext.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that says what to do.
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

    /// How many callers were refused, by the reason; no server without tokens refuses any.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counted = self.authenticator.iter().flat_map(|it| it.failures());
        let none = self.authenticator.is_none().then_some(Reason::ALL.map(|reason| (reason, 0)));
        counted.chain(none.into_iter().flatten())
    }

    /// Finds out who makes a call by its headers, and checks what it needs before its request is
    /// read. There is no admission for who is not known, nor for a call that needs nothing.
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
                let (authenticator, peer) = (Arc::clone(authenticator), peer.name().to_owned());
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

    /// Whether what a caller has shown would still do.
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

    /// Finds out who asks for a page. `token` gives the token of the request; it is not called if
    /// the server has no tokens.
    ///
    /// # Errors
    ///
    /// `Unauthenticated`, and `PermissionDenied` for a caller who may sample from no table.
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
        let (authenticator, call) = (Arc::clone(authenticator), path.to_owned());
        let caller = Caller::new(Known { access, authenticator, peer, call });
        caller.check_needs(Needs::OnTable(Right::Sample))?;
        Ok(caller)
    }

    /// Whether callers need tokens.
    pub(crate) fn is_on(&self) -> bool {
        self.authenticator.is_some()
    }
}

impl Identity {
    /// The caller of a call.
    ///
    /// # Errors
    ///
    /// `Unauthenticated`, after a moment; `PermissionDenied` if no request of this kind could be
    /// allowed; `Unavailable` if too many calls of the connection have failed.
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

    /// Whether it has shown neither a token nor a certificate where others have to.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Checks a call about a table. The answer is the same whether there is the table or not.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` that names the call, the table and what the caller may do.
    pub(crate) fn check(&self, right: Right, table: &str) -> Result<()> {
        self.known(|it| it.access.check(right, table, &it.call))
    }

    fn check_needs(&self, needs: Needs) -> Result<()> {
        self.known(|Known { access, call, .. }| match needs {
            Needs::Nothing | Needs::AnyRight => Ok(()),
            Needs::OnTable(right) => access.check_somewhere(right, call),
            Needs::OnAllTables(right) => access.check_everywhere(right, call),
        })
    }

    /// Checks a caller whose rights are limited; counts and logs it if it is denied.
    fn known(&self, check: impl FnOnce(&Known) -> Result<()>) -> Result<()> {
        let Some(known) = &self.known else { return Ok(()) };
        check(known).inspect_err(|why| {
            known.authenticator.count_failure(Reason::Denied);
            // The name of a table is the caller's choice, and must not make a warning of its own.
            let peer = known.peer.trim_start_matches("client ");
            tracing::warn!(peer, %why, "refused a caller: {}", Reason::Denied.fault());
        })
    }

    /// Whether it has a right on a table.
    pub(crate) fn may(&self, right: Right, table: &str) -> bool {
        self.known.as_ref().is_none_or(|known| known.access.has(right, table))
    }

    /// Whether it has a right on all tables.
    pub(crate) fn may_everywhere(&self, right: Right) -> bool {
        self.known.as_ref().is_none_or(|known| known.access.has_everywhere(right))
    }

    /// The name of its token or certificate in the server's list, if it has rights by that.
    pub(crate) fn name(&self) -> Option<&str> {
        self.known.as_ref().map(|known| known.access.name())
    }

    /// Whether it has any right on a table.
    pub(crate) fn may_see(&self, table: &str) -> bool {
        self.known.as_ref().is_none_or(|known| known.access.has_any(table))
    }
}

impl Service {
    /// A table, for a caller who has a right on it, with its name.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, and `TableNotFound` that lists the tables that the caller may see.
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
