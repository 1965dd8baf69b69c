// SPDX-License-Identifier: Apache-2.0
//! Routes the path of a call to its handler.

use std::sync::Arc;

use bytes::Bytes;
use reverb_auth::Right;
use reverb_base::Result;
use reverb_rpc::Message;
use reverb_rpc::framing::{MessageLimit, MessageReader};
use reverb_rpc::server::{Handler, Peer, Responder, Room, read_single_encoded};
use reverb_rpc::status::Status;
use reverb_wire::calls::{self as rows, RequestLimit};
use reverb_wire::codec::mutate::{Mutation, parse_mutation};
use reverb_wire::decoded_size;
use reverb_wire::generated::reverb::UpdatePrioritiesResponse;
use reverb_wire::generated::{InitializeConnectionResponse, MutatePrioritiesResponse};

use crate::observe::streams::{OpenStream, StreamKind};
use crate::service::Service;
use crate::service::blocking::blocking;
use crate::service::caller::{Admission, Caller, Identity};
use crate::service::insert_stream::InsertStream;
use crate::service::reader_room::room_for_answer;
use crate::service::{
    calls, health, leases, limiter_hold, reflection, sample_stream, scan_stream, transfer,
    watch_stream,
};

/// Size of a mutation that is short enough to run without a blocking thread: some ten thousand
/// updates. Larger ones take milliseconds.
const MAX_SHORT_MUTATION_BYTES: usize = 256 << 10;

impl Handler for Service {
    type Caller = Identity;
    type Admission = Admission;

    fn identify(
        &self,
        path: &str,
        peer: &Peer,
        authorization: Option<&str>,
    ) -> (Identity, Option<Admission>) {
        self.authentication.identify(path, peer, authorization)
    }

    fn is_for_operators(&self, path: &str, caller: &Identity) -> bool {
        rows::is_for_operators(path) && caller.is_admitted()
    }

    fn still_admits(&self, admission: &Admission) -> bool {
        self.authentication.still_admits(admission)
    }

    async fn answer(
        self: &Arc<Self>,
        path: &str,
        caller: Identity,
        mut reader: MessageReader,
        responder: &mut Responder,
    ) -> Result<Status> {
        let caller = &caller.admitted(responder).await?;
        reader.limit_messages(self.request_limit(path));
        if let Some(check) = decoded_size::of_requests(path) {
            reader.check_messages(check);
        }
        if caller.is_unknown() {
            reader.refuse_compressed();
        }
        if path != rows::INSERT_STREAM {
            reader.pass_through(Arc::clone(&self.call_gate));
        }
        match path {
            rows::INSERT_STREAM => {
                let open = self.open_stream(StreamKind::Insert, caller, responder)?;
                let stream = InsertStream::new(self, open, caller)?;
                stream.run(reader, responder).await?;
            }
            rows::SAMPLE_STREAM => {
                let open = self.open_stream(StreamKind::Sample, caller, responder)?;
                sample_stream::run(self, caller, &open, reader, responder).await?;
            }
            rows::MUTATE_PRIORITIES => {
                mutate_priorities(self, caller, reader, responder).await?;
            }
            rows::INITIALIZE_CONNECTION => {
                initialize_connection(self, reader, responder).await?;
            }
            rows::SCAN => {
                let open = self.open_stream(StreamKind::Scan, caller, responder)?;
                scan_stream::run(self, caller, &open, reader, responder).await?;
            }
            rows::HOLD_RATE_LIMITER => {
                limiter_hold::run(self, caller, reader, responder).await?;
            }
            rows::HOLD_LEASES => leases::run(self, reader, responder).await?,
            rows::WATCH => watch_stream::run(self, caller, reader, responder).await?,
            rows::UPDATE_PRIORITIES => {
                update_priorities(self, caller, reader, responder).await?;
            }
            rows::TRANSFER => transfer::run(self, caller, reader, responder).await?,
            rows::HEALTH_CHECK => return health::check(self, reader, responder).await,
            rows::HEALTH_WATCH => return health::watch(self, reader, responder).await,
            rows::REFLECTION | rows::OLD_REFLECTION => {
                reflection::run(self, reader, responder).await?;
            }
            path => calls::answer(self, path, caller, &mut reader, responder).await?,
        }
        Ok(Status::ok())
    }
}

impl Service {
    /// Size limit of a caller's message.
    fn request_limit(&self, path: &str) -> MessageLimit {
        let of_tables = self.tables.all().len() * rows::BYTES_A_TABLE;
        let of_calls = MessageLimit::of_setting("call_bytes", self.limits.call_bytes);
        let of_method = |bytes| MessageLimit::of_method(rows::name(path), bytes).or(of_calls);
        match rows::row(path).limit {
            RequestLimit::Bytes(bytes) => of_method(bytes),
            RequestLimit::BytesAndTables(bytes) => of_method(bytes + of_tables),
            RequestLimit::CallBytes => of_calls,
            RequestLimit::MessageBytes => {
                let bytes = self.memory.peer_bytes(self.limits.message_bytes);
                MessageLimit::of_setting("message_bytes", bytes)
            }
        }
    }

    /// # Errors
    ///
    /// `Unavailable` while the server drains.
    fn open_stream(
        &self,
        kind: StreamKind,
        caller: &Caller,
        responder: &Responder,
    ) -> Result<OpenStream> {
        self.drain.check()?;
        Ok(self.streams.open(kind, responder.peer().name(), responder.client(), caller.name()))
    }
}

async fn mutate_priorities(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let message = read_single_encoded(&service.stop, &mut reader).await?;
    mutate(service, caller, message).await?;
    responder.send_now(Message::encode(&MutatePrioritiesResponse {}))
}

/// Carries out a request. Returns the keys that have no items.
async fn mutate(service: &Service, caller: &Caller, message: Bytes) -> Result<Vec<u64>> {
    let is_short = message.len() <= MAX_SHORT_MUTATION_BYTES;
    let parse = move || parse_mutation(&message);
    let Mutation { table, updates, deletes } =
        if is_short { parse()? } else { blocking(parse).await? };
    let table = Arc::clone(service.table_for(caller, Right::Update, &table)?.1);
    let mutate = move || table.mutate(&updates, &deletes);
    let done = if is_short { mutate() } else { blocking(mutate).await };
    done.map_err(|error| service.stop.explain(error))
}

/// Sends the answer of a call.
fn answer(responder: &mut Responder, room: Room, message: &impl prost::Message) -> Result<()> {
    responder.send_now(Message::encode(message).with_room(room))
}

/// A dm-reverb server returns a pointer to clients in its own process here. The empty response
/// makes clients use the streams.
async fn initialize_connection(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    if service.stop.or(reader.next()).await??.is_some() {
        responder.send_now(Message::encode(&InitializeConnectionResponse::default()))?;
    }
    Ok(())
}

/// Handles `UpdatePriorities`, a request with the fields of `MutatePriorities`.
async fn update_priorities(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let message = read_single_encoded(&service.stop, &mut reader).await?;
    // The worst case is that all keys are missing, and the answer is as large as the request.
    let room = room_for_answer(service, responder, message.len()).await?;
    let missing_keys = mutate(service, caller, message).await?;
    let epoch = service.group.epoch();
    answer(responder, room, &UpdatePrioritiesResponse { missing_keys, epoch })
}
