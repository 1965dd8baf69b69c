// SPDX-License-Identifier: Apache-2.0
//! Reactions of a client to a server that follows a script, including odd ones.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use reverb_base::error::SENT_RATE_LIMITER_TIMEOUT;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::Sampled;
use reverb_wire::generated::ResetRequest;
use reverb_wire::transport::{InsertBatch, SampleRequest, ScanOptions, Transport};
use reverb_wire::{Calls, GrpcTransport};
use tokio::net::TcpListener;

const SAMPLE: &[u8] = include_bytes!("../captures/sample_resp_int32_plain_3.bin");

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Headers without a status.
    Headers,
    /// A message.
    Message(&'static [u8]),
    /// Raw bytes of a data frame.
    Data(&'static [u8]),
    /// Trailers with a code and a text.
    Trailers(&'static str, &'static str),
    /// A status in place of the headers.
    OnlyTrailers(&'static str, &'static str),
    /// The data frames end, and no trailers come.
    EndWithoutTrailers,
    Reset(Reason),
    /// Another HTTP status.
    Http(u16),
}

use Step::*;

/// Serves every stream by the script; returns the address.
async fn serve(script: &'static [Step]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                while let Some(Ok((request, response))) = connection.accept().await {
                    tokio::spawn(follow(script, request, response));
                }
            });
        }
    });
    address
}

fn status(code: &str, text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", code.parse().unwrap());
    headers.insert("grpc-message", text.parse().unwrap());
    headers
}

async fn follow(
    script: &[Step],
    mut request: Request<RecvStream>,
    mut response: SendResponse<Bytes>,
) {
    // Waits for the first message of the client.
    let _ = request.body_mut().data().await;
    let mut stream = None;
    for &step in script {
        let mut head = Response::new(());
        match step {
            Headers => stream = Some(response.send_response(head, false).unwrap()),
            Message(body) => {
                let mut framed = vec![0];
                framed.extend_from_slice(&(body.len() as u32).to_be_bytes());
                framed.extend_from_slice(body);
                stream.as_mut().unwrap().send_data(framed.into(), false).unwrap();
            }
            Data(bytes) => {
                stream.as_mut().unwrap().send_data(Bytes::from_static(bytes), false).unwrap();
            }
            Trailers(code, text) => {
                stream.as_mut().unwrap().send_trailers(status(code, text)).unwrap();
            }
            OnlyTrailers(code, text) => {
                *head.headers_mut() = status(code, text);
                response.send_response(head, true).unwrap();
            }
            EndWithoutTrailers => stream.as_mut().unwrap().send_data(Bytes::new(), true).unwrap(),
            Reset(reason) => stream.as_mut().unwrap().send_reset(reason),
            Http(code) => {
                *head.status_mut() = code.try_into().unwrap();
                response.send_response(head, true).unwrap();
            }
        }
        // Each step is a separate frame, which the client receives before the next one.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The client may continue to send.
    while let Some(Ok(data)) = request.body_mut().data().await {
        let _ = request.body_mut().flow_control().release_capacity(data.len());
    }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), work).await.expect("this took too long")
}

async fn sample(script: &'static [Step], count: usize) -> (Vec<Sampled>, Error) {
    let transport = GrpcTransport::new(&serve(script).await).unwrap();
    let mut stream = transport.open_sample().await.unwrap();
    stream.request(&SampleRequest::new("lifo", count, None)).unwrap();
    let mut samples = Vec::new();
    loop {
        match soon(stream.receive()).await {
            Ok(more) => samples.extend(more),
            Err(error) => {
                // A stream that has ended stays ended, and another request is harmless.
                let _ = stream.request(&SampleRequest::new("lifo", 1, None));
                assert_eq!(soon(stream.receive()).await.unwrap_err(), error);
                return (samples, error);
            }
        }
    }
}

async fn scan(script: &'static [Step]) -> (Vec<Sampled>, Option<Error>) {
    let transport = GrpcTransport::new(&serve(script).await).unwrap();
    let mut stream = transport.open_scan("lifo", ScanOptions::default()).await.unwrap();
    let mut items = Vec::new();
    loop {
        let received = soon(stream.receive()).await;
        match received {
            Ok(more) if more.is_empty() => return (items, None),
            Ok(more) => items.extend(more),
            Err(error) => {
                assert_eq!(soon(stream.receive()).await.unwrap_err(), error);
                return (items, Some(error));
            }
        }
    }
}

async fn insert(script: &'static [Step]) -> (Vec<u64>, Option<Error>, Error) {
    let transport = GrpcTransport::new(&serve(script).await).unwrap();
    let mut stream = transport.open_insert().await.unwrap();
    stream.sink.send(InsertBatch { keep_chunk_keys: vec![1], ..Default::default() }).await.unwrap();
    let mut keys = Vec::new();
    let end = loop {
        match soon(stream.confirmations.recv()).await {
            Some(Ok(more)) => keys.extend(more),
            Some(Err(error)) => break Some(error),
            None => break None,
        }
    };
    let error = soon(stream.sink.send(InsertBatch::default())).await.unwrap_err();
    (keys, end, error)
}

async fn call(script: &'static [Step]) -> Result<()> {
    let transport = GrpcTransport::new(&serve(script).await).unwrap();
    let reset = ResetRequest { table: "t".into(), ..ResetRequest::default() };
    soon(transport.call(reset)).await.map(drop)
}

#[tokio::test]
async fn the_status_is_kept_after_a_reset() {
    for reason in [None, Some(Reason::NO_ERROR), Some(Reason::CANCEL)] {
        let script: &'static [Step] = match reason {
            None => &[Headers, Message(SAMPLE), Trailers("8", "enough")],
            Some(Reason::NO_ERROR) => {
                &[Headers, Message(SAMPLE), Trailers("8", "enough"), Reset(Reason::NO_ERROR)]
            }
            _ => &[Headers, Message(SAMPLE), Trailers("8", "enough"), Reset(Reason::CANCEL)],
        };
        let (samples, error) = sample(script, 2).await;
        assert_eq!((samples.len(), error.kind()), (1, ErrorKind::ResourceExhausted), "{reason:?}");
        assert_eq!(error.message(), "enough");
    }
}

#[tokio::test]
async fn every_end_of_a_sample_stream_has_its_kind() {
    let (_, error) = sample(&[OnlyTrailers("14", "going%20away")], 1).await;
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "going away"));
    let (_, error) = sample(&[OnlyTrailers("2", "Stream removed")], 1).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let (_, error) = sample(&[OnlyTrailers("4", SENT_RATE_LIMITER_TIMEOUT)], 1).await;
    assert_eq!(error.kind(), ErrorKind::RateLimiterTimeout);
    let (_, error) = sample(&[OnlyTrailers("4", "Deadline Exceeded")], 1).await;
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    // Without an error, but also without the samples.
    let (samples, error) = sample(&[Headers, Message(SAMPLE), Trailers("0", "")], 2).await;
    assert_eq!((samples.len(), error.kind()), (1, ErrorKind::Unavailable));
    let (_, error) = sample(&[Headers, Reset(Reason::CANCEL)], 1).await;
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let (_, error) = sample(&[Headers, Reset(Reason::INTERNAL_ERROR)], 1).await;
    assert_eq!(error.kind(), ErrorKind::Internal);
    let (_, error) = sample(&[Headers, EndWithoutTrailers], 1).await;
    assert_eq!(error.kind(), ErrorKind::Internal);
    let (_, error) = sample(&[Http(503)], 1).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let (_, error) = sample(&[Http(404)], 1).await;
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
    for denied in [&[OnlyTrailers("7", "no")], &[Http(403)]] as [&'static [Step]; 2] {
        assert_eq!(sample(denied, 1).await.1.kind(), ErrorKind::PermissionDenied);
    }
    for unknown in [&[OnlyTrailers("16", "who?")], &[Http(401)]] as [&'static [Step]; 2] {
        assert_eq!(sample(unknown, 1).await.1.kind(), ErrorKind::Unauthenticated);
    }
}

#[tokio::test]
async fn damaged_answers_are_errors_that_name_the_server() {
    let (samples, error) = sample(&[Headers, Message(SAMPLE), Message(&[0x0a, 0x7f])], 2).await;
    assert_eq!((samples.len(), error.kind()), (1, ErrorKind::DataLoss));
    assert!(error.message().contains("127.0.0.1:"), "{error}");
    let (_, error) = sample(&[Headers, Data(&[7, 0, 0, 0, 0])], 1).await;
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    let lying = &[Headers, Data(&[0, 255, 255, 255, 255, 1]), Trailers("0", "")];
    assert!(sample(lying, 1).await.1.message().contains("in the middle of a message"));
    assert_eq!(call(&[Headers, Trailers("0", "")]).await.unwrap_err().kind(), ErrorKind::Internal);
    let twice = call(&[Headers, Message(&[]), Message(&[]), Trailers("0", "")]).await;
    assert!(twice.unwrap_err().message().contains("more than one answer"));
    let error = call(&[Headers, Message(&[]), Trailers("9", "closed")]).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::FailedPrecondition, "closed"));
    assert_eq!(call(&[Headers, Message(&[]), Trailers("0", "")]).await, Ok(()));
}

#[tokio::test]
async fn too_many_samples_are_an_error() {
    let two: &'static [u8] = Box::leak([SAMPLE, SAMPLE].concat().into_boxed_slice());
    let script: &'static [Step] = Box::leak(Box::new([Headers, Message(two)]));
    let (samples, error) = sample(script, 1).await;
    assert!(samples.is_empty());
    assert!(error.message().contains("more samples than were requested"), "{error}");
}

#[tokio::test]
async fn a_server_that_keeps_silent_does_not_hold_a_request_with_a_timeout() {
    let server = GrpcTransport::new(&serve(&[Headers]).await).unwrap();
    let mut stream = soon(server.open_sample()).await.unwrap();
    let timeout = Some(Duration::from_millis(1500));
    let options = reverb_data::SampleOptions::default();
    let request = SampleRequest { options, ..SampleRequest::new("t", 1, timeout) };
    stream.request(&request).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(100), stream.receive()).await.is_err());
    // From here on the clock jumps to the next moment at which something happens.
    tokio::time::pause();
    let error = stream.receive().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(
        error
            .message()
            .contains("has sent nothing for 11 s, although the timeout of the request was 1500"),
        "{error}"
    );
}

#[tokio::test]
async fn a_scan_ends_normally_or_with_a_reason() {
    let (items, error) = scan(&[Headers, Message(SAMPLE), Message(&[]), Trailers("0", "")]).await;
    assert_eq!((items.len(), error), (1, None));
    let (items, error) = scan(&[Headers, Message(SAMPLE), Trailers("14", "going away")]).await;
    assert_eq!((items.len(), error.unwrap().kind()), (1, ErrorKind::Unavailable));
    // An entry with information about an item that is never completed.
    let begun = &[Headers, Message(&[0x0a, 2, 0x0a, 0]), Trailers("0", "")];
    let (items, error) = scan(begun).await;
    let error = error.unwrap();
    assert_eq!((items.len(), error.kind()), (0, ErrorKind::DataLoss));
    assert!(error.message().contains("in the middle of an item"), "{error}");
    let (_, error) = scan(&[Headers, Message(&[0x0a, 0x7f])]).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::DataLoss);
    let (_, error) = scan(&[Headers, EndWithoutTrailers]).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Internal);
}

#[tokio::test]
async fn a_server_without_scans_is_reported() {
    for script in [&[OnlyTrailers("12", "")], &[Http(404)]] as [&'static [Step]; 2] {
        let error = scan(script).await.1.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unimplemented);
        assert!(error.message().contains("it is a server of dm-reverb"), "{error}");
        assert!(error.message().contains("127.0.0.1:"), "{error}");
    }
}

#[tokio::test]
async fn a_writer_gets_the_reason_why_its_stream_ended() {
    const KEYS: &[u8] = include_bytes!("../captures/insert_resp_multi.bin");
    let (keys, end, error) =
        insert(&[Headers, Message(KEYS), Trailers("14", "going away"), Reset(Reason::NO_ERROR)])
            .await;
    assert_eq!(keys.len(), 3);
    assert_eq!(end.unwrap().kind(), ErrorKind::Unavailable);
    assert_eq!(error.message(), "going away");
    let (_, end, error) = insert(&[OnlyTrailers("5", "no such table")]).await;
    assert_eq!(end.unwrap().kind(), ErrorKind::TableNotFound);
    assert_eq!(error.message(), "no such table");
    // Without an error: nothing more comes, and another write is a transient error.
    let (_, end, error) = insert(&[Headers, Trailers("0", "")]).await;
    assert_eq!(end, None);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_port_without_a_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let transport = GrpcTransport::new(&address.to_string()).unwrap();
    for _ in 0..2 {
        let error = soon(transport.server_info()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains(&address.to_string()), "{error}");
    }
    let nowhere = GrpcTransport::new("no-such-host.invalid:80").unwrap();
    let error = soon(nowhere.server_info()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("no-such-host.invalid:80"), "{error}");
}
