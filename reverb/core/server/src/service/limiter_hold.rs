// SPDX-License-Identifier: Apache-2.0
//! The call `HoldRateLimiter`: the rate limiter is off as long as the stream is open.

use std::sync::Arc;

use reverb_auth::Right;
use reverb_base::{Error, Result};
use reverb_engine::{ChangedBy, LimiterHold};
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Responder, read_first, several_messages};
use reverb_wire::generated::reverb::{HoldRateLimiterRequest, HoldRateLimiterResponse};

use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::calls::changed_by;

/// Keeps a rate limiter off until dropped, and logs both.
pub(crate) struct LoggedHold {
    _hold: LimiterHold,
    table: Arc<str>,
    client: Arc<str>,
}

impl Drop for LoggedHold {
    fn drop(&mut self) {
        let Self { table, client, .. } = self;
        tracing::info!(%table, %client, "the rate limiter is on again");
    }
}

impl Service {
    /// Turns the rate limiter of a table off until the result is dropped.
    pub(crate) fn hold_limiter(
        &self,
        request: &HoldRateLimiterRequest,
        by: ChangedBy,
    ) -> Result<LoggedHold> {
        self.drain.check()?;
        let (name, table) = self.tables.get(&request.table)?;
        let hold = LimiterHold::begin(table, request.count, &by);
        let hold = hold.map_err(|error| self.stop.explain(error))?;
        tracing::info!(table = %name, client = %by.client, "the rate limiter is off");
        Ok(LoggedHold { _hold: hold, table: Arc::clone(name), client: by.client })
    }
}

/// Serves the stream until the client closes its half or disconnects.
pub(crate) async fn run(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: HoldRateLimiterRequest = read_first(&service.stop, &mut reader).await?;
    service.table_for(caller, Right::Admin, &request.table)?;
    let _hold = service.hold_limiter(&request, changed_by(responder))?;
    responder.send_now(Message::encode(&HoldRateLimiterResponse {}))?;
    tokio::select! {
        biased;
        error = service.interrupted() => Err(error),
        message = reader.next() => match message? {
            None => Ok(()),
            Some(_) => Err(several_messages()),
        },
        () = responder.closed() => Err(Error::cancelled("The caller cancelled the stream.")),
    }
}
