// SPDX-License-Identifier: Apache-2.0
//! The call `HoldRateLimiter`: a rate limiter is off as long as its stream is open.

use reverb_data::{Error, Result};
use reverb_engine::{LimiterHold, SetBy};
use reverb_rpc::Message;
use reverb_rpc::frames::MessageReader;
use reverb_rpc::server::{Responder, decode};
use reverb_wire::generated::reverb::{HoldRateLimiterRequest, HoldRateLimiterResponse};

use crate::service::Service;

impl Service {
    /// Turns the rate limiter of a table off until the result is dropped.
    pub(crate) fn hold_limiter(
        &self,
        request: &HoldRateLimiterRequest,
        by: &SetBy,
    ) -> Result<LimiterHold> {
        self.drain.check()?;
        let (_, table) = self.tables.get(&request.table)?;
        LimiterHold::begin(table, request.count, by).map_err(|error| self.stop.explain(error))
    }
}

/// Serves the stream until the client closes its half, or is gone.
pub(crate) async fn run(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
    by: &SetBy,
) -> Result<()> {
    let request = service.stop.or(reader.next()).await??;
    let request = request.ok_or_else(|| {
        Error::invalid_argument("The call has no message; it must begin with one.")
    })?;
    let request: HoldRateLimiterRequest = decode(request)?;
    let hold = service.hold_limiter(&request, by)?;
    tracing::info!(table = %request.table, client = %by.client, "the rate limiter is off");
    responder.send_now(Message::encode(&HoldRateLimiterResponse {}))?;
    let ended = tokio::select! {
        biased;
        error = service.interrupted() => Err(error),
        message = reader.next() => match message? {
            None => Ok(()),
            Some(_) => Err(Error::invalid_argument("The call has several messages; it must have one.")),
        },
        () = responder.closed() => Err(Error::cancelled("The caller cancelled the stream.")),
    };
    drop(hold);
    tracing::info!(table = %request.table, client = %by.client, "the rate limiter is on again");
    ended
}
