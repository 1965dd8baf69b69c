// SPDX-License-Identifier: Apache-2.0
//! One call: its headers are checked, the handler answers it, and a status ends it.

use std::sync::Arc;

use h2::RecvStream;
use http::{HeaderMap, Method, Request, StatusCode, header};
use reverb_data::{Error, Result};

use super::responder::Responder;
use super::stop::Stop;
use super::traffic::Traffic;
use crate::frames::{Compression, MessageReader};
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
    handler: &Arc<impl Handler>,
    stop: &Stop,
    traffic: &Traffic,
    request: Request<RecvStream>,
    mut responder: Responder,
) {
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        return responder.refuse(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !is_grpc(&head.headers) {
        return responder.refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let result = match Compression::from_headers(&head.headers) {
        Ok(compression) => {
            let reader = MessageReader::new(body, compression, responder.peer().name());
            handler.answer(head.uri.path(), reader, &mut responder).await
        }
        Err(error) => Err(error),
    };
    let limit = result.as_ref().err().and_then(Error::limit);
    let status = match result {
        Ok(status) => status,
        Err(error) => Status::from_error(&stop.explain(error)),
    };
    traffic.count_end(head.uri.path(), status.code, limit);
    responder.finish(&status);
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}
