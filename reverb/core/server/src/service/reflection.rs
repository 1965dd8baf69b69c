// SPDX-License-Identifier: Apache-2.0
//! gRPC's reflection service: tools such as `grpcurl` use it to list calls and messages.
//!
//! `grpc.reflection.v1` and its older name `v1alpha` have the same messages.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::FileDescriptor;
use reverb_base::Result;
use reverb_base::error::cut;
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Responder, decode};
use reverb_rpc::status::Code;
use reverb_wire::generated::grpc::reflection::server_reflection_request::MessageRequest;
use reverb_wire::generated::grpc::reflection::server_reflection_response::MessageResponse;
use reverb_wire::generated::grpc::reflection::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};

use crate::observe::status::json::POOL;
use crate::service::Service;
use crate::service::reader_room::room_for_answer;

static SERVICES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let names = POOL.services().map(|service| service.full_name().to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
});

/// Full names of the server's services.
pub(crate) fn services() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().map(String::as_str)
}

/// Answers every request with one response, until the caller closes its half.
pub(crate) async fn run(
    service: &Service,
    mut requests: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    while let Some(message) = service.stop.or(requests.next()).await?? {
        let request: ServerReflectionRequest = decode(message)?;
        let response = ServerReflectionResponse {
            valid_host: request.host.clone(),
            message_response: Some(answer(request.message_request.as_ref())),
            original_request: Some(request),
        };
        let room = room_for_answer(service, responder, response.encoded_len()).await?;
        let message = Message::encode(&response).with_room(room);
        service.stop.or(responder.send(message)).await??;
    }
    Ok(())
}

fn answer(request: Option<&MessageRequest>) -> MessageResponse {
    match request {
        Some(MessageRequest::ListServices(_)) => {
            let service = services().map(|name| ServiceResponse { name: name.to_owned() });
            let service = service.collect();
            MessageResponse::ListServicesResponse(ListServiceResponse { service })
        }
        Some(MessageRequest::FileByFilename(name)) => match POOL.get_file_by_name(name) {
            Some(file) => with_dependencies(file),
            None => failure(Code::NotFound, format!("There is no file {}.", cut(name))),
        },
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            // Some tools put a dot before full names, as descriptors do.
            match file_of(symbol.strip_prefix('.').unwrap_or(symbol)) {
                Some(file) => with_dependencies(file),
                None => failure(Code::NotFound, format!("Nothing is called {}.", cut(symbol))),
            }
        }
        Some(
            MessageRequest::FileContainingExtension(_)
            | MessageRequest::AllExtensionNumbersOfType(_),
        ) => failure(Code::Unimplemented, "The messages have no extensions.".into()),
        None => failure(Code::InvalidArgument, "The request asks for nothing.".into()),
    }
}

/// A file and all its dependencies, each once.
fn with_dependencies(file: FileDescriptor) -> MessageResponse {
    let mut files = vec![file];
    let mut next = 0;
    while let Some(file) = files.get(next).cloned() {
        for dependency in file.dependencies() {
            if !files.contains(&dependency) {
                files.push(dependency);
            }
        }
        next += 1;
    }
    let file_descriptor_proto = files.iter().map(|file| file.encode_to_vec().into()).collect();
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
}

fn failure(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
}

/// The file that declares a symbol: a service, a message or an enum, or a part of one.
fn file_of(symbol: &str) -> Option<FileDescriptor> {
    if let Some(file) = file_of_type(symbol) {
        return Some(file);
    }
    let (scope, name) = symbol.rsplit_once('.')?;
    let of_message = POOL.get_message_by_name(scope).is_some_and(|message| {
        message.get_field_by_name(name).is_some()
            || message.oneofs().any(|oneof| oneof.name() == name)
    });
    let of_service = POOL
        .get_service_by_name(scope)
        .is_some_and(|service| service.methods().any(|method| method.name() == name));
    if of_message || of_service {
        return file_of_type(scope);
    }
    // An enum's values are named in its parent scope, not inside the enum.
    let mut enums = POOL.all_enums();
    let found = enums.find(|item| item.values().any(|value| value.full_name() == symbol));
    found.map(|item| item.parent_file())
}

fn file_of_type(name: &str) -> Option<FileDescriptor> {
    let message = POOL.get_message_by_name(name).map(|message| message.parent_file());
    let item = || POOL.get_enum_by_name(name).map(|item| item.parent_file());
    let service = || POOL.get_service_by_name(name).map(|service| service.parent_file());
    message.or_else(item).or_else(service)
}
