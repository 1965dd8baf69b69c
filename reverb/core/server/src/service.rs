// SPDX-License-Identifier: Apache-2.0
//! The calls of the service: from a request to the code that answers it.

use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Method, Request, StatusCode, header};
use reverb_data::{Error, Result};
use reverb_wire::convert::table_info::from_table_info;
use reverb_wire::generated::reverb::CheckpointStatusRequest;
use reverb_wire::generated::{
    CheckpointRequest, CheckpointResponse, InitializeConnectionResponse, MutatePrioritiesRequest,
    MutatePrioritiesResponse, ResetRequest, ResetResponse, ServerInfoRequest, ServerInfoResponse,
    Uint128,
};
use reverb_wire::keepalive::{Keepalive, OpenCall};
use reverb_wire::message::Message;
use reverb_wire::status::Status;
use reverb_wire::stream::{Compression, MessageReader};
use reverb_wire::{
    HEALTH_PATH, OLD_REFLECTION_PATH, OWN_SERVICE_PATH, REFLECTION_PATH, SERVICE_PATH,
};

use crate::checkpoints::Checkpoints;
use crate::health;

use crate::insert_stream::InsertStream;
use crate::reflection;
use crate::responder::Responder;
use crate::sample_stream;
use crate::scan_stream;
use crate::stop::Stop;
use crate::tables::Tables;

/// What a server offers, however it is reached.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) tables: Tables,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) stop: Stop,
    pub(crate) keepalive: Keepalive,
}

impl Service {
    pub(crate) fn mutate(
        &self,
        table: &str,
        updates: &[(u64, f64)],
        deletes: &[u64],
    ) -> Result<()> {
        let (_, table) = self.tables.get(table)?;
        table.mutate(updates, deletes).map_err(|error| self.stop.explain(error))
    }

    pub(crate) fn reset(&self, table: &str) -> Result<()> {
        self.tables.get(table)?.1.reset();
        Ok(())
    }

    /// Saves all tables; returns the path. A caller that goes away does not stop it.
    pub(crate) async fn checkpoint(&self) -> Result<String> {
        self.stop.or(self.checkpoints.save(self.tables.all())).await?
    }

    pub(crate) fn info(&self) -> Vec<reverb_wire::generated::TableInfo> {
        self.tables.all().iter().map(|table| from_table_info(&table.info())).collect()
    }
}

/// Answers one stream to its end.
pub(crate) async fn serve(
    service: Arc<Service>,
    request: Request<RecvStream>,
    response: SendResponse<Message>,
    peer: Arc<str>,
    call: OpenCall,
) {
    let mut responder = Responder::new(response, call, &peer);
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        return responder.refuse(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !is_grpc(&head.headers) {
        return responder.refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let result = match Compression::from_headers(&head.headers) {
        Ok(compression) => {
            let reader = MessageReader::new(body, compression, &*peer);
            route(&service, head.uri.path(), reader, &mut responder).await
        }
        Err(error) => Err(error),
    };
    let status = match result {
        Ok(status) => status,
        Err(error) => Status::from_error(&service.stop.explain(error)),
    };
    responder.finish(&status);
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// Finds the service that a path names, and answers the call.
async fn route(
    service: &Arc<Service>,
    path: &str,
    reader: MessageReader,
    responder: &mut Responder,
) -> Result<Status> {
    let (prefix, method) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
    match (prefix, method) {
        (SERVICE_PATH, _) => answer(service, method, reader, responder).await?,
        (OWN_SERVICE_PATH, "Scan") => scan_stream::run(service, reader, responder).await?,
        (OWN_SERVICE_PATH, "CheckpointStatus") => answer_status(service, reader, responder).await?,
        (HEALTH_PATH, _) => return health::answer(service, method, reader, responder).await,
        (REFLECTION_PATH | OLD_REFLECTION_PATH, "ServerReflectionInfo") => {
            reflection::run(service, reader, responder).await?;
        }
        _ => return Err(Error::unimplemented("")),
    }
    Ok(Status::ok())
}

async fn answer(
    service: &Arc<Service>,
    method: &str,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    match method {
        "InsertStream" => InsertStream::new(service).run(reader, responder).await,
        "SampleStream" => sample_stream::run(service, reader, responder).await,
        "MutatePriorities" => {
            let request: MutatePrioritiesRequest =
                read_single_message(service, &mut reader).await?;
            let updates: Vec<(u64, f64)> =
                request.updates.iter().map(|update| (update.key, update.priority)).collect();
            service.mutate(&request.table, &updates, &request.delete_keys)?;
            responder.send_now(Message::encode(&MutatePrioritiesResponse {}))
        }
        "Reset" => {
            let request: ResetRequest = read_single_message(service, &mut reader).await?;
            service.reset(&request.table)?;
            responder.send_now(Message::encode(&ResetResponse {}))
        }
        "ServerInfo" => {
            let ServerInfoRequest {} = read_single_message(service, &mut reader).await?;
            let (high, low) = service.tables.state_id();
            responder.send_now(Message::encode(&ServerInfoResponse {
                tables_state_id: Some(Uint128 { high, low }),
                table_info: service.info(),
            }))
        }
        "InitializeConnection" => initialize_connection(service, &mut reader, responder).await,
        "Checkpoint" => {
            let CheckpointRequest {} = read_single_message(service, &mut reader).await?;
            responder.announce();
            let checkpoint_path = service.checkpoint().await?;
            responder.send_now(Message::encode(&CheckpointResponse { checkpoint_path }))
        }
        _ => Err(Error::unimplemented("")),
    }
}

async fn answer_status(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let CheckpointStatusRequest {} = read_single_message(service, &mut reader).await?;
    responder.send_now(Message::encode(&service.checkpoints.status()))
}

/// The original hands a pointer to clients of its own process here. An empty answer sends them to
/// the streams.
async fn initialize_connection(
    service: &Service,
    reader: &mut MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    if service.stop.or(reader.next()).await??.is_some() {
        responder.send_now(Message::encode(&InitializeConnectionResponse::default()))?;
    }
    Ok(())
}

/// The message of a call that has exactly one.
pub(crate) async fn read_single_message<M: prost::Message + Default>(
    service: &Service,
    reader: &mut MessageReader,
) -> Result<M> {
    let message = service.stop.or(reader.next()).await??;
    let message = message.ok_or_else(|| {
        Error::invalid_argument("The call has no message; it must have exactly one.")
    })?;
    if service.stop.or(reader.next()).await??.is_some() {
        return Err(Error::invalid_argument("The call has several messages; it must have one."));
    }
    decode(message)
}

pub(crate) fn decode<M: prost::Message + Default>(message: Bytes) -> Result<M> {
    M::decode(message)
        .map_err(|error| Error::invalid_argument(format!("Malformed message: {error}.")))
}
