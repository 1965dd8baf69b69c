// SPDX-License-Identifier: Apache-2.0
//! An insert stream over the network.

use reverb_base::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, watch};

use crate::codec::insert::{decode_confirmation, encode_request};
use crate::codec::trajectory_template::TrajectoryTemplates;
use crate::transport::{BoxFuture, InsertBatch, InsertSink, InsertStream, stream_ended};
use reverb_rpc::client::{Call, Reply};
use reverb_rpc::framing::MessageSender;

/// Creates an insert stream from an open call to the only server, or to one of several. A separate
/// task reads the confirmations.
pub(super) fn stream(call: Call, is_one_of_several: bool) -> InsertStream {
    let server = is_one_of_several.then(|| call.reply.peer().to_owned());
    let (confirmations, receiver) = mpsc::unbounded_channel();
    let (ended, end) = watch::channel(None);
    tokio::spawn(read_confirmations(call.reply, confirmations, ended));
    InsertStream {
        sink: Box::new(GrpcInsertSink {
            sender: call.sender,
            end,
            templates: TrajectoryTemplates::default(),
        }),
        confirmations: receiver,
        shard: None,
        server,
    }
}

/// Reads confirmations until their receiver is dropped. Then drops its half of the stream, which
/// cancels the call.
async fn read_confirmations(
    mut reply: Reply,
    confirmations: mpsc::UnboundedSender<Result<Vec<u64>>>,
    ended: watch::Sender<Option<Error>>,
) {
    loop {
        let keys = tokio::select! {
            message = reply.next() => message,
            () = confirmations.closed() => return,
        };
        let keys =
            keys.and_then(|message| message.map(|bytes| decode_confirmation(&bytes)).transpose());
        match keys {
            Ok(Some(keys)) => {
                if !keys.is_empty() && confirmations.send(Ok(keys)).is_err() {
                    return;
                }
            }
            Ok(None) => {
                ended.send_replace(Some(stream_ended(reply.peer())));
                return;
            }
            Err(error) => {
                ended.send_replace(Some(error.clone()));
                let _ = confirmations.send(Err(error));
                return;
            }
        }
    }
}

struct GrpcInsertSink {
    sender: MessageSender,
    /// Reason for which the server ended the stream, once it has.
    end: watch::Receiver<Option<Error>>,
    templates: TrajectoryTemplates,
}

impl InsertSink for GrpcInsertSink {
    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Some(error) = self.end.borrow().clone() {
                return Err(error);
            }
            let message = encode_request(&batch, &mut self.templates);
            let sent = self.sender.send(message).await;
            drop(batch);
            let Err(error) = sent else { return Ok(()) };
            if error.kind() == ErrorKind::ResourceExhausted {
                return Err(error);
            }
            // The stream is over. Wait for its status, which is a better error than a failed write.
            match self.end.wait_for(Option::is_some).await {
                Ok(end) => Err(end.clone().unwrap_or(error)),
                Err(_) => Err(error),
            }
        })
    }
}

impl Drop for GrpcInsertSink {
    fn drop(&mut self) {
        self.sender.finish();
    }
}
