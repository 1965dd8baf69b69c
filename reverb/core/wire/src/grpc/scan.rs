// SPDX-License-Identifier: Apache-2.0
//! A scan over the network.

use reverb_base::{Error, ErrorKind, Result};
use reverb_data::Sampled;

use crate::codec::sample::SampleDecoder;
use crate::convert::item_condition::to_item_condition;
use crate::generated::reverb::{ItemKeys, ScanRequest};
use crate::grpc::fail;
use crate::transport::{BoxFuture, ScanOptions, ScanStream};
use reverb_rpc::client::{Call, Reply};
use reverb_rpc::message::Message;

/// Bytes of chunks that are kept because later items may refer to them. Consecutive items often
/// share chunks, and items of several writers are interleaved.
const KEPT_CHUNK_BYTES: usize = 16 << 20;

pub(super) struct GrpcScanStream {
    reply: Reply,
    decoder: SampleDecoder,
}

impl GrpcScanStream {
    pub(super) fn new(call: Call, table: &str, options: &ScanOptions<'_>) -> Self {
        let Call { mut sender, reply, .. } = call;
        let request = ScanRequest {
            table: table.to_owned(),
            kept_chunk_bytes: KEPT_CHUNK_BYTES as i64,
            columns: options.columns.to_vec(),
            condition: to_item_condition(&options.condition),
            keys: options.keys.map(|keys| ItemKeys { keys: keys.to_vec() }),
        };
        // If this fails, the stream has already ended, and the reply has the reason.
        let _ = sender.send_last(Message::encode(&request));
        Self { reply, decoder: SampleDecoder::new().with_kept_chunks(KEPT_CHUNK_BYTES) }
    }

    async fn next_items(&mut self) -> Result<Vec<Sampled>> {
        let mut items = Vec::new();
        while items.is_empty() {
            let message = match self.reply.next().await {
                Ok(message) => message,
                Err(error) => return Err(self.explain(error)),
            };
            let Some(message) = message else {
                if self.decoder.is_within_sample() {
                    let what = "ended the scan in the middle of an item.";
                    return Err(fail(&mut self.reply, ErrorKind::DataLoss, what));
                }
                break;
            };
            if let Err(error) = self.decoder.push(&message, &mut items) {
                let what = format!("sent a damaged item: {error}");
                return Err(fail(&mut self.reply, ErrorKind::DataLoss, &what));
            }
        }
        Ok(items)
    }

    fn explain(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Unimplemented {
            return error;
        }
        Error::unimplemented(format!(
            "The server at {} cannot scan tables: it is a server of dm-reverb, or of a release of \
             this package without scans. Serve the table with this package, or sample it.",
            self.reply.peer()
        ))
    }
}

impl ScanStream for GrpcScanStream {
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(self.next_items())
    }
}
