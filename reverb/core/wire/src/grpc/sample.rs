// SPDX-License-Identifier: Apache-2.0
//! A sample stream over the network.

use std::time::Duration;

use bytes::Bytes;
use reverb_data::{Error, ErrorKind, Result, Sampled, spare_samples};

use crate::codec::sample::{SampleDecoder, request as encode_request};
use crate::transport::{BoxFuture, SampleRequest, SampleStream, stream_ended};
use reverb_rpc::client::Call;
use reverb_rpc::message::Message;

/// The most samples for which room is made before they arrive.
const MAX_CAPACITY: usize = 256;

/// How much longer than the timeout of a request its answer may take.
const GRACE: Duration = Duration::from_secs(10);

pub(super) struct GrpcSampleStream {
    call: Call,
    decoder: SampleDecoder,
    /// Number of requested samples that have not arrived yet.
    outstanding: usize,
    /// The timeout of the last request.
    timeout: Option<Duration>,
}

impl GrpcSampleStream {
    pub(super) fn new(call: Call) -> Self {
        Self { call, decoder: SampleDecoder::new(), outstanding: 0, timeout: None }
    }

    async fn next_samples(&mut self) -> Result<Vec<Sampled>> {
        if self.outstanding == 0 {
            return Err(Error::failed_precondition("No samples were requested on this stream."));
        }
        let mut samples = spare_samples();
        samples.reserve(self.outstanding.min(MAX_CAPACITY));
        while samples.is_empty() {
            let Some(message) = self.next_message().await? else {
                return Err(stream_ended(self.call.reply.peer()));
            };
            if let Err(error) = self.decoder.push(&message, &mut samples) {
                return Err(
                    self.fail(ErrorKind::DataLoss, &format!("sent a damaged sample: {error}"))
                );
            }
        }
        match self.outstanding.checked_sub(samples.len()) {
            Some(outstanding) => self.outstanding = outstanding,
            None => {
                return Err(
                    self.fail(ErrorKind::Internal, "sent more samples than were requested.")
                );
            }
        }
        Ok(samples)
    }

    /// The next message. A server that keeps silent for longer than the timeout allows has lost the
    /// request, whatever it answers to pings.
    async fn next_message(&mut self) -> Result<Option<Bytes>> {
        let Some(timeout) = self.timeout else { return self.call.reply.next().await };
        let limit = timeout.saturating_add(GRACE);
        loop {
            let before = self.call.reply.partial_bytes();
            if let Ok(message) = tokio::time::timeout(limit, self.call.reply.next()).await {
                return message;
            }
            // A large message may take its time.
            if self.call.reply.partial_bytes() == before {
                let what = format!(
                    "has said nothing for {} s, and the timeout of the request was {} ms.",
                    limit.as_secs(),
                    timeout.as_millis()
                );
                return Err(self.fail(ErrorKind::DeadlineExceeded, &what));
            }
        }
    }

    /// Ends the stream, because nothing after such an error can be trusted.
    fn fail(&mut self, kind: ErrorKind, what: &str) -> Error {
        let error = Error::new(kind, format!("The server at {} {what}", self.call.reply.peer()));
        self.call.reply.abandon(error.clone());
        error
    }
}

impl SampleStream for GrpcSampleStream {
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()> {
        if request.num_samples == 0 {
            return Err(Error::invalid_argument("num_samples must be at least 1, got 0."));
        }
        self.outstanding = self.outstanding.saturating_add(request.num_samples);
        self.timeout = request.timeout;
        // If this fails, the stream is over, and `receive` returns the reason.
        let _ = self.call.ask(Message::encode(&encode_request(request)));
        Ok(())
    }

    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(self.next_samples())
    }
}
