// SPDX-License-Identifier: Apache-2.0
//! gRPC's reflection service: tools such as `grpcurl` use it to list calls and messages.
//!
//! `grpc.reflection.v1` and its older name `v1alpha` have the same messages.

use std::sync::LazyLock;

use bytes::Bytes;
use hashbrown::HashMap;
use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use reverb_base::Result;
use reverb_base::error::cut;
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Responder, decode};
use reverb_rpc::status::Code;
use reverb_wire::DESCRIPTORS;
use reverb_wire::generated::grpc::reflection::server_reflection_request::MessageRequest;
use reverb_wire::generated::grpc::reflection::server_reflection_response::MessageResponse;
use reverb_wire::generated::grpc::reflection::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};

use crate::service::Service;
use crate::service::reader_room::room_for_answer;

static DIRECTORY: LazyLock<Directory> = LazyLock::new(Directory::new);

/// Full names of the server's services.
pub(crate) fn services() -> impl Iterator<Item = &'static str> {
    DIRECTORY.services.iter().map(String::as_str)
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
            message_response: Some(DIRECTORY.answer(request.message_request.as_ref())),
            original_request: Some(request),
        };
        let room = room_for_answer(service, responder, response.encoded_len()).await?;
        let message = Message::encode(&response).with_room(room);
        service.stop.or(responder.send(message)).await??;
    }
    Ok(())
}

/// Maps every name to the file that declares it.
struct Directory {
    files: Vec<File>,
    /// Positions in `files`.
    by_name: HashMap<String, usize>,
    by_symbol: HashMap<String, usize>,
    services: Vec<String>,
}

struct File {
    /// The serialized descriptor.
    descriptor: Bytes,
    dependencies: Vec<usize>,
}

impl Directory {
    fn new() -> Self {
        let set = FileDescriptorSet::decode(DESCRIPTORS)
            .expect("the descriptors were written together with the code that reads them");
        let mut directory = Self {
            files: Vec::new(),
            by_name: HashMap::new(),
            by_symbol: HashMap::new(),
            services: Vec::new(),
        };
        for file in &set.file {
            directory.add(file);
        }
        directory.services.sort_unstable();
        directory
    }

    /// Adds a file, after the files it depends on.
    fn add(&mut self, file: &FileDescriptorProto) {
        let at = self.files.len();
        self.by_symbol.extend(symbols(file).into_iter().map(|symbol| (symbol, at)));
        self.services.extend(file.service.iter().map(|it| join(file.package(), it.name())));
        self.by_name.insert(file.name().to_owned(), at);
        self.files.push(File {
            descriptor: file.encode_to_vec().into(),
            dependencies: file.dependency.iter().map(|name| self.by_name[name]).collect(),
        });
    }

    fn answer(&self, request: Option<&MessageRequest>) -> MessageResponse {
        match request {
            Some(MessageRequest::ListServices(_)) => {
                let name = |name: &String| ServiceResponse { name: name.clone() };
                let service = self.services.iter().map(name).collect();
                MessageResponse::ListServicesResponse(ListServiceResponse { service })
            }
            Some(MessageRequest::FileByFilename(name)) => match self.by_name.get(name) {
                Some(&at) => self.with_dependencies(at),
                None => failure(Code::NotFound, format!("There is no file {}.", cut(name))),
            },
            Some(MessageRequest::FileContainingSymbol(symbol)) => {
                // Some tools put a dot before full names, as descriptors do.
                match self.by_symbol.get(symbol.strip_prefix('.').unwrap_or(symbol)) {
                    Some(&at) => self.with_dependencies(at),
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
    fn with_dependencies(&self, at: usize) -> MessageResponse {
        let mut order = vec![at];
        let mut next = 0;
        while let Some(&at) = order.get(next) {
            for dependency in &self.files[at].dependencies {
                if !order.contains(dependency) {
                    order.push(*dependency);
                }
            }
            next += 1;
        }
        let descriptors = order.iter().map(|&at| self.files[at].descriptor.clone());
        MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto: descriptors.collect(),
        })
    }
}

fn failure(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
}

/// Full names of all symbols that a file declares.
fn symbols(file: &FileDescriptorProto) -> Vec<String> {
    let mut names = Vec::new();
    for service in &file.service {
        let scope = join(file.package(), service.name());
        names.extend(service.method.iter().map(|method| join(&scope, method.name())));
        names.push(scope);
    }
    file.message_type.iter().for_each(|it| message_symbols(file.package(), it, &mut names));
    file.enum_type.iter().for_each(|it| enum_symbols(file.package(), it, &mut names));
    names
}

fn message_symbols(scope: &str, message: &DescriptorProto, names: &mut Vec<String>) {
    let scope = join(scope, message.name());
    names.extend(message.field.iter().map(|field| join(&scope, field.name())));
    names.extend(message.oneof_decl.iter().map(|oneof| join(&scope, oneof.name())));
    message.nested_type.iter().for_each(|it| message_symbols(&scope, it, names));
    message.enum_type.iter().for_each(|it| enum_symbols(&scope, it, names));
    names.push(scope);
}

/// An enum's values are named in its parent scope, not inside the enum.
fn enum_symbols(scope: &str, item: &EnumDescriptorProto, names: &mut Vec<String>) {
    names.extend(item.value.iter().map(|value| join(scope, value.name())));
    names.push(join(scope, item.name()));
}

fn join(scope: &str, name: &str) -> String {
    format!("{scope}.{name}")
}
