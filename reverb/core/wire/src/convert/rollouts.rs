// SPDX-License-Identifier: Apache-2.0
//! Converts items with rollouts, and the settings of their tables.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use reverb_base::{Error, Result};
use reverb_data::RolloutsChange;
use reverb_data::rollouts::{
    Growth, ItemChange, Late, LeaseId, OnStale, Opening, Outcome, Part, Refusal, Rollout,
    RolloutSettings, SequenceInfo, SequenceOf, Stage, StoredGrowing, Versions,
};

use crate::decoded_size;
use crate::generated as proto;
use crate::generated::growing_item::Stage as ProtoStage;
use crate::generated::insert_stream_response::Refused;
use crate::generated::item_change as parts;
use crate::generated::reverb::RolloutsChange as RolloutsChangeMessage;
use crate::generated::rollout_settings::OnStale as ProtoOnStale;

/// Memory of a part, and of a rollout, that was decoded.
const PART_BYTES: usize = size_of::<parts::Part>() + size_of::<Part>();

/// The message for settings.
pub fn from_settings(settings: &RolloutSettings) -> proto::RolloutSettings {
    proto::RolloutSettings {
        num_columns: settings.num_columns,
        item_columns: settings.item_columns.to_vec(),
        num_rollouts: settings.num_rollouts,
        min_rollouts: settings.min_rollouts,
        ahead: settings.ahead,
        items_per_version: settings.items_per_version,
        max_staleness: settings.max_staleness,
        on_stale: match settings.on_stale {
            OnStale::Again => ProtoOnStale::Again,
            OnStale::Keep => ProtoOnStale::Keep,
            OnStale::Wait => ProtoOnStale::Wait,
        }
        .into(),
        open_timeout_ms: settings
            .open_timeout
            .map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
        max_attempts: settings.max_attempts,
    }
}

/// The settings in a message; they are checked with those of their table.
pub fn to_settings(message: &proto::RolloutSettings) -> RolloutSettings {
    RolloutSettings {
        num_columns: message.num_columns,
        item_columns: message.item_columns.as_slice().into(),
        num_rollouts: message.num_rollouts,
        min_rollouts: message.min_rollouts,
        ahead: message.ahead,
        items_per_version: message.items_per_version,
        max_staleness: message.max_staleness,
        on_stale: match message.on_stale() {
            ProtoOnStale::Again => OnStale::Again,
            ProtoOnStale::Keep => OnStale::Keep,
            ProtoOnStale::Wait => OnStale::Wait,
        },
        open_timeout: (message.open_timeout_ms > 0)
            .then(|| Duration::from_millis(message.open_timeout_ms)),
        max_attempts: message.max_attempts,
    }
}

/// The message for new settings of a table. The columns of items do not change, so they have the
/// names that `item` has.
pub fn from_new_settings(settings: &RolloutSettings, item: Vec<String>) -> RolloutsChangeMessage {
    RolloutsChangeMessage { settings: Some(from_settings(settings)), item }
}

/// New settings of a table.
///
/// # Errors
///
/// `InvalidArgument` if they are missing.
pub fn to_new_settings(message: &RolloutsChangeMessage) -> Result<RolloutsChange> {
    let Some(settings) = &message.settings else {
        return Err(Error::invalid_argument("The change of rollouts has no settings."));
    };
    Ok(RolloutsChange { settings: to_settings(settings), item: message.item.clone() })
}

/// The message for a lease.
pub fn from_lease(lease: LeaseId) -> proto::Lease {
    proto::Lease { holder: lease.holder, number: lease.number }
}

/// The lease in a message.
///
/// # Errors
///
/// `InvalidArgument` if it is missing.
pub fn to_lease(message: Option<&proto::Lease>) -> Result<LeaseId> {
    let lease = message.map(|it| LeaseId { holder: it.holder, number: it.number });
    lease.ok_or_else(|| Error::invalid_argument("The call has no lease."))
}

/// The message for a place of a column.
pub fn from_part(part: &Part) -> parts::Part {
    parts::Part {
        column: part.column,
        rollout: part.sequence.map(|sequence| sequence.rollout),
        sequence: part.sequence.map_or(0, |sequence| sequence.number),
    }
}

/// The place of a column in a message.
pub fn to_part(message: &parts::Part) -> Part {
    let of = |rollout| SequenceOf { rollout, number: message.sequence };
    Part { sequence: message.rollout.map(of), column: message.column }
}

/// The message for a rollout.
pub fn from_rollout(rollout: &Rollout) -> proto::Rollout {
    let Rollout { number, outcome, versions } = rollout;
    let given = Some(versions).filter(|versions| **versions != Versions::OF_TABLE);
    proto::Rollout {
        number: *number,
        is_partial: *outcome == Outcome::Partial,
        failed: match outcome {
            Outcome::Failed(why) => Some(why.to_string()),
            Outcome::Final | Outcome::Partial => None,
        },
        oldest: given.map(|it| it.oldest),
        newest: given.map(|it| it.newest),
    }
}

/// The rollout in a message.
pub fn to_rollout(message: &proto::Rollout) -> Rollout {
    let outcome = match &message.failed {
        Some(why) => Outcome::Failed(why.as_str().into()),
        None if message.is_partial => Outcome::Partial,
        None => Outcome::Final,
    };
    let versions = match (message.oldest, message.newest) {
        (None, None) => Versions::OF_TABLE,
        (oldest, newest) => Versions {
            oldest: oldest.or(newest).unwrap_or_default(),
            newest: newest.or(oldest).unwrap_or_default(),
        },
    };
    Rollout { number: message.number, outcome, versions }
}

/// The message for what the columns of an item are for.
pub fn from_change(change: &ItemChange) -> proto::ItemChange {
    let (opens, parts, rollouts, lease, late) = match change {
        ItemChange::Opens(Opening { name, after, parts, rollouts }) => {
            let after = after.as_ref().map(ToString::to_string);
            let opens = parts::Opening { name: name.to_string(), after };
            (Some(opens), parts, rollouts, None, Late::default())
        }
        ItemChange::Grows(Growth { parts, rollouts, lease, late }) => {
            (None, parts, rollouts, *lease, *late)
        }
    };
    proto::ItemChange {
        opens,
        parts: parts.iter().map(from_part).collect(),
        rollouts: rollouts.iter().map(from_rollout).collect(),
        lease: lease.map(from_lease),
        overwrites: late.overwrites,
        attempts: late.attempts,
    }
}

/// What the columns of an item are for, in an encoded message.
///
/// # Errors
///
/// `InvalidArgument` if it is malformed, or has more parts than its bytes can say.
pub fn to_change(message: &[u8]) -> Result<ItemChange> {
    // A part takes four bytes at least, with its tag.
    decoded_size::check(message.len(), message.len() / 4 * PART_BYTES)?;
    let message = proto::ItemChange::decode(message)
        .map_err(|error| Error::invalid_argument(format!("Malformed message: {error}.")))?;
    let parts: Arc<[Part]> = message.parts.iter().map(to_part).collect();
    let rollouts = message.rollouts.iter().map(to_rollout).collect();
    if let Some(parts::Opening { name, after }) = message.opens {
        let (name, after) = (name.into(), after.map(Into::into));
        return Ok(ItemChange::Opens(Opening { name, after, parts, rollouts }));
    }
    let lease = message.lease.as_ref().map(|lease| to_lease(Some(lease))).transpose()?;
    let late = Late { overwrites: message.overwrites, attempts: message.attempts };
    Ok(ItemChange::Grows(Growth { parts, rollouts, lease, late }))
}

/// The message for an item in a checkpoint, without its columns.
pub fn from_growing(item: &StoredGrowing) -> proto::GrowingItem {
    proto::GrowingItem {
        name: item.name.to_string(),
        order: item.order,
        stage: match item.stage {
            Stage::Open => ProtoStage::Open,
            Stage::Settled => ProtoStage::Settled,
            Stage::Ready => ProtoStage::Ready,
        }
        .into(),
        attempts: item.attempts,
        given_up: item.given_up,
        opened_at: item.opened_at,
        rollouts: item.rollouts.iter().map(from_rollout).collect(),
        parts: item.aside.iter().flat_map(|(_, parts)| parts.iter().map(from_part)).collect(),
        sequence_rollouts: item.sequences.iter().map(|it| it.rollout).collect(),
        sequence_lengths: item.sequences.iter().map(|it| it.length).collect(),
    }
}

/// The item of an encoded message, and the places of its columns.
///
/// # Errors
///
/// `InvalidArgument` if it is malformed.
pub fn to_growing(key: u64, message: &[u8]) -> Result<(StoredGrowing, Arc<[Part]>)> {
    decoded_size::check(message.len(), message.len() / 2 * PART_BYTES)?;
    let message = proto::GrowingItem::decode(message)
        .map_err(|error| Error::invalid_argument(format!("Malformed message: {error}.")))?;
    let stage = match message.stage() {
        ProtoStage::Open => Stage::Open,
        ProtoStage::Settled => Stage::Settled,
        ProtoStage::Ready => Stage::Ready,
    };
    let sequences = message.sequence_rollouts.iter().zip(&message.sequence_lengths);
    let sequences = sequences.map(|(&rollout, &length)| SequenceInfo { rollout, length });
    let parts = message.parts.iter().map(to_part).collect();
    let item = StoredGrowing {
        key,
        sequences: sequences.collect(),
        rollouts: message.rollouts.iter().map(to_rollout).collect(),
        name: message.name.into(),
        order: message.order,
        stage,
        attempts: message.attempts,
        given_up: message.given_up,
        opened_at: message.opened_at,
        aside: None,
    };
    Ok((item, parts))
}

/// The message for a refused item.
pub fn from_refusal(key: u64, refusal: &Refusal) -> Refused {
    Refused {
        key,
        is_present: *refusal == Refusal::Present,
        newest: match refusal {
            Refusal::Newest(name) => Some(name.to_string()),
            Refusal::Present | Refusal::Gone | Refusal::Waited(_) => None,
        },
        waited_for: match refusal {
            Refusal::Waited(reason) => Some(reason.to_string()),
            Refusal::Present | Refusal::Gone | Refusal::Newest(_) => None,
        },
    }
}

/// The refused item in a message.
pub fn to_refusal(message: Refused) -> (u64, Refusal) {
    let Refused { key, is_present, newest, waited_for } = message;
    let refusal = match (newest, waited_for) {
        (Some(name), _) => Refusal::Newest(name.into()),
        (None, Some(reason)) => Refusal::Waited(reason.into()),
        (None, None) if is_present => Refusal::Present,
        (None, None) => Refusal::Gone,
    };
    (key, refusal)
}
