// SPDX-License-Identifier: Apache-2.0
//! What is held as long as a stream is open, over the network.

use reverb_base::{Error, Result};
use reverb_rpc::client::{Call, Reply};
use reverb_rpc::framing::MessageSender;
use reverb_rpc::message::Message;

use crate::calls;
use crate::transport::{BoxFuture, Hold, HoldRequest};

impl HoldRequest {
    /// Path of its call.
    pub(super) fn path(&self) -> &'static str {
        match self {
            Self::RateLimiter(_) => calls::HOLD_RATE_LIMITER,
            Self::Leases(_) => calls::HOLD_LEASES,
        }
    }

    /// End of "The server does not ..." for a server without this call.
    pub(super) fn missing(&self) -> &'static str {
        match self {
            Self::RateLimiter(_) => "turn its rate limiters off",
            Self::Leases(_) => "know rollouts",
        }
    }

    fn message(&self) -> Message {
        match self {
            Self::RateLimiter(request) => Message::encode(request),
            Self::Leases(request) => Message::encode(request),
        }
    }
}

/// The hold is in force as long as the stream is open.
pub(super) struct GrpcHold {
    sender: MessageSender,
    reply: Reply,
}

impl GrpcHold {
    pub(super) async fn begin(mut call: Call, request: &HoldRequest) -> Result<Self> {
        // If this fails, the stream has already ended, and the reply has the reason.
        let _ = call.sender.send_now(request.message());
        let Call { sender, mut reply, .. } = call;
        match reply.next().await? {
            Some(_) => Ok(Self { sender, reply }),
            None => Err(Error::unavailable(format!(
                "The server at {} did not begin the hold.",
                reply.peer()
            ))),
        }
    }
}

impl Hold for GrpcHold {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.sender.finish();
            self.reply.next().await.map(drop)
        })
    }

    fn lost(&mut self) -> BoxFuture<'_, ()> {
        // The only message has come; what comes is the end.
        Box::pin(async { drop(self.reply.next_in_background().await) })
    }
}
