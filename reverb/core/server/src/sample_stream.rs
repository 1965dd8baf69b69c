// SPDX-License-Identifier: Apache-2.0
//! The sample stream: receives requests and sends exactly the requested number of samples, in
//! order.

use std::time::Duration;

use bytes::Bytes;
use reverb_auth::Right;
use reverb_data::{Error, Result, Sampled, keep_samples};
use reverb_rpc::Message;
use reverb_rpc::frames::MessageReader;
use reverb_rpc::server::{Responder, decode};
use reverb_wire::codec::sample::{self, SampleEncoder};
use reverb_wire::generated::SampleStreamRequest;

use crate::caller::Caller;
use crate::selection::Selection;
use crate::service::Service;
use crate::status::explain_timeout;
use crate::streams::{Stream, WaitsFor};

/// Number of samples taken from a table per lock at first; it doubles after every full batch.
const FIRST_BATCH: usize = 128;

/// Serves the stream, request by request, until the reader closes its half.
pub(crate) async fn run(
    service: &Service,
    caller: &Caller,
    stream: &Stream,
    mut requests: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let mut encoder = SampleEncoder::new();
    while let Some(message) = next_request(service, &mut requests).await? {
        let request: SampleStreamRequest = decode(message)?;
        serve_request(service, caller, stream, &request, &mut encoder, responder).await?;
    }
    Ok(())
}

async fn next_request(service: &Service, requests: &mut MessageReader) -> Result<Option<Bytes>> {
    tokio::select! {
        biased;
        error = service.interrupted() => Err(error),
        message = requests.next() => message,
    }
}

async fn serve_request(
    service: &Service,
    caller: &Caller,
    stream: &Stream,
    request: &SampleStreamRequest,
    encoder: &mut SampleEncoder,
    responder: &mut Responder,
) -> Result<()> {
    let (name, table) = service.table_for(caller, Right::Sample, &request.table)?;
    stream.use_table(name);
    let mut selection = Selection::new(table, &request.columns)?;
    let mut remaining = usize::try_from(request.num_samples).unwrap_or(0);
    if remaining == 0 {
        return Err(Error::invalid_argument(format!(
            "`num_samples` must be > 0 (got{}).",
            request.num_samples
        )));
    }
    let timeout = timeout(request);
    let mut options = sample::options(request)?;
    let mut batch = FIRST_BATCH;
    let mut messages = Vec::new();
    while remaining > 0 {
        // A batch of the reader is taken under one lock, so that it is checked as a whole.
        let wanted = options.at_once(batch, remaining);
        // The timeout applies to each batch: samples that were already sent do not shorten the wait
        // for the rest.
        let mut samples = if let Some(samples) = table.try_sample_with(wanted, options) {
            samples
        } else {
            let interrupted = service.interrupted();
            let samples = table.sample_until(wanted, timeout, options, interrupted);
            let samples = wait_for_samples(samples, responder);
            let samples = stream.waiting(WaitsFor::Table, samples).await;
            samples.map_err(|error| explain_timeout(service, table, timeout, error))?
        };
        stream.count_items(samples.len());
        remaining = remaining.saturating_sub(samples.len());
        options = options.after(samples.len());
        batch = if samples.len() == wanted { batch.saturating_mul(2) } else { FIRST_BATCH };
        selection.apply(&mut samples)?;
        for sample in &samples {
            encoder.push(name, sample, |message| messages.push(message));
        }
        keep_samples(samples);
        messages.extend(encoder.finish());
        send(service, stream, messages.drain(..), responder).await?;
        if remaining > 0 {
            service.drain.check()?;
            // Lets the connection send queued data before the next batch is taken.
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Sends messages as fast as the reader takes them.
pub(crate) async fn send(
    service: &Service,
    stream: &Stream,
    messages: impl Iterator<Item = Message> + Send,
    responder: &mut Responder,
) -> Result<()> {
    for message in messages {
        let sent = service.stop.or(responder.send(message));
        stream.waiting(WaitsFor::Peer, sent).await??;
    }
    Ok(())
}

async fn wait_for_samples(
    samples: impl Future<Output = Result<Vec<Sampled>>>,
    responder: &mut Responder,
) -> Result<Vec<Sampled>> {
    responder.announce();
    tokio::select! {
        biased;
        samples = samples => samples,
        () = responder.closed() => Err(Error::cancelled("The reader cancelled the stream.")),
    }
}

/// Zero and negative values mean no timeout, as in dm-reverb.
fn timeout(request: &SampleStreamRequest) -> Option<Duration> {
    let milliseconds = request.rate_limiter_timeout.as_ref()?.milliseconds;
    u64::try_from(milliseconds).ok().filter(|&it| it > 0).map(Duration::from_millis)
}
