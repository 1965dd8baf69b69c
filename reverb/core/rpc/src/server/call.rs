// SPDX-License-Identifier: Apache-2.0
//! One call: its headers are checked, the handler answers it, and a status ends it.

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Method, Request, StatusCode, header};
use reverb_data::Result;

use super::responder::Responder;
use super::stop::Stop;
use crate::frames::{Compression, MessageReader};
use crate::keepalive::OpenCall;
use crate::message::Message;
use crate::status::Status;

/// Answers the calls of a server.
pub trait Handler: Send + Sync + 'static {
    /// Answers a call and returns its status. `path` is the method, `reader` gives its messages,
    /// and `responder` sends the answers. An error becomes the status of the call.
    fn answer(
        self: &Arc<Self>,
        path: &str,
        reader: MessageReader,
        responder: &mut Responder,
    ) -> impl Future<Output = Result<Status>> + Send;
}

/// Runs one call until its end.
pub(super) async fn run(
    handler: Arc<impl Handler>,
    stop: Stop,
    request: Request<RecvStream>,
    response: SendResponse<Message>,
    peer: Arc<str>,
    call: OpenCall,
    unread_timeout: Duration,
) {
    let mut responder = Responder::new(response, call, &peer, unread_timeout);
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
            handler.answer(head.uri.path(), reader, &mut responder).await
        }
        Err(error) => Err(error),
    };
    let status = match result {
        Ok(status) => status,
        Err(error) => Status::from_error(&stop.explain(error)),
    };
    responder.finish(&status);
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}
