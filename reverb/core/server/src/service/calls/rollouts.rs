// SPDX-License-Identifier: Apache-2.0
//! Items with rollouts: taking them, the end of a hold, failed rollouts, and the version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_base::{Error, Result};
use reverb_data::rollouts::{Late, Stage};
use reverb_engine::{Table, TakeRequest as EngineRequest, Taken, Takes};
use reverb_wire::convert::rollouts::{from_part, from_rollout, to_lease, to_rollout};
use reverb_wire::generated::reverb::{
    FailRolloutRequest, FailRolloutResponse, SetVersionRequest, SetVersionResponse, SettleRequest,
    SettleResponse, TakeRequest, TakeResponse, TakenItem, take_request,
};

use super::{Answer, CallContext};
use crate::service::Service;
use crate::service::status::explain_timeout;

/// Takes items for the caller, who must hold a stream for its leases.
impl Answer for TakeRequest {
    async fn answer(self, service: &Arc<Service>, _: &CallContext<'_>) -> Result<TakeResponse> {
        let lease = to_lease(self.lease.as_ref())?;
        service.holders.check(lease.holder)?;
        let takes = match self.takes() {
            take_request::Takes::Ready => Takes::Ready,
            take_request::Takes::Open => Takes::Open,
            take_request::Takes::Lacking => Takes::Lacking(self.column),
        };
        let (_, table) = service.tables.get(&self.table)?;
        let num = usize::try_from(self.num_items).unwrap_or(usize::MAX);
        let request = EngineRequest { takes, num, lease };
        let timeout = self.timeout_ms.map(Duration::from_millis);
        let began = Instant::now();
        let take = async {
            tokio::select! {
                biased;
                error = service.interrupted() => Err(error),
                taken = table.take(request, timeout, self.is_partial) => taken,
            }
        };
        let taken = take.await.map_err(|error| {
            let error = service.stop.explain(error);
            if takes != Takes::Ready {
                // What holds back learners need not hold back generators.
                return error;
            }
            explain_timeout(service, table, Some(began.elapsed()), error)
        })?;
        let version = table.rollouts().map_or(0, |kept| kept.version);
        Ok(TakeResponse { items: taken.iter().map(to_message).collect(), version })
    }
}

fn to_message(taken: &Taken) -> TakenItem {
    let Taken { key, item, probability, table_size } = taken;
    let (parts, columns) = match item.stage {
        Stage::Open => {
            let parts: Vec<_> = item.parts().iter().map(from_part).collect();
            (parts, Vec::new())
        }
        Stage::Settled | Stage::Ready => (Vec::new(), item.columns.to_vec()),
    };
    TakenItem {
        key: *key,
        name: item.name.to_string(),
        attempts: item.attempts,
        priority: item.values.priority,
        probability: *probability,
        table_size: *table_size,
        times_sampled: item.values.times_sampled,
        inserted_at_ns: item.values.inserted_at_ns,
        rollouts: item.rollouts.iter().map(from_rollout).collect(),
        sequence_rollouts: item.sequences.iter().map(|it| it.rollout).collect(),
        sequence_lengths: item.sequences.iter().map(|it| it.length).collect(),
        columns,
        parts,
    }
}

/// Ends the hold of the caller on items.
impl Answer for SettleRequest {
    async fn answer(self, service: &Arc<Service>, _: &CallContext<'_>) -> Result<SettleResponse> {
        let lease = to_lease(self.lease.as_ref())?;
        let table = table_of(service, &self.table)?;
        let keys = (!self.all).then_some(&*self.keys);
        let settled = table.settle(lease, keys, self.ack);
        let held_by_others = settled.map_err(|error| service.stop.explain(error))?;
        Ok(SettleResponse { held_by_others })
    }
}

/// Notes that a rollout of an item will not be made.
impl Answer for FailRolloutRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<FailRolloutResponse> {
        let message =
            self.rollout.ok_or_else(|| Error::invalid_argument("The call has no rollout."))?;
        let rollout = to_rollout(&message);
        let lease = self.lease.as_ref().map(|lease| to_lease(Some(lease))).transpose()?;
        let table = table_of(service, &self.table)?;
        let grown = table.grow(self.key, lease, vec![rollout], None, Late::default());
        let is_accepted = grown.map_err(|error| service.stop.explain(error))?;
        if is_accepted {
            tracing::info!(
                table = table.name(), client = %context.changed_by.client,
                "rollout {} of item {} has failed: {}",
                message.number, self.key, message.failed.unwrap_or_default(),
            );
        }
        Ok(FailRolloutResponse { is_accepted })
    }
}

/// Sets the version of the policy.
impl Answer for SetVersionRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<SetVersionResponse> {
        let table = table_of(service, &self.table)?;
        let set = table.set_version(self.version, self.rewind);
        let version = set.map_err(|error| service.stop.explain(error))?;
        let client = &context.changed_by.client;
        tracing::debug!(table = table.name(), %client, version, "the version is set");
        Ok(SetVersionResponse { version })
    }
}

fn table_of<'a>(service: &'a Service, name: &str) -> Result<&'a Arc<Table>> {
    service.tables.get(name).map(|(_, table)| table)
}
