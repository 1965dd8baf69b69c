// SPDX-License-Identifier: Apache-2.0
//! A sample stream over the network.

use std::time::Duration;

use reverb_data::{Error, Result, Sampled};

use crate::codec::sample::{SampleDecoder, request};
use crate::grpc::{Answer, Call};
use crate::message::Message;
use crate::stream::MessageSender;
use crate::transport::{BoxFuture, SampleStream, stream_ended};

pub(super) struct GrpcSampleStream {
    sender: MessageSender,
    answer: Answer,
    decoder: SampleDecoder,
    /// Samples that were asked for and have not come.
    outstanding: usize,
}

impl GrpcSampleStream {
    pub(super) fn new(call: Call) -> Self {
        let Call { sender, answer } = call;
        Self { sender, answer, decoder: SampleDecoder::new(), outstanding: 0 }
    }

    async fn next_samples(&mut self) -> Result<Vec<Sampled>> {
        if self.outstanding == 0 {
            return Err(Error::failed_precondition("No samples were requested on this stream."));
        }
        let mut samples = Vec::new();
        while samples.is_empty() {
            let Some(message) = self.answer.next().await? else {
                return Err(stream_ended(self.answer.peer()));
            };
            self.decoder.push(&message, &mut samples)?;
        }
        self.outstanding = self.outstanding.checked_sub(samples.len()).ok_or_else(|| {
            Error::internal(format!(
                "The server at {} sent more samples than were requested.",
                self.answer.peer()
            ))
        })?;
        Ok(samples)
    }
}

impl SampleStream for GrpcSampleStream {
    fn request(
        &mut self,
        table: &str,
        num_samples: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        if num_samples == 0 {
            return Err(Error::invalid_argument("num_samples must be at least 1, got 0."));
        }
        self.outstanding = self.outstanding.saturating_add(num_samples);
        // If the stream is over, `receive` says why.
        let _ = self.sender.send_now(Message::of(&request(table, num_samples, timeout)));
        Ok(())
    }

    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(self.next_samples())
    }
}
