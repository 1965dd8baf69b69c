// SPDX-License-Identifier: Apache-2.0
//! Capabilities: features of servers beyond dm-reverb, by name. Servers announce them in
//! `ServerInfoResponse`, and clients use only announced ones.

use reverb_base::{Error, Result};

/// A feature of a server beyond dm-reverb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// `SampleStreamRequest.all_or_nothing`.
    AllOrNothing,
    /// `SampleStreamRequest.distinct`.
    Distinct,
    /// `SampleStreamRequest.epoch`.
    Epochs,
    /// `SampleStreamRequest.columns`.
    Columns,
    /// `PrioritizedItem.has_max_priority`.
    MaxPriority,
    /// `PrioritizedItem.removal_priority`.
    RemovalPriority,
    /// `KeyDistributionOptions.extension`.
    Selectors,
    /// `ScanRequest.columns`, `condition` and `keys`.
    ChosenItems,
    /// `SampleStreamRequest.window`, and samplers over steps.
    Windows,
    /// Tables whose items have rollouts.
    Rollouts,
    /// `PrioritizedItem.replaces`.
    Replace,
    /// `InsertStreamRequest.max_wait_ms`.
    InsertTimeouts,
}

impl Capability {
    /// Capabilities of the servers of this release.
    pub const ALL: &[Self] = &[
        Self::AllOrNothing,
        Self::Distinct,
        Self::Epochs,
        Self::Columns,
        Self::MaxPriority,
        Self::RemovalPriority,
        Self::Selectors,
        Self::ChosenItems,
        Self::Windows,
        Self::Rollouts,
        Self::Replace,
        Self::InsertTimeouts,
    ];

    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllOrNothing => "all_or_nothing",
            Self::Distinct => "distinct",
            Self::Epochs => "epochs",
            Self::Columns => "columns",
            Self::MaxPriority => "max_priority",
            Self::RemovalPriority => "removal_priority",
            Self::Selectors => "selectors",
            Self::ChosenItems => "chosen_items",
            Self::Windows => "windows",
            Self::Rollouts => "rollouts",
            Self::Replace => "replace",
            Self::InsertTimeouts => "insert_timeouts",
        }
    }

    /// Part of an error text: the feature that the server lacks.
    fn what(self) -> &'static str {
        match self {
            Self::AllOrNothing => "batches of all items or none",
            Self::Distinct => "batches without repetition (distinct)",
            Self::Epochs => "epochs",
            Self::Columns => "a choice of columns",
            Self::MaxPriority => "MAX_PRIORITY",
            Self::RemovalPriority => "removal priorities",
            Self::Selectors => "selectors beyond dm-reverb's",
            Self::ChosenItems => "a choice of items (fetch, scan with columns or where)",
            Self::Windows => "windows",
            Self::Rollouts => "rollouts",
            Self::Replace => "items that replace others (replace=True)",
            Self::InsertTimeouts => "time limits of inserts (timeout_ms)",
        }
    }

    /// Part of an error text: the remedy.
    fn instead(self) -> &'static str {
        match self {
            Self::MaxPriority => ", or give a number as the priority",
            _ => "",
        }
    }
}

/// Capabilities that a server has announced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(Vec<String>);

impl Capabilities {
    /// Capabilities of the servers of this release.
    pub fn of_this_release() -> Self {
        Self(Capability::ALL.iter().map(|capability| capability.name().to_owned()).collect())
    }

    /// Capabilities of these names. Unknown names come from newer servers.
    pub fn from_names(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Names of the capabilities.
    pub fn into_names(self) -> Vec<String> {
        self.0
    }

    /// Returns true if the server has announced it.
    pub fn has(&self, capability: Capability) -> bool {
        self.0.iter().any(|name| name == capability.name())
    }

    /// Capabilities that both servers have announced.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.retain(|name| other.0.contains(name));
        self
    }

    /// Checks that the server at an address has announced it.
    ///
    /// # Errors
    ///
    /// `Unimplemented` that names the missing feature.
    pub fn require(&self, capability: Capability, address: &str) -> Result<()> {
        if self.has(capability) {
            return Ok(());
        }
        Err(Error::unimplemented(format!(
            "Server {address} (dm-reverb, or older) does not know {}; start reverb_server >= {}{}.",
            capability.what(),
            env!("CARGO_PKG_VERSION"),
            capability.instead(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_announced_is_there() {
        let own = Capabilities::of_this_release();
        for &capability in Capability::ALL {
            assert_eq!(own.require(capability, "h:8000"), Ok(()));
        }
        let error =
            Capabilities::default().require(Capability::AllOrNothing, "h:8000").unwrap_err();
        let text = "Server h:8000 (dm-reverb, or older) does not know batches of all items or none";
        assert!(error.message().starts_with(text), "{error}");
        assert_eq!(own.and(&Capabilities::default()), Capabilities::default());
    }
}
