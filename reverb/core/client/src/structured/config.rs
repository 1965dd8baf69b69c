// SPDX-License-Identifier: Apache-2.0
//! Declarations of patterns with their table, conditions and priority, checked before anything is
//! written.

use std::collections::BTreeSet;
use std::sync::Arc;

use prost::Message;
use reverb_base::{Error, Result};
use reverb_data::column_names::ColumnNames;
use reverb_wire::convert::signature::flatten_names;
use reverb_wire::generated::StructuredWriterConfig;
use reverb_wire::generated::condition::Left;

use super::condition::Condition;
use super::pattern::Node;
use super::priority::Priority;

/// A part of a declaration, or a sentence about its error.
pub(super) type Checked<T> = std::result::Result<T, String>;

/// One pattern with its table, conditions and priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub(super) table: String,
    pub(super) nodes: Vec<Node>,
    pub(super) conditions: Vec<Condition>,
    pub(super) priority: Priority,
    pub(super) removal_priority: Option<Priority>,
    /// Names of the columns; `None` if the declaration has none.
    pub(super) names: Option<Arc<ColumnNames>>,
}

impl Config {
    /// The table of its items.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The columns of its items.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of steps of history that the pattern spans, including the current one.
    pub fn history(&self) -> u64 {
        self.nodes.iter().map(Node::history).max().unwrap_or(0)
    }

    /// Applies the pattern only once the history has `steps` steps.
    pub fn require_buffer_length(&mut self, steps: u64) {
        if !self.conditions.iter().any(|condition| condition.requires_buffer_length(steps)) {
            self.conditions.push(Condition::min_buffer_length(steps));
        }
    }
}

/// All patterns of a writer.
#[derive(Debug, Clone, PartialEq)]
pub struct Configs {
    /// Configs in the order in which they create items at a step.
    pub configs: Vec<Config>,
    /// The leaves of a step that patterns or conditions read, ascending. A column is a position in
    /// this list.
    pub(super) leaves: Vec<usize>,
}

impl Configs {
    /// Decodes and checks serialized `StructuredWriterConfig` messages.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no config, or if one is invalid, with its position and the
    /// reason.
    pub fn decode(serialized: &[impl AsRef<[u8]>]) -> Result<Self> {
        let mut protos = Vec::with_capacity(serialized.len());
        for (i, bytes) in serialized.iter().enumerate() {
            let proto = StructuredWriterConfig::decode(bytes.as_ref()).map_err(|error| {
                invalid(i, &format!("it is not a StructuredWriterConfig message: {error}"))
            })?;
            protos.push(proto);
        }
        Self::new(&protos)
    }

    /// Checks and translates declarations.
    ///
    /// # Errors
    ///
    /// Same as `decode`.
    pub fn new(protos: &[StructuredWriterConfig]) -> Result<Self> {
        if protos.is_empty() {
            return Err(Error::invalid_argument("At least one config must be provided."));
        }
        let leaves: BTreeSet<usize> = protos.iter().flat_map(leaves_of).collect();
        let leaves: Vec<usize> = leaves.into_iter().collect();
        let column_of = |leaf: usize| leaves.partition_point(|&known| known < leaf);
        let configs = protos.iter().enumerate().map(|(i, proto)| {
            let mut config = config(proto, column_of).map_err(|reason| invalid(i, &reason))?;
            config.require_buffer_length(config.history());
            Ok(config)
        });
        Ok(Self { configs: configs.collect::<Result<_>>()?, leaves })
    }

    /// Number of steps of history that the patterns span.
    pub fn history(&self) -> u64 {
        self.configs.iter().map(Config::history).max().unwrap_or(0)
    }
}

fn invalid(position: usize, reason: &str) -> Error {
    Error::invalid_argument(format!("Invalid configuration at position {position}: {reason}."))
}

/// The leaves that a declaration reads. Negative ones are rejected later.
fn leaves_of(proto: &StructuredWriterConfig) -> impl Iterator<Item = usize> {
    let nodes = proto.flat.iter().map(|node| node.flat_source_index);
    let conditions = proto.conditions.iter().filter_map(|condition| match condition.left {
        Some(Left::FlatSourceIndex(leaf)) => Some(leaf),
        _ => None,
    });
    nodes.chain(conditions).filter_map(|leaf| usize::try_from(leaf).ok())
}

fn config(proto: &StructuredWriterConfig, column_of: impl Fn(usize) -> usize) -> Checked<Config> {
    if proto.flat.is_empty() {
        return Err("the pattern is empty, it needs at least one node".to_owned());
    }
    if proto.table.is_empty() {
        return Err("the name of the table is empty".to_owned());
    }
    let nodes = proto.flat.iter().map(|node| {
        let leaf = usize::try_from(node.flat_source_index).map_err(|_| {
            format!(
                "flat_source_index of a pattern node must not be negative, got {}",
                node.flat_source_index
            )
        })?;
        Node::new(node, column_of(leaf))
    });
    let nodes: Checked<_> = nodes.collect();
    let conditions = proto.conditions.iter().map(|condition| Condition::new(condition, &column_of));
    let sources: Vec<i32> = proto.flat.iter().map(|node| node.flat_source_index).collect();
    let structure = proto.pattern_structure.as_ref();
    let names = structure
        .map(flatten_names)
        .transpose()
        .map_err(|error| format!("pattern_structure is no nest of columns: {}", error.message()))?;
    Ok(Config {
        table: proto.table.clone(),
        nodes: nodes?,
        names: names.map(Arc::new),
        conditions: conditions.collect::<Checked<_>>()?,
        priority: Priority::new(proto.priority.as_ref(), &sources),
        removal_priority: proto
            .removal_priority
            .as_ref()
            .map(|priority| Priority::new(Some(priority), &sources)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structured::testing::{at, buffer_length, config, data, slice};

    fn error(protos: &[StructuredWriterConfig]) -> String {
        Configs::new(protos).unwrap_err().message().to_owned()
    }

    #[test]
    fn at_least_one_config_is_needed() {
        assert_eq!(error(&[]), "At least one config must be provided.");
        assert!(Configs::decode(&[] as &[Vec<u8>]).is_err());
    }

    #[test]
    fn errors_name_the_position() {
        let good = config("t", vec![at(0, -1)], vec![]);
        for (bad, text) in [
            (config("t", vec![], vec![]), "the pattern is empty, it needs at least one node."),
            (config("", vec![at(0, -1)], vec![]), "the name of the table is empty."),
            (
                config("t", vec![at(-1, -1)], vec![]),
                "flat_source_index of a pattern node must not be negative, got -1.",
            ),
            (
                config("t", vec![at(0, 0)], vec![]),
                "stop of a pattern node without a start must not be 0.",
            ),
            (
                config("t", vec![at(0, -1)], vec![data(-3, 0)]),
                "flat_source_index of a condition must not be negative, got -3.",
            ),
        ] {
            let text = format!("Invalid configuration at position 1: {text}");
            assert_eq!(error(&[good.clone(), bad, good.clone()]), text);
        }
        let bytes = [good.encode_to_vec(), vec![0xff]];
        let error = Configs::decode(&bytes).unwrap_err();
        assert!(
            error.message().starts_with(
                "Invalid configuration at position 1: it is not a StructuredWriterConfig message"
            ),
            "{error}"
        );
    }

    #[test]
    fn the_history_a_pattern_needs_becomes_a_condition() {
        let configs = Configs::new(&[
            config("t", vec![at(0, -2), slice(1, -5, Some(-1), None)], vec![]),
            config("t", vec![at(0, -7)], vec![buffer_length(7)]),
            config("t", vec![at(0, -2)], vec![buffer_length(1)]),
        ])
        .unwrap();
        let lengths: Vec<u64> = configs.configs.iter().map(Config::history).collect();
        assert_eq!((lengths, configs.history()), (vec![5, 7, 2], 7));
        let counts: Vec<usize> = configs.configs.iter().map(|c| c.conditions.len()).collect();
        assert_eq!(counts, [1, 1, 2]);
        assert!(configs.configs[0].conditions[0].requires_buffer_length(5));
    }

    #[test]
    fn only_leaves_that_are_read_become_columns() {
        let configs = Configs::decode(&[
            config("t", vec![at(9, -1), at(4, -1)], vec![data(6, 0)]).encode_to_vec(),
            config("t", vec![at(1_000_000_000, -1)], vec![]).encode_to_vec(),
        ])
        .unwrap();
        assert_eq!(configs.leaves, [4, 6, 9, 1_000_000_000]);
        let columns: Vec<usize> = configs.configs[0].nodes.iter().map(|node| node.column).collect();
        assert_eq!(columns, [2, 0]);
        assert_eq!(configs.configs[0].conditions[0].data_column(), Some(1));
        assert_eq!(configs.configs[1].nodes[0].column, 3);
    }
}
