// SPDX-License-Identifier: Apache-2.0
//! Connections that send neither gRPC, HTTP/2 nor valid messages: the server stays up.

use crate::support::*;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, Version};
use reverb_data::KeyGenerator;
use reverb_rpc::status::{Code, Status};
use reverb_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn connect(server: &Server) -> SendRequest<Bytes> {
    let socket = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    let (handle, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    handle
}

fn post(method: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() =
        format!("http://test/deepmind.reverb.ReverbService/{method}").parse().unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request
}

/// Sends `data` in data frames and ends the stream; returns its status.
async fn status(handle: &SendRequest<Bytes>, method: &str, data: &[u8]) -> Status {
    let mut handle = handle.clone().ready().await.unwrap();
    let (response, mut stream) = handle.send_request(post(method), false).unwrap();
    stream.send_data(Bytes::copy_from_slice(data), true).unwrap();
    let response = soon(response).await.unwrap();
    Status::from_headers(response.headers()).expect("a status in place of headers")
}

#[tokio::test]
async fn frames_that_lie_are_invalid_arguments() {
    let server = start(vec![table(config("t"))]);
    let handle = connect(&server).await;
    for method in ["InsertStream", "SampleStream", "Reset"] {
        let too_long = status(&handle, method, &[0, 0xff, 0xff, 0xff, 0xff, 1, 2]).await;
        assert_eq!(too_long.code, Code::ResourceExhausted, "{method}: {}", too_long.message);
        for data in [&[0, 0, 0, 4, 0, 1, 2][..], &[0, 0, 0], &[0, 0, 0, 0, 9, 1]] {
            let status = status(&handle, method, data).await;
            assert_eq!(status.code, Code::InvalidArgument, "{method}: {}", status.message);
            assert!(status.message.contains("in the middle of a message"), "{}", status.message);
        }
        assert_eq!(status(&handle, method, &[2, 0, 0, 0, 0]).await.code, Code::Internal);
        assert_eq!(status(&handle, method, &[1, 0, 0, 0, 0]).await.code, Code::Internal);
    }
    assert_eq!(status(&handle, "Reset", &[]).await.code, Code::InvalidArgument);
    let two = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(status(&handle, "Reset", &two).await.code, Code::InvalidArgument);
}

#[tokio::test]
async fn other_http_is_refused_as_http() {
    let server = start(vec![table(config("t"))]);
    let handle = connect(&server).await;
    let mut get = post("Reset");
    *get.method_mut() = Method::GET;
    let mut json = post("Reset");
    json.headers_mut().insert("content-type", "application/json".parse().unwrap());
    for (request, code) in [(get, 405), (json, 415)] {
        let mut handle = handle.clone().ready().await.unwrap();
        let (response, _) = handle.send_request(request, true).unwrap();
        assert_eq!(soon(response).await.unwrap().status().as_u16(), code);
    }
    let mut elsewhere = post("Reset");
    *elsewhere.uri_mut() = "http://test/some.Other/Reset".parse().unwrap();
    let mut handle = handle.clone().ready().await.unwrap();
    let (response, _) = handle.send_request(elsewhere, true).unwrap();
    let response = soon(response).await.unwrap();
    assert_eq!(Status::from_headers(response.headers()).unwrap().code, Code::Unimplemented);
}

#[tokio::test]
async fn bytes_that_are_no_http_end_only_their_connection() {
    let server = start(vec![table(config("t"))]);
    let mut keys = KeyGenerator::new();
    for round in 0..50 {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
        let mut noise = match round % 3 {
            0 => b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            1 => Vec::new(),
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        };
        noise.extend((0..200).flat_map(|_| keys.next_key().to_le_bytes()));
        // The server may close the connection while the test still writes.
        let _ = socket.write_all(&noise).await;
        let _ = socket.shutdown().await;
        let _ = soon(socket.read_to_end(&mut Vec::new())).await;
    }
    assert_eq!(client(&server).server_info().await.unwrap().tables.len(), 1);
}
