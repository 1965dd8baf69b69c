// SPDX-License-Identifier: Apache-2.0
//! A rate limiter that is turned off, over the network.

use reverb_base::{Error, Result};
use reverb_rpc::client::{Call, Reply};
use reverb_rpc::framing::MessageSender;
use reverb_rpc::message::Message;

use crate::generated::reverb::HoldRateLimiterRequest;
use crate::transport::{BoxFuture, RateLimiterHold};

/// The open stream keeps the limiter off.
pub(super) struct GrpcLimiterHold {
    sender: MessageSender,
    reply: Reply,
}

impl GrpcLimiterHold {
    pub(super) async fn begin(mut call: Call, request: &HoldRateLimiterRequest) -> Result<Self> {
        // If this fails, the stream has already ended, and the reply has the reason.
        let _ = call.sender.send_now(Message::encode(request));
        let Call { sender, mut reply, .. } = call;
        match reply.next().await? {
            Some(_) => Ok(Self { sender, reply }),
            None => Err(Error::unavailable(format!(
                "The server at {} did not turn the rate limiter off.",
                reply.peer()
            ))),
        }
    }
}

impl RateLimiterHold for GrpcLimiterHold {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.sender.finish();
            self.reply.next().await.map(drop)
        })
    }
}
