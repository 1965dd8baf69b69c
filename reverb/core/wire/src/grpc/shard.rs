// SPDX-License-Identifier: Apache-2.0
//! A shard of a group, over the network.

use std::sync::Arc;

use prost::Message as _;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::StoredItem;
use reverb_rpc::client::{Call, Reply};
use reverb_rpc::framing::MessageSender;
use reverb_rpc::message::Message;

use crate::calls;
use crate::codec::mutate::encode_mutation;
use crate::codec::transfer::TransferEncoder;
use crate::generated::reverb::{
    TransferResponse, UpdatePrioritiesResponse, WatchRequest, WatchResponse,
};
use crate::grpc::{GrpcTransport, explain};
use crate::shard::{Shard, TransferSink, WatchStream};
use crate::transport::{BoxFuture, stream_ended};

impl Shard for GrpcTransport {
    fn watch<'a>(&'a self, tables: &'a [String]) -> BoxFuture<'a, Result<Box<dyn WatchStream>>> {
        Box::pin(async move {
            let Call { mut sender, reply, .. } = self.0.open_to_one(calls::WATCH).await?;
            let request = WatchRequest { tables: tables.to_vec() };
            // If this fails, the stream has already ended, and the reply has the reason.
            let _ = sender.send_last(Message::encode(&request));
            let target = self.0.target().to_owned();
            Ok(Box::new(GrpcWatchStream { reply, target }) as Box<dyn WatchStream>)
        })
    }

    fn update_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<UpdatePrioritiesResponse>> {
        Box::pin(async move {
            // Its request has the fields of `MutatePriorities`.
            let request = encode_mutation(table, updates, deletes);
            let answer = self.ask(calls::UPDATE_PRIORITIES, request).await;
            answer.map_err(|error| explain(error, self.0.target(), "report missing keys"))
        })
    }

    fn open_transfer(&self) -> BoxFuture<'_, Result<Box<dyn TransferSink>>> {
        Box::pin(async move {
            let Call { sender, reply, .. } = self.0.open_to_one(calls::TRANSFER).await?;
            let target = self.0.target().to_owned();
            let encoder = TransferEncoder::default();
            Ok(Box::new(GrpcTransferSink { sender, reply, target, encoder })
                as Box<dyn TransferSink>)
        })
    }
}

struct GrpcWatchStream {
    reply: Reply,
    target: String,
}

impl WatchStream for GrpcWatchStream {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<WatchResponse>>> {
        Box::pin(async {
            let message = self.reply.next_in_background().await;
            let message = message.map_err(|error| explain(error, &self.target, "watch tables"))?;
            let Some(message) = message else { return Ok(None) };
            WatchResponse::decode(message).map(Some).map_err(|error| {
                let text = format!("The server at {} sent a damaged watch: {error}.", self.target);
                let error = Error::new(ErrorKind::DataLoss, text);
                self.reply.abandon(error.clone());
                error
            })
        })
    }
}

struct GrpcTransferSink {
    sender: MessageSender,
    reply: Reply,
    target: String,
    encoder: TransferEncoder,
}

impl GrpcTransferSink {
    /// Status of the stream, which is a better error than that of a failed write.
    async fn why_ended(&mut self, error: Error) -> Error {
        match self.reply.next().await {
            Ok(_) => error,
            Err(why) => explain(why, &self.target, "accept items of other shards"),
        }
    }
}

impl TransferSink for GrpcTransferSink {
    fn send<'a>(
        &'a mut self,
        table: &'a Arc<str>,
        items: Vec<StoredItem>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for message in self.encoder.encode(table, &items)? {
                if let Err(error) = self.sender.send(message).await {
                    return Err(self.why_ended(error).await);
                }
            }
            Ok(())
        })
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<TransferResponse>> {
        Box::pin(async {
            self.sender.finish();
            let answer = self.reply.next().await;
            let answer =
                answer.map_err(|why| explain(why, &self.target, "accept items of other shards"))?;
            let answer = answer.ok_or_else(|| stream_ended(&self.target))?;
            self.reply.expect_end().await?;
            TransferResponse::decode(answer).map_err(|error| {
                Error::internal(format!(
                    "The answer of the server at {} to Transfer is damaged: {error}.",
                    self.target
                ))
            })
        })
    }
}
