// SPDX-License-Identifier: Apache-2.0
//! Small calls, by subject. Paths and rights are in `wire/calls.rs`.

mod checkpoints;
mod configure_tables;
mod drain;
mod group;
mod rollouts;
mod status;
mod sync;
mod tables;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reverb_base::{Error, ErrorKind, Result};
use reverb_engine::ChangedBy;
use reverb_rpc::Message;
use reverb_rpc::client::own_name;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::message::body_bytes;
use reverb_rpc::server::{Responder, decode, read_single_encoded};
use reverb_wire::calls::{Call, SmallCall, SmallCallNeeds};
use reverb_wire::generated::reverb::{
    CheckpointStatusRequest, ConfigureTablesRequest, DeleteItemsRequest, DirectoryRequest,
    DrainRequest, FailRolloutRequest, SetDirectoryRequest, SetPausedRequest, SetRateLimiterRequest,
    SetVersionRequest, SettleRequest, StatusRequest, SyncRequest, TakeRequest, WaitReasonRequest,
};
use reverb_wire::generated::{CheckpointRequest, ResetRequest, ServerInfoRequest};
use reverb_wire::transport::BoxFuture;

use crate::observe::status::nanoseconds;
use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::reader_room::room_for_answer;

/// Estimated size of a table in an answer.
const TABLE_BYTES: usize = 2 << 10;

/// The handler of a small call.
pub(crate) trait Answer: Call {
    /// Estimated size of an answer that describes all tables or streams. Such an answer waits for
    /// room in the memory that is kept for readers over the network.
    fn answer_bytes(&self, service: &Service) -> usize {
        let _ = service;
        0
    }

    /// Handles the call. The caller has the required right on all tables of the request.
    fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Who makes a small call, when, and from where.
pub(crate) struct CallContext<'a> {
    /// Rights of the caller.
    pub(crate) caller: &'a Caller,
    /// Name of the caller and the time, reported later as the author of a change.
    pub(crate) changed_by: ChangedBy,
    /// True if the caller is in this process.
    pub(crate) is_local: bool,
}

/// Answers a small call over the network.
///
/// # Errors
///
/// `Unimplemented` for a path that is no small call, and the errors of its handler.
pub(crate) async fn answer(
    service: &Arc<Service>,
    path: &str,
    caller: &Caller,
    reader: &mut MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let call = find(path)?;
    let request = read_single_encoded(&service.stop, reader).await?;
    let context = CallContext { caller, changed_by: changed_by(responder), is_local: false };
    let answer = call(service, request, &context, Some(responder)).await?;
    responder.send_now(answer)
}

/// Answers a small call of this process.
pub(crate) async fn answer_here(
    service: &Arc<Service>,
    call: &SmallCall,
    request: Bytes,
) -> Result<Bytes> {
    let caller = &Caller::default();
    let context = CallContext { caller, changed_by: ChangedBy::now(own_name()), is_local: true };
    find(call.row.path)?(service, request, &context, None).await.map(body_bytes)
}

/// Decodes a request, handles it, and encodes the answer.
type Handler = for<'a> fn(
    &'a Arc<Service>,
    Bytes,
    &'a CallContext<'a>,
    Option<&'a mut Responder>,
) -> BoxFuture<'a, Result<Message>>;

macro_rules! handlers {
    ($($request:ty),* $(,)?) => { [$((<$request>::PATH, handle::<$request>)),*] };
}

/// The handlers of all small calls.
const HANDLERS: [(&str, Handler); 18] = handlers![
    CheckpointRequest,
    CheckpointStatusRequest,
    ConfigureTablesRequest,
    DeleteItemsRequest,
    DirectoryRequest,
    DrainRequest,
    FailRolloutRequest,
    ResetRequest,
    ServerInfoRequest,
    SetDirectoryRequest,
    SetPausedRequest,
    SetRateLimiterRequest,
    SetVersionRequest,
    SettleRequest,
    StatusRequest,
    SyncRequest,
    TakeRequest,
    WaitReasonRequest,
];

fn find(path: &str) -> Result<Handler> {
    let found = HANDLERS.into_iter().find(|(known, _)| *known == path);
    found.map(|(_, handler)| handler).ok_or_else(|| Error::unimplemented(""))
}

fn handle<'a, C: Answer>(
    service: &'a Arc<Service>,
    request: Bytes,
    context: &'a CallContext<'a>,
    responder: Option<&'a mut Responder>,
) -> BoxFuture<'a, Result<Message>> {
    Box::pin(async move {
        let request: C = decode(request)?;
        if let SmallCallNeeds::OnTable(right, named) = C::NEEDS {
            let tables = named(&request);
            if tables.is_empty() {
                return Err(Error::invalid_argument(format!(
                    "A call of {} must name a table, got none.",
                    C::CALL.method_name()
                )));
            }
            for table in tables {
                service.table_for(context.caller, right, table)?;
            }
        }
        let Some(responder) = responder else {
            return Ok(Message::encode(&request.answer(service, context).await?));
        };
        check_not_late(request.not_after_ns())?;
        if C::CALL.announced {
            responder.announce();
        }
        let bytes = request.answer_bytes(service);
        if bytes == 0 {
            return Ok(Message::encode(&request.answer(service, context).await?));
        }
        let room = room_for_answer(service, responder, bytes).await?;
        Ok(Message::encode(&request.answer(service, context).await?).with_room(room))
    })
}

/// Estimated size of an answer that describes all tables.
fn table_bytes(service: &Service) -> usize {
    service.tables.all().len() * TABLE_BYTES
}

/// Refuses a call after its deadline, which a process finds that was frozen.
fn check_not_late(not_after_ns: i64) -> Result<()> {
    let late_ns = nanoseconds(SystemTime::now()).saturating_sub(not_after_ns);
    if not_after_ns == 0 || late_ns <= 0 {
        return Ok(());
    }
    let late = Duration::from_nanos(late_ns as u64).as_secs_f64();
    Err(Error::new(
        ErrorKind::DeadlineExceeded,
        format!("The request came {late:.3} s after its deadline, and nothing was changed."),
    ))
}

/// The author of a change: the name that the client gave itself, or else its address, and the time.
pub(crate) fn changed_by(responder: &Responder) -> ChangedBy {
    let client = responder.client();
    ChangedBy::now(if client.is_empty() { responder.peer().name() } else { client })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use reverb_wire::calls::SMALL_CALLS;

    use super::*;

    #[test]
    fn every_small_call_has_a_handler() {
        let handled: BTreeSet<&str> = HANDLERS.into_iter().map(|(path, _)| path).collect();
        let known: BTreeSet<&str> = SMALL_CALLS.into_iter().map(|call| call.row.path).collect();
        assert_eq!(handled, known);
    }
}
