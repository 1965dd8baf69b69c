// SPDX-License-Identifier: Apache-2.0
//! Routes the path of a call to its handler.

use std::sync::Arc;

use bytes::Bytes;
use reverb_auth::Right;
use reverb_data::{Error, ErrorKind, Result};
use reverb_engine::SetBy;
use reverb_rpc::Message;
use reverb_rpc::frames::{MessageLimit, MessageReader};
use reverb_rpc::server::{
    Handler, Peer, Responder, Room, read_single_encoded, read_single_message,
};
use reverb_rpc::status::Status;
use reverb_wire::codec::mutate::{Mutation, parse_mutation};
use reverb_wire::generated::reverb::{
    CheckpointStatusRequest, ConfigureTablesRequest, DirectoryRequest, DrainRequest,
    SetDirectoryRequest, SetDirectoryResponse, SetPausedRequest, SetPausedResponse,
    SetRateLimiterRequest, StatusRequest, UpdatePrioritiesResponse,
};
use reverb_wire::generated::{
    CheckpointRequest, CheckpointResponse, InitializeConnectionResponse, MutatePrioritiesResponse,
    ResetRequest, ResetResponse, ServerInfoRequest, ServerInfoResponse, Uint128,
};
use reverb_wire::methods::{self, RequestLimit};
use reverb_wire::{Capabilities, decoded_size};

use crate::blocking::blocking;
use crate::caller::{Admission, Caller, Identity};
use crate::insert_stream::InsertStream;
use crate::reader_room::room_for_answer;
use crate::service::Service;
use crate::streams::{OpenStream, StreamKind};
use crate::{
    health, limiter_hold, reflection, sample_stream, scan_stream, status, transfer, watch_stream,
};

/// Some ten thousand updates. More of them take milliseconds.
const MAX_SHORT_MUTATION_BYTES: usize = 256 << 10;

/// What a table takes in an answer that describes it, about.
const TABLE_BYTES: usize = 2 << 10;
/// The same of a stream.
const STREAM_BYTES: usize = 256;

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
        if path != methods::INSERT_STREAM {
            reader.pass_through(Arc::clone(&self.call_gate));
        }
        match path {
            methods::INSERT_STREAM => {
                let open = self.open_stream(StreamKind::Insert, caller, responder)?;
                let stream = InsertStream::new(self, open, caller)?;
                stream.run(reader, responder).await?;
            }
            methods::SAMPLE_STREAM => {
                let open = self.open_stream(StreamKind::Sample, caller, responder)?;
                sample_stream::run(self, caller, &open, reader, responder).await?;
            }
            methods::MUTATE_PRIORITIES => {
                mutate_priorities(self, caller, reader, responder).await?;
            }
            methods::RESET => reset(self, caller, reader, responder).await?,
            methods::SERVER_INFO => server_info(self, caller, reader, responder).await?,
            methods::INITIALIZE_CONNECTION => {
                initialize_connection(self, reader, responder).await?;
            }
            methods::CHECKPOINT => checkpoint(self, reader, responder).await?,
            methods::SCAN => {
                let open = self.open_stream(StreamKind::Scan, caller, responder)?;
                scan_stream::run(self, caller, &open, reader, responder).await?;
            }
            methods::CHECKPOINT_STATUS => {
                checkpoint_status(self, caller, reader, responder).await?;
            }
            methods::STATUS => server_status(self, caller, reader, responder).await?,
            methods::CONFIGURE_TABLES => configure_tables(self, caller, reader, responder).await?,
            methods::SET_PAUSED => set_paused(self, caller, reader, responder).await?,
            methods::HOLD_RATE_LIMITER => {
                limiter_hold::run(self, caller, reader, responder).await?;
            }
            methods::DRAIN => drain(self, reader, responder).await?,
            methods::DIRECTORY => directory(self, caller, reader, responder).await?,
            methods::SET_DIRECTORY => set_directory(self, reader, responder).await?,
            methods::WATCH => watch_stream::run(self, caller, reader, responder).await?,
            methods::UPDATE_PRIORITIES => {
                update_priorities(self, caller, reader, responder).await?;
            }
            methods::SET_RATE_LIMITER => set_rate_limiter(self, caller, reader, responder).await?,
            methods::TRANSFER => transfer::run(self, caller, reader, responder).await?,
            methods::HEALTH_CHECK => return health::check(self, reader, responder).await,
            methods::HEALTH_WATCH => return health::watch(self, reader, responder).await,
            methods::REFLECTION | methods::OLD_REFLECTION => {
                reflection::run(self, reader, responder).await?;
            }
            _ => return Err(Error::unimplemented("")),
        }
        Ok(Status::ok())
    }
}

impl Service {
    /// How large a message of a caller may be.
    fn request_limit(&self, path: &str) -> MessageLimit {
        let of_tables = self.tables.all().len() * methods::BYTES_A_TABLE;
        let of_calls = MessageLimit::of_setting("call_bytes", self.limits.call_bytes);
        let of_method = |bytes| MessageLimit::of_method(methods::name(path), bytes).or(of_calls);
        match methods::request_limit(path) {
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
        Ok(self.streams.open(kind, responder.peer().name(), responder.client(), caller))
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

/// Does what a request asks for. Returns the keys of which there are no items.
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

/// Room for an answer that describes all tables.
async fn room_for_tables(service: &Service, responder: &mut Responder) -> Result<Room> {
    let bytes = service.tables.all().len() * TABLE_BYTES;
    room_for_answer(service, responder, bytes).await
}

/// Sends the answer of a call.
fn answer(responder: &mut Responder, room: Room, message: &impl prost::Message) -> Result<()> {
    responder.send_now(Message::encode(message).with_room(room))
}

/// Refuses what its caller has given up: a process that was frozen finds it when it goes on.
fn check_not_late(not_after_ns: i64) -> Result<()> {
    let late_ns = transfer::now_ns().saturating_sub(not_after_ns);
    if not_after_ns == 0 || late_ns <= 0 {
        return Ok(());
    }
    let late = std::time::Duration::from_nanos(late_ns as u64).as_secs_f64();
    Err(Error::new(
        ErrorKind::DeadlineExceeded,
        format!("The request came {late:.3} s after its deadline, and nothing was changed."),
    ))
}

async fn reset(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: ResetRequest = read_single_message(&service.stop, &mut reader).await?;
    service.table_for(caller, Right::Admin, &request.table)?;
    check_not_late(request.not_after_ns)?;
    service.reset(&request.table)?;
    responder.send_now(Message::encode(&ResetResponse {}))
}

async fn server_info(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let ServerInfoRequest {} = read_single_message(&service.stop, &mut reader).await?;
    let room = room_for_tables(service, responder).await?;
    let (high, low) = service.tables.state_id();
    let info = ServerInfoResponse {
        tables_state_id: Some(Uint128 { high, low }),
        table_info: service.info(caller),
        capabilities: Capabilities::of_this_release().into_names(),
    };
    answer(responder, room, &info)
}

/// A dm-reverb server returns a pointer to clients in its own process here. An empty response makes
/// them use the streams.
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

async fn checkpoint(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let CheckpointRequest {} = read_single_message(&service.stop, &mut reader).await?;
    responder.announce();
    let checkpoint_path = service.checkpoint().await?;
    responder.send_now(Message::encode(&CheckpointResponse { checkpoint_path }))
}

async fn checkpoint_status(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let CheckpointStatusRequest {} = read_single_message(&service.stop, &mut reader).await?;
    responder.send_now(Message::encode(&status::checkpoint_status(service, caller)))
}

async fn server_status(
    service: &Arc<Service>,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: StatusRequest = read_single_message(&service.stop, &mut reader).await?;
    let of_streams = if request.with_streams { service.streams.num_open() } else { 0 };
    let bytes = service.tables.all().len() * TABLE_BYTES + of_streams * STREAM_BYTES;
    let room = room_for_answer(service, responder, bytes).await?;
    answer(responder, room, &service.status(request, caller))
}

async fn configure_tables(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: ConfigureTablesRequest = read_single_message(&service.stop, &mut reader).await?;
    for change in &request.changes {
        service.table_for(caller, Right::Admin, &change.table)?;
    }
    check_not_late(request.not_after_ns)?;
    responder.announce();
    let room = room_for_tables(service, responder).await?;
    let configured = service.configure(&request, &set_by(responder)).await?;
    answer(responder, room, &configured)
}

async fn set_paused(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: SetPausedRequest = read_single_message(&service.stop, &mut reader).await?;
    service.table_for(caller, Right::Admin, &request.table)?;
    check_not_late(request.not_after_ns)?;
    service.set_paused(&request, &set_by(responder))?;
    responder.send_now(Message::encode(&SetPausedResponse {}))
}

async fn drain(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: DrainRequest = read_single_message(&service.stop, &mut reader).await?;
    responder.announce();
    let answer = service.stop.or(service.drain_for(request, set_by(responder))).await??;
    responder.send_now(Message::encode(&answer))
}

async fn directory(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: DirectoryRequest = read_single_message(&service.stop, &mut reader).await?;
    let room = room_for_tables(service, responder).await?;
    answer(responder, room, &service.directory(&request, caller))
}

async fn set_directory(
    service: &Arc<Service>,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: SetDirectoryRequest = read_single_message(&service.stop, &mut reader).await?;
    responder.announce();
    service.set_directory(request, &set_by(responder)).await?;
    responder.send_now(Message::encode(&SetDirectoryResponse {}))
}

/// Its request has the fields of `MutatePriorities`.
async fn update_priorities(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let message = read_single_encoded(&service.stop, &mut reader).await?;
    // Each key may be missing: then it is in a list and in the answer, about as large as in the
    // request.
    let room = room_for_answer(service, responder, message.len()).await?;
    let missing_keys = mutate(service, caller, message).await?;
    let epoch = service.group.epoch();
    answer(responder, room, &UpdatePrioritiesResponse { missing_keys, epoch })
}

async fn set_rate_limiter(
    service: &Service,
    caller: &Caller,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: SetRateLimiterRequest = read_single_message(&service.stop, &mut reader).await?;
    service.table_for(caller, Right::Admin, &request.table)?;
    responder.send_now(Message::encode(&service.set_rate_limiter(&request)?))
}

/// Who calls: the name that the client gave itself, else its address.
pub(crate) fn set_by(responder: &Responder) -> SetBy {
    let client = responder.client();
    SetBy::now(if client.is_empty() { responder.peer().name() } else { client })
}
