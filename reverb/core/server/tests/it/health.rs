// SPDX-License-Identifier: Apache-2.0
//! The health service, and the reflection service under both of its names.

use crate::support::*;
use http::HeaderMap;
use prost::Message as _;
use reverb_rpc::status::{Code, Status};
use reverb_server::Server;
use reverb_wire::calls;
use reverb_wire::generated::grpc::health::{HealthCheckRequest, HealthCheckResponse};
use reverb_wire::generated::grpc::reflection::server_reflection_request::MessageRequest;
use reverb_wire::generated::grpc::reflection::server_reflection_response::MessageResponse;
use reverb_wire::generated::grpc::reflection::{
    ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse,
};

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

/// Calls the health service with its single request.
async fn ask(raw: &RawClient, method: &str, service: &str) -> RawStream {
    let mut stream =
        raw.open_path(&format!("/grpc.health.v1.Health/{method}"), HeaderMap::new()).await;
    stream.send(&HealthCheckRequest { service: service.into() }).await;
    stream.sender.finish();
    stream
}

async fn health(stream: &mut RawStream) -> Result<i32, Status> {
    stream.next().await.map(|message| HealthCheckResponse::decode(message).unwrap().status)
}

#[tokio::test]
async fn every_call_has_an_answer() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    for path in calls::all().map(|row| row.path) {
        let mut stream = raw.open_path(path, HeaderMap::new()).await;
        stream.sender.finish();
        assert_ne!(stream.status().await.code, Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn check_answers_for_the_server_and_its_services() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    for service in ["", "deepmind.reverb.ReverbService", "reverb.ReplayService"] {
        let mut stream = ask(&raw, "Check", service).await;
        assert_eq!(health(&mut stream).await, Ok(SERVING), "{service}");
        assert_eq!(stream.status().await.code, Code::Ok);
    }
    let status = ask(&raw, "Check", "nonsense").await.status().await;
    assert_eq!(status.code, Code::NotFound);
    assert!(
        status.message.starts_with(
            "There is no service nonsense. The services of this server are: \
             deepmind.reverb.ReverbService, grpc.health.v1.Health, "
        ),
        "{}",
        status.message
    );
    assert_eq!(ask(&raw, "List", "").await.status().await.code, Code::Unimplemented);
}

#[tokio::test]
async fn watch_reports_that_the_server_stops_and_ends() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    let mut known = ask(&raw, "Watch", "").await;
    let mut unknown = ask(&raw, "Watch", "nonsense").await;
    assert_eq!(health(&mut known).await, Ok(SERVING));
    assert_eq!(health(&mut unknown).await, Ok(SERVICE_UNKNOWN));
    server.stop();
    assert_eq!(health(&mut known).await, Ok(NOT_SERVING));
    for stream in [&mut known, &mut unknown] {
        let status = health(stream).await.unwrap_err();
        assert_eq!(
            (status.code, status.message.as_str()),
            (Code::Unavailable, "The server is stopping.")
        );
    }
    soon(server.wait()).await;
}

#[tokio::test]
async fn an_unread_watch_does_not_block_the_server() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    let mut watched = ask(&raw, "Watch", "").await;
    assert_eq!(health(&mut watched).await, Ok(SERVING));
    drop(watched);
    let ignored = ask(&raw, "Watch", "").await;
    server.stop();
    soon(server.wait()).await;
    drop(ignored);
}

/// Sends the requests to both services on separate streams, and compares the responses.
async fn reflect(server: &Server, requests: &[MessageRequest]) -> Vec<ServerReflectionResponse> {
    let raw = RawClient::connect(server).await;
    let mut answers: Vec<Vec<ServerReflectionResponse>> = Vec::new();
    for path in [calls::REFLECTION, calls::OLD_REFLECTION] {
        let mut stream = raw.open_path(path, HeaderMap::new()).await;
        let mut responses = Vec::new();
        for request in requests {
            let request = ServerReflectionRequest {
                host: "here".into(),
                message_request: Some(request.clone()),
            };
            stream.send(&request).await;
            let response = ServerReflectionResponse::decode(stream.next().await.unwrap()).unwrap();
            assert_eq!(response.valid_host, "here");
            assert_eq!(response.original_request, Some(request));
            responses.push(response);
        }
        stream.sender.finish();
        assert_eq!(stream.status().await.code, Code::Ok);
        answers.push(responses);
    }
    assert_eq!(answers[0], answers[1]);
    answers.remove(0)
}

/// The names of the files in a response.
fn files(response: &ServerReflectionResponse) -> Vec<String> {
    let Some(MessageResponse::FileDescriptorResponse(files)) = &response.message_response else {
        panic!("no files: {response:?}");
    };
    let name = |file: &bytes::Bytes| {
        prost_types::FileDescriptorProto::decode(file.clone()).unwrap().name().to_owned()
    };
    files.file_descriptor_proto.iter().map(name).collect()
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let server = start(vec![table(config("t"))]);
    let responses = reflect(&server, &[MessageRequest::ListServices("*".into())]).await;
    let Some(MessageResponse::ListServicesResponse(list)) = &responses[0].message_response else {
        panic!("no list: {responses:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "deepmind.reverb.ReverbService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "reverb.ReplayService",
        ]
    );
}

#[tokio::test]
async fn reflection_returns_a_file_with_its_dependencies() {
    let server = start(vec![table(config("t"))]);
    let requests = [
        MessageRequest::FileByFilename("grpc/health/v1/health.proto".into()),
        MessageRequest::FileByFilename("reverb_service.proto".into()),
        MessageRequest::FileContainingSymbol("deepmind.reverb.ReverbService".into()),
        MessageRequest::FileContainingSymbol("deepmind.reverb.ReverbService.Checkpoint".into()),
        MessageRequest::FileContainingSymbol(".deepmind.reverb.InsertStreamRequest.items".into()),
    ];
    let responses = reflect(&server, &requests).await;
    assert_eq!(files(&responses[0]), ["grpc/health/v1/health.proto"]);
    let service = files(&responses[1]);
    assert_eq!(service[..2], ["reverb_service.proto", "schema.proto"]);
    let mut sorted = service.clone();
    sorted.sort();
    assert_eq!(
        sorted,
        [
            "google/protobuf/timestamp.proto",
            "reverb_service.proto",
            "schema.proto",
            "tensorflow/resource_handle.proto",
            "tensorflow/struct.proto",
            "tensorflow/tensor.proto",
            "tensorflow/tensor_shape.proto",
            "tensorflow/types.proto",
        ]
    );
    assert!(responses[2..].iter().all(|response| files(response) == service));
}

#[tokio::test]
async fn reflection_finds_nested_messages_and_values_of_enums() {
    let server = start(vec![table(config("t"))]);
    let symbols = [
        ("deepmind.reverb.FlatTrajectory.ChunkSlice.chunk_key", "schema.proto"),
        ("tensorflow.DT_INT32", "tensorflow/types.proto"),
        ("grpc.health.v1.HealthCheckResponse.NOT_SERVING", "grpc/health/v1/health.proto"),
        ("grpc.reflection.v1alpha.ErrorResponse", "grpc/reflection/v1alpha/reflection.proto"),
    ];
    let ask = |symbol: &str| MessageRequest::FileContainingSymbol(symbol.into());
    let requests: Vec<MessageRequest> = symbols.iter().map(|(symbol, _)| ask(symbol)).collect();
    for (response, (symbol, file)) in reflect(&server, &requests).await.iter().zip(symbols) {
        assert_eq!(files(response)[0], file, "{symbol}");
    }
}

#[tokio::test]
async fn what_reflection_cannot_answer_is_an_error_within_the_stream() {
    let server = start(vec![table(config("t"))]);
    let extension = ExtensionRequest { containing_type: "a.B".into(), extension_number: 1 };
    let cases = [
        (MessageRequest::FileByFilename("a.proto".into()), 5, "There is no file a.proto."),
        (MessageRequest::FileContainingSymbol("a.B".into()), 5, "Nothing is called a.B."),
        (MessageRequest::AllExtensionNumbersOfType("a.B".into()), 12, "have no extensions"),
        (MessageRequest::FileContainingExtension(extension), 12, "have no extensions"),
    ];
    let requests = cases.clone().map(|(request, _, _)| request);
    for (response, (_, code, text)) in reflect(&server, &requests).await.iter().zip(cases) {
        let Some(MessageResponse::ErrorResponse(error)) = &response.message_response else {
            panic!("no error: {response:?}");
        };
        assert_eq!(error.error_code, code);
        assert!(error.error_message.contains(text), "{}", error.error_message);
    }
}
