// SPDX-License-Identifier: Apache-2.0
//! Reads all items of a table once, or those that fulfil a condition, in the order of insertion.
//!
//! The server sends as far as the stream's flow control allows, so there are no requests. A scan
//! that has returned items cannot restart after a lost connection, because the table may have
//! changed.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use reverb_base::Result;
use reverb_data::{ItemCondition, Sampled};
use reverb_wire::Capability;
use reverb_wire::transport::{ScanOptions, ScanStream};

use crate::client::Client;
use crate::retry::Backoff;
use crate::session::Session;
use crate::waits::{WaitFor, reported};

/// Reads the items of one table.
pub struct ScanCursor {
    session: Arc<Session>,
    table: String,
    columns: Vec<u32>,
    condition: ItemCondition,
    is_partial: bool,
    ready: VecDeque<Sampled>,
    stream: Option<Box<dyn ScanStream>>,
    /// Number of received items; as long as it is 0, a failed scan can restart.
    received: u64,
    /// The result of the scan, once it has ended.
    outcome: Option<Result<()>>,
    backoff: Backoff,
}

impl ScanCursor {
    /// A cursor over `table`; it connects on first use.
    pub fn new(client: &Client, table: &str) -> Self {
        let backoff = Backoff::new(client.session());
        Self {
            session: Arc::clone(client.session()),
            table: table.to_owned(),
            columns: Vec::new(),
            condition: ItemCondition::ALL,
            is_partial: false,
            ready: VecDeque::new(),
            stream: None,
            received: 0,
            outcome: None,
            backoff,
        }
    }

    /// Reads only these columns, in increasing order; all if empty.
    #[must_use]
    pub fn with_columns(mut self, columns: Vec<u32>) -> Self {
        self.columns = columns;
        self
    }

    /// Reads only items that fulfil a condition.
    #[must_use]
    pub fn with_condition(mut self, condition: ItemCondition) -> Self {
        self.condition = condition;
        self
    }

    /// Leaves out shards of a group that do not answer when the scan begins.
    #[must_use]
    pub fn with_partial(mut self, is_partial: bool) -> Self {
        self.is_partial = is_partial;
        self
    }

    /// An item that has already arrived.
    pub fn take_ready(&mut self) -> Option<Sampled> {
        self.ready.pop_front()
    }

    /// The next item, or `None` after the last. Waits for the server. Nothing is lost if the future
    /// is dropped.
    ///
    /// # Errors
    ///
    /// The server's error; all later calls return it again.
    pub async fn next(&mut self) -> Result<Option<Sampled>> {
        if let Some(item) = self.take_ready() {
            return Ok(Some(item));
        }
        let session = Arc::clone(&self.session);
        let what = || WaitFor::Answer("Scan");
        reported(&session, what, pin!(self.fetch())).await
    }

    async fn fetch(&mut self) -> Result<Option<Sampled>> {
        self.backoff.begin();
        loop {
            if let Some(item) = self.take_ready() {
                return Ok(Some(item));
            }
            if let Some(outcome) = &self.outcome {
                return outcome.clone().map(|()| None);
            }
            match self.receive().await {
                Ok(items) if items.is_empty() => self.end(Ok(())),
                Ok(items) => {
                    self.received += items.len() as u64;
                    self.ready.extend(items);
                }
                Err(error) if self.received == 0 => {
                    self.stream = None;
                    if let Err(error) = self.backoff.pause(&self.session, error).await {
                        self.end(Err(error));
                    }
                }
                Err(error) => {
                    let place = format!(
                        "The scan of table {} broke off after {} items",
                        self.table, self.received
                    );
                    self.end(Err(error.context(&place)));
                }
            }
        }
    }

    async fn receive(&mut self) -> Result<Vec<Sampled>> {
        let stream = if let Some(stream) = &mut self.stream {
            stream
        } else {
            let options = ScanOptions {
                columns: &self.columns,
                condition: self.condition,
                keys: None,
                is_partial: self.is_partial,
            };
            if !options.are_default() {
                self.session.require(&[Capability::ChosenItems]).await?;
            }
            self.stream.insert(self.session.open_scan(&self.table, options).await?)
        };
        stream.receive().await
    }

    fn end(&mut self, outcome: Result<()>) {
        self.stream = None;
        self.outcome = Some(outcome);
    }
}
