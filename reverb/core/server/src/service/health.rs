// SPDX-License-Identifier: Apache-2.0
//! gRPC's health service. Load balancers and orchestrators ask it whether to send requests here.
//!
//! A server opens its port when its tables are ready, so it is either serving, or draining and
//! shutting down.

use reverb_base::error::cut;
use reverb_base::{Error, Result};
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Responder, read_single_message};
use reverb_rpc::status::{Code, Status};
use reverb_wire::generated::grpc::health::health_check_response::ServingStatus;
use reverb_wire::generated::grpc::health::{HealthCheckRequest, HealthCheckResponse};

use crate::service::Service;
use crate::service::reflection;

/// Answers `Check` with one status.
pub(crate) async fn check(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<Status> {
    let request: HealthCheckRequest = read_single_message(&service.stop, &mut reader).await?;
    if !is_known(&request.service) {
        return Ok(unknown(&request.service));
    }
    responder.send_now(message(serving(service)))?;
    Ok(Status::ok())
}

/// Answers `Watch`: sends the status now and on every change, until the server stops or the caller
/// disconnects.
pub(crate) async fn watch(
    service: &Service,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<Status> {
    let request: HealthCheckRequest = read_single_message(&service.stop, &mut reader).await?;
    let is_known = is_known(&request.service);
    let now = if is_known { serving(service) } else { ServingStatus::ServiceUnknown };
    responder.send_now(message(now))?;
    // The call lasts until the server or the caller ends it.
    responder.settle(true);
    if now == ServingStatus::Serving {
        tokio::select! {
            _ = service.interrupted() => responder.send_now(message(ServingStatus::NotServing))?,
            () = responder.closed() => {}
        }
    }
    tokio::select! {
        () = service.stop.stopped() => Err(service.stop.error()),
        () = responder.closed() => Err(Error::cancelled("The caller cancelled the stream.")),
    }
}

fn serving(service: &Service) -> ServingStatus {
    if service.drain.by().is_some() { ServingStatus::NotServing } else { ServingStatus::Serving }
}

/// The empty name means the server as a whole.
fn is_known(service: &str) -> bool {
    service.is_empty() || reflection::services().any(|name| name == service)
}

fn unknown(service: &str) -> Status {
    let known: Vec<&str> = reflection::services().collect();
    let message = format!(
        "There is no service {}. The services of this server are: {}; \
         an empty name asks for the server as a whole.",
        cut(service),
        known.join(", ")
    );
    Status::new(Code::NotFound, message)
}

fn message(status: ServingStatus) -> Message {
    Message::encode(&HealthCheckResponse { status: status.into() })
}
