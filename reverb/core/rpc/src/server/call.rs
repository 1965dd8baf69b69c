// SPDX-License-Identifier: Apache-2.0
//! One call: its headers are checked, the handler answers it, and a status ends it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use h2::RecvStream;
use http::{HeaderMap, Method, Request, StatusCode, header};
use reverb_base::Result;

use super::peer::Peer;
use super::responder::Responder;
use super::stop::Stop;
use super::unadmitted_calls::CountedCall;
use crate::framing::{Compression, Frames, MessageReader, UnreadBytes};
use crate::status::{Code, Status};

/// Answers the calls of a server.
pub trait Handler: Send + Sync + 'static {
    /// Result of `identify`: the caller, or the refusal of its call.
    type Caller: Send + 'static;
    /// Proof by which a caller was admitted. It may be revoked.
    type Admission: PartialEq + Send + Sync + 'static;

    /// Identifies the caller by the headers of a call, before anything else of it is read.
    /// `authorization` is the header of that name, which holds a secret. The calls of a connection
    /// come here one after the other.
    ///
    /// There is no admission if the caller is unknown, or if the call requires none. A connection
    /// without any admission gets few resources, and may be closed.
    fn identify(
        &self,
        path: &str,
        peer: &Peer,
        authorization: Option<&str>,
    ) -> (Self::Caller, Option<Self::Admission>);

    /// Returns true for a call by which an operator sees or steers the server, of a caller who may
    /// make it: a few connections beyond the limit are kept for these.
    fn is_for_operators(&self, _path: &str, _caller: &Self::Caller) -> bool {
        false
    }

    /// Returns true if a caller would still be admitted. If not, its connections end.
    fn still_admits(&self, admission: &Self::Admission) -> bool;

    /// Answers a call and returns its status. `path` is the method, `reader` gives its messages,
    /// and `responder` sends the answers. An error becomes the status of the call.
    fn answer(
        self: &Arc<Self>,
        path: &str,
        caller: Self::Caller,
        reader: MessageReader,
        responder: &mut Responder,
    ) -> impl Future<Output = Result<Status>> + Send;
}

pub(super) async fn run<H: Handler>(
    handler: &Arc<H>,
    stop: &Stop,
    request: Request<RecvStream>,
    caller: H::Caller,
    counted: CountedCall,
    unread: UnreadBytes,
    mut responder: Responder,
) {
    let (head, body) = request.into_parts();
    // Peers that open and reset streams as fast as they can would fill the memory with calls.
    if responder.is_cancelled() {
        return responder.count_end(Code::Cancelled, None);
    }
    if head.method != Method::POST {
        return responder.refuse(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !is_grpc(&head.headers) {
        return responder.refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let result = match Compression::from_headers(&head.headers) {
        Ok(compression) => {
            let frames = Frames::new(body, unread);
            let peer = responder.peer().name();
            let reader = MessageReader::over(frames.clone(), compression, peer);
            let answering = pin!(handler.answer(head.uri.path(), caller, reader, &mut responder));
            let mut answering = pin!(counted.or_displaced(answering));
            poll_fn(|context| {
                frames.begin_step();
                let answered = answering.as_mut().poll(context);
                if answered.is_pending()
                    && let Err(error) = frames.take_in(context)
                {
                    return Poll::Ready(Err(error));
                }
                answered
            })
            .await
        }
        Err(error) => Err(error),
    };
    let status = match &result {
        Ok(status) => status.clone(),
        Err(error) => Status::from_error(&stop.explain(error.clone())),
    };
    responder.count_end(status.code, result.as_ref().err());
    responder.finish(&status);
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}
