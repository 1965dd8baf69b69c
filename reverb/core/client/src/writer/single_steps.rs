// SPDX-License-Identifier: Apache-2.0
//! Writers of single steps, kept open from one insert to the next.

use std::sync::Arc;

use parking_lot::Mutex;
use reverb_data::Result;

use super::legacy::{LegacyOptions, LegacyWriter};
use crate::client::Client;

/// Writers that are kept, at the most.
const MAX_IDLE: usize = 8;

/// A client with the writers that its inserts of single steps use in turn.
pub struct SingleStepWriters {
    client: Arc<Client>,
    idle: Mutex<Vec<LegacyWriter>>,
}

impl SingleStepWriters {
    /// No writer is open yet.
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, idle: Mutex::default() }
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// A writer that is not in use.
    ///
    /// Waits for the signatures of the server's tables the first time, and again when the server may be another one: a
    /// writer keeps what it knows, and the one that listens at the address now may have other tables.
    pub async fn take(&self) -> Result<LegacyWriter> {
        let several = self.client.has_several_servers();
        let idle = self.idle.lock().pop();
        let idle = idle.filter(|writer| !several && !writer.queue().sender().was_lost());
        // In this process nobody is told that a server has gone, but asking costs nothing either. Of several servers
        // it would be the next one's turn, which is for the writer to take.
        let may_be_another = idle.is_none() && !several;
        if may_be_another || self.client.transport()?.is_local() {
            self.client.server_info().await?;
        }
        if let Some(writer) = idle.filter(|writer| self.client.is_current(writer.signatures())) {
            return Ok(writer);
        }
        let signatures = self.client.signatures().await?;
        let options = LegacyOptions {
            max_sequence_length: 1,
            chunk_length: 1,
            delta_encoded: false,
            max_in_flight_items: usize::MAX,
        };
        Ok(LegacyWriter::new(&self.client, options, signatures))
    }

    /// Waits until everything is confirmed and keeps the writer for the next insert, unless that is another server's
    /// turn.
    pub async fn finish(&self, writer: LegacyWriter) -> Result<()> {
        writer.flush_all().await?;
        if self.client.has_several_servers() {
            return Ok(());
        }
        writer.begin_episode();
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(writer);
        }
        Ok(())
    }
}
