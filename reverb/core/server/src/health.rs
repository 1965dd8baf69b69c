// SPDX-License-Identifier: Apache-2.0
//! The health service of gRPC, by which load balancers and orchestrators ask whether to send work.
//!
//! A server opens its port when its tables are ready, so it is either serving or about to end.

use reverb_data::{Error, Result};
use reverb_wire::generated::grpc::health::health_check_response::ServingStatus;
use reverb_wire::generated::grpc::health::{HealthCheckRequest, HealthCheckResponse};
use reverb_wire::message::Message;
use reverb_wire::status::{Code, Status};
use reverb_wire::stream::MessageReader;

use crate::reflection;
use crate::responder::Responder;
use crate::service::{Service, read_single_message};
use crate::stop;

/// Answers a call of the health service, to its status.
pub(crate) async fn answer(
    service: &Service,
    method: &str,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<Status> {
    match method {
        "Check" => {
            let request: HealthCheckRequest = read_single_message(service, &mut reader).await?;
            if !is_known(&request.service) {
                return Ok(unknown(&request.service));
            }
            responder.send_now(message(ServingStatus::Serving))?;
            Ok(Status::ok())
        }
        "Watch" => {
            let request: HealthCheckRequest = read_single_message(service, &mut reader).await?;
            Err(watch(service, &request.service, responder).await)
        }
        _ => Err(Error::unimplemented("")),
    }
}

/// Tells the state now and when it changes, until the server stops or nobody listens any more.
async fn watch(service: &Service, name: &str, responder: &mut Responder) -> Error {
    let is_known = is_known(name);
    let now = if is_known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
    if let Err(error) = responder.send_now(message(now)) {
        return error;
    }
    tokio::select! {
        () = service.stop.stopped() => {
            if is_known && let Err(error) = responder.send_now(message(ServingStatus::NotServing)) {
                return error;
            }
            stop::stopping()
        }
        () = responder.closed() => Error::cancelled("The caller cancelled the stream."),
    }
}

/// The empty name stands for the server as a whole.
fn is_known(service: &str) -> bool {
    service.is_empty() || reflection::services().any(|name| name == service)
}

fn unknown(service: &str) -> Status {
    let known: Vec<&str> = reflection::services().collect();
    let message = format!(
        "There is no service {service}. The services of this server are: {}; \
         an empty name asks for the server as a whole.",
        known.join(", ")
    );
    Status { code: Code::NotFound, message }
}

fn message(status: ServingStatus) -> Message {
    Message::encode(&HealthCheckResponse { status: status.into() })
}
