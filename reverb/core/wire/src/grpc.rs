// SPDX-License-Identifier: Apache-2.0
//! The transport to a server over the network.

mod hold;
mod insert;
mod sample;
mod scan;
mod shard;

use bytes::Bytes;
use reverb_base::{Error, ErrorKind, Result};
use reverb_rpc::client::{AnswerRules, Channel, ConnectionOptions, Reply};
use reverb_rpc::framing::MessageLimit;
use reverb_rpc::message::Message;

use crate::calls::{self, SmallCall};
use crate::codec::mutate::encode_mutation;
use crate::decoded_size;
use crate::generated::MutatePrioritiesResponse;
use crate::transport::{
    BoxFuture, Hold, HoldRequest, InsertStream, SampleStream, ScanOptions, ScanStream, Transport,
};

/// A server, or several, reached over gRPC.
#[derive(Debug)]
pub struct GrpcTransport(Channel);

impl GrpcTransport {
    /// Creates a transport. The address is checked; see `Target::parse` for its forms.
    pub fn new(target: &str) -> Result<Self> {
        Self::with_options(target, ConnectionOptions::default())
    }

    /// Like `new`, with options of its connections.
    pub fn with_options(target: &str, options: ConnectionOptions) -> Result<Self> {
        Ok(Self(Channel::new(target, options, answer_rules)?))
    }

    async fn ask<A: prost::Message + Default>(&self, path: &str, request: Message) -> Result<A> {
        let (answer, peer) = self.0.ask_one(path, request, false).await?;
        A::decode(answer).map_err(|error| calls::damaged(&peer, calls::name(path), &error))
    }
}

/// Limits on the answers that a client accepts.
fn answer_rules(path: &str) -> AnswerRules {
    AnswerRules {
        limit: calls::answer_limit(path).map(MessageLimit::of_answers),
        check: decoded_size::of_answers(path),
    }
}

/// Explains an error of a call that only servers of this package have.
fn explain(error: Error, target: &str, what: &str) -> Error {
    if error.kind() != ErrorKind::Unimplemented {
        return error;
    }
    Error::unimplemented(format!(
        "The server at {target} does not {what}: it is a server of dm-reverb, or of an older \
         release of this package."
    ))
}

/// Ends a stream, because nothing after such an error can be trusted.
fn fail(reply: &mut Reply, kind: ErrorKind, what: &str) -> Error {
    let error = Error::new(kind, format!("The server at {} {what}", reply.peer()));
    reply.abandon(error.clone());
    error
}

impl Transport for GrpcTransport {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        Box::pin(async {
            let call = self.0.open(calls::INSERT_STREAM).await?;
            // Names are resolved by now.
            Ok(insert::stream(call, self.0.num_servers() > 1))
        })
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        Box::pin(async {
            let call = self.0.open(calls::SAMPLE_STREAM).await?;
            // Names are resolved by now.
            let several = (self.0.num_servers() > 1).then(|| sample::SeveralServers::of(&self.0));
            let stream = sample::GrpcSampleStream::new(call, several);
            Ok(Box::new(stream) as Box<dyn SampleStream>)
        })
    }

    fn open_scan<'a>(
        &'a self,
        table: &'a str,
        options: ScanOptions<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        Box::pin(async move {
            let call = self.0.open(calls::SCAN).await?;
            Ok(Box::new(scan::GrpcScanStream::new(call, table, &options)) as Box<dyn ScanStream>)
        })
    }

    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = encode_mutation(table, updates, deletes);
            let MutatePrioritiesResponse {} = self.ask(calls::MUTATE_PRIORITIES, request).await?;
            Ok(())
        })
    }

    fn small_call(&self, call: &'static SmallCall, request: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let asked = Message::from_body(&request);
            let answer = self.0.ask_one(call.row.path, asked, call.reaches_one).await;
            let (answer, peer) = answer.map_err(|error| match call.missing {
                Some(what) => explain(error, self.0.target(), what),
                None => error,
            })?;
            call.check_answer(&peer, answer)
        })
    }

    fn hold(&self, request: HoldRequest) -> BoxFuture<'_, Result<Box<dyn Hold>>> {
        Box::pin(async move {
            let call = self.0.open_to_one(request.path()).await?;
            let hold = hold::GrpcHold::begin(call, &request).await;
            let hold = hold.map_err(|why| explain(why, self.0.target(), request.missing()))?;
            Ok(Box::new(hold) as Box<dyn Hold>)
        })
    }

    fn address(&self) -> &str {
        self.0.target()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn has_several_servers(&self) -> bool {
        self.0.num_servers() > 1
    }

    fn has_ended(&self, error: &Error) -> bool {
        // An idle stream may have heard it, too.
        self.0.have_ended() || (error.is_final() && !self.has_several_servers())
    }
}
