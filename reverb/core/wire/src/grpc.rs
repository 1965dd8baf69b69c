// SPDX-License-Identifier: Apache-2.0
//! The transport to a server over the network.

mod insert;
mod limiter_hold;
mod sample;
mod scan;
mod shard;

use std::time::Duration;

use reverb_data::{Error, ErrorKind, Result};
use reverb_rpc::Keepalive;
use reverb_rpc::client::{AnswerRules, Channel, Security};
use reverb_rpc::frames::MessageLimit;

use crate::capability::Capabilities;
use crate::codec::mutate::encode_mutation;
use crate::decoded_size;
use crate::generated::reverb::{
    CheckpointStatusRequest, CheckpointStatusResponse, ConfigureTablesRequest,
    ConfigureTablesResponse, DrainRequest, DrainResponse, HoldRateLimiterRequest, SetPausedRequest,
    SetPausedResponse, StatusRequest, StatusResponse,
};
use crate::generated::{
    CheckpointRequest, CheckpointResponse, MutatePrioritiesResponse, ResetRequest, ResetResponse,
    ServerInfoRequest, ServerInfoResponse,
};
use crate::methods;
use crate::transport::{
    BoxFuture, InsertStream, RateLimiterHold, SampleStream, ScanStream, ServerInfo, Transport,
};

/// A server, or several, reached over gRPC.
#[derive(Debug)]
pub struct GrpcTransport(Channel);

impl GrpcTransport {
    /// Checks the address; see `Target::parse` for its forms.
    pub fn new(target: &str) -> Result<Self> {
        Ok(Self(Channel::new(target)?.with_answer_rules(answer_rules)))
    }

    /// Sets the time limit for reaching a server that answers.
    #[must_use]
    pub fn with_connect_timeout(self, timeout: Duration) -> Self {
        Self(self.0.with_connect_timeout(timeout))
    }

    /// Sets the keepalive options. Must be called before the first call.
    #[must_use]
    pub fn with_keepalive(self, keepalive: Keepalive) -> Self {
        Self(self.0.with_keepalive(keepalive))
    }

    /// Sets TLS and the token. Must be called before the first call.
    #[must_use]
    pub fn with_security(self, security: Security) -> Self {
        Self(self.0.with_security(security))
    }
}

impl GrpcTransport {
    /// The error of a call that only servers of this package have.
    fn explain(&self, error: Error, what: &str) -> Error {
        explain(error, self.0.target(), what)
    }
}

/// What a client accepts as an answer.
fn answer_rules(path: &str) -> AnswerRules {
    AnswerRules {
        limit: methods::answer_limit(path).map(MessageLimit::of_answers),
        check: decoded_size::of_answers(path),
    }
}

/// The error of a call that only servers of this package have.
fn explain(error: Error, target: &str, what: &str) -> Error {
    if error.kind() != ErrorKind::Unimplemented {
        return error;
    }
    Error::unimplemented(format!(
        "The server at {target} does not {what}: it is a server of dm-reverb, or of an older \
         release of this package."
    ))
}

impl Transport for GrpcTransport {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        Box::pin(async {
            let call = self.0.open(methods::INSERT_STREAM).await?;
            // A name is resolved by now.
            Ok(insert::stream(call, self.0.num_servers() > 1))
        })
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        Box::pin(async {
            let call = self.0.open(methods::SAMPLE_STREAM).await?;
            // A name is resolved by now.
            let several = (self.0.num_servers() > 1).then(|| sample::Several::of(&self.0));
            let stream = sample::GrpcSampleStream::new(call, several);
            Ok(Box::new(stream) as Box<dyn SampleStream>)
        })
    }

    fn open_scan<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        Box::pin(async {
            let call = self.0.open(methods::SCAN).await?;
            Ok(Box::new(scan::GrpcScanStream::new(call, table)) as Box<dyn ScanStream>)
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
            let MutatePrioritiesResponse {} =
                self.0.unary_encoded(methods::MUTATE_PRIORITIES, request).await?;
            Ok(())
        })
    }

    fn reset<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<()>> {
        self.reset_before(table, 0)
    }

    fn reset_before<'a>(&'a self, table: &'a str, not_after_ns: i64) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = ResetRequest { table: table.to_owned(), not_after_ns };
            let ResetResponse {} = self.0.unary_to_one(methods::RESET, &request).await?;
            Ok(())
        })
    }

    fn server_info(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(async {
            let response: ServerInfoResponse =
                self.0.unary(methods::SERVER_INFO, &ServerInfoRequest {}).await?;
            let id = response.tables_state_id.unwrap_or_default();
            Ok(ServerInfo {
                tables_state_id: (id.high, id.low),
                tables: response.table_info,
                capabilities: Capabilities::from_names(response.capabilities),
            })
        })
    }

    fn checkpoint(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async {
            let response: CheckpointResponse =
                self.0.unary_to_one(methods::CHECKPOINT, &CheckpointRequest {}).await?;
            Ok(response.checkpoint_path)
        })
    }

    fn checkpoint_status(&self) -> BoxFuture<'_, Result<CheckpointStatusResponse>> {
        Box::pin(async {
            let answer =
                self.0.unary_to_one(methods::CHECKPOINT_STATUS, &CheckpointStatusRequest {}).await;
            answer.map_err(|error| self.explain(error, "report the state of its checkpoints"))
        })
    }

    fn status(&self, request: StatusRequest) -> BoxFuture<'_, Result<StatusResponse>> {
        Box::pin(async move {
            let answer = self.0.unary_to_one(methods::STATUS, &request).await;
            answer.map_err(|error| self.explain(error, "tell its status"))
        })
    }

    fn configure_tables(
        &self,
        request: ConfigureTablesRequest,
    ) -> BoxFuture<'_, Result<ConfigureTablesResponse>> {
        Box::pin(async move {
            let answer = self.0.unary_to_one(methods::CONFIGURE_TABLES, &request).await;
            answer.map_err(|error| self.explain(error, "change its tables while it runs"))
        })
    }

    fn set_paused(&self, request: SetPausedRequest) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let answer = self.0.unary_to_one(methods::SET_PAUSED, &request).await;
            let SetPausedResponse {} =
                answer.map_err(|error| self.explain(error, "pause its tables"))?;
            Ok(())
        })
    }

    fn hold_rate_limiter(
        &self,
        request: HoldRateLimiterRequest,
    ) -> BoxFuture<'_, Result<Box<dyn RateLimiterHold>>> {
        Box::pin(async move {
            let call = self.0.open_to_one(methods::HOLD_RATE_LIMITER).await?;
            let hold = limiter_hold::GrpcLimiterHold::begin(call, &request).await;
            let hold = hold.map_err(|error| self.explain(error, "turn its rate limiters off"))?;
            Ok(Box::new(hold) as Box<dyn RateLimiterHold>)
        })
    }

    fn drain(&self, request: DrainRequest) -> BoxFuture<'_, Result<DrainResponse>> {
        Box::pin(async move {
            let answer = self.0.unary_to_one(methods::DRAIN, &request).await;
            answer.map_err(|error| self.explain(error, "drain"))
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
}
