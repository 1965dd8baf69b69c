// SPDX-License-Identifier: Apache-2.0
//! A sample stream over the network.

use std::time::Duration;

use bytes::Bytes;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{Sampled, spare_samples};

use crate::codec::sample::{SampleDecoder, request as encode_request};
use crate::grpc::fail;
use crate::transport::{ANSWER_GRACE, BoxFuture, SampleRequest, SampleStream, stream_ended};
use reverb_rpc::client::{Call, Channel};
use reverb_rpc::message::Message;
use reverb_rpc::target::{Scheme, ServerAddress, Target};

/// Maximum number of samples for which memory is reserved before they arrive.
const MAX_CAPACITY: usize = 256;

pub(super) struct GrpcSampleStream {
    call: Call,
    decoder: SampleDecoder,
    /// Number of requested samples that have not arrived yet.
    outstanding: usize,
    timeout: Option<Duration>,
    several: Option<SeveralServers>,
}

/// The servers of an address with several; a stream samples one of them.
pub(super) struct SeveralServers {
    number: usize,
    target: String,
    as_group: String,
}

impl SeveralServers {
    pub(super) fn of(channel: &Channel) -> Self {
        Self {
            number: channel.num_servers(),
            target: channel.target().to_owned(),
            as_group: as_group(channel.servers()),
        }
    }

    /// Adds the name of the server whose rate limiter timed out, and a hint that others may have
    /// items.
    fn explain(&self, error: Error, peer: &str) -> Error {
        if error.kind() != ErrorKind::RateLimiterTimeout {
            return error;
        }
        let Self { number, target, as_group } = self;
        error.followed_by(&format!(
            "It waited at {peer}, one of the {number} servers behind {target}: a sample stream asks one \
             of them only. A client of {as_group} samples from all of them."
        ))
    }
}

/// Address of a group of these servers.
fn as_group(target: &Target) -> String {
    let scheme = match target.scheme {
        Scheme::Unsaid => "shards",
        Scheme::Cleartext => "shards+grpc",
        Scheme::Tls => "shards+grpcs",
    };
    let servers: Vec<String> = target.servers.iter().map(ServerAddress::authority).collect();
    format!("{scheme}:///{}", servers.join(","))
}

impl GrpcSampleStream {
    pub(super) fn new(call: Call, several: Option<SeveralServers>) -> Self {
        Self { call, decoder: SampleDecoder::new(), outstanding: 0, timeout: None, several }
    }

    async fn next_samples(&mut self) -> Result<Vec<Sampled>> {
        if self.outstanding == 0 {
            return Err(Error::failed_precondition("No samples were requested on this stream."));
        }
        let mut samples = spare_samples();
        samples.reserve(self.outstanding.min(MAX_CAPACITY));
        while samples.is_empty() {
            // The last of a request's messages, without samples.
            if self.decoder.take_epoch_end() {
                self.outstanding = 0;
                return Ok(samples);
            }
            let Some(message) = self.next_message().await? else {
                return Err(stream_ended(self.call.reply.peer()));
            };
            if let Err(error) = self.decoder.push(&message, &mut samples) {
                let what = format!("sent a damaged sample: {error}");
                return Err(fail(&mut self.call.reply, ErrorKind::DataLoss, &what));
            }
        }
        let Some(outstanding) = self.outstanding.checked_sub(samples.len()) else {
            let what = "sent more samples than were requested.";
            return Err(fail(&mut self.call.reply, ErrorKind::Internal, what));
        };
        self.outstanding = outstanding;
        Ok(samples)
    }

    /// Next message. A server that is silent for longer than the timeout allows has lost the
    /// request, even if it answers PINGs.
    async fn next_message(&mut self) -> Result<Option<Bytes>> {
        let Some(timeout) = self.timeout else { return self.call.reply.next().await };
        let limit = timeout.saturating_add(ANSWER_GRACE);
        loop {
            let before = self.call.reply.partial_bytes();
            if let Ok(message) = tokio::time::timeout(limit, self.call.reply.next()).await {
                return message;
            }
            // A large message may arrive slowly.
            if self.call.reply.partial_bytes() == before {
                let what = format!(
                    "has sent nothing for {} s, although the timeout of the request was {} ms.",
                    limit.as_secs(),
                    timeout.as_millis()
                );
                return Err(fail(&mut self.call.reply, ErrorKind::DeadlineExceeded, &what));
            }
        }
    }
}

impl SampleStream for GrpcSampleStream {
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()> {
        if request.num_samples == 0 {
            return Err(Error::invalid_argument("num_samples must be at least 1, got 0."));
        }
        self.outstanding = self.outstanding.saturating_add(request.num_samples);
        self.timeout = request.timeout;
        // If this fails, the stream has ended, and `receive` returns the reason.
        let _ = self.call.sender.send_now(Message::encode(&encode_request(request)));
        Ok(())
    }

    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(async {
            let samples = self.next_samples().await;
            samples.map_err(|error| match &self.several {
                Some(several) => several.explain(error, self.call.reply.peer()),
                None => error,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_of_an_address_are_a_group_as_well() {
        for (target, group) in [
            ("a:1,b:2", "shards:///a:1,b:2"),
            ("dns:///replay:80", "shards:///replay:80"),
            ("grpc://a:1, [::1]:2", "shards+grpc:///a:1,[::1]:2"),
            ("grpcs://a:1,b:2", "shards+grpcs:///a:1,b:2"),
        ] {
            assert_eq!(as_group(&Target::parse(target).unwrap()), group);
        }
    }
}
