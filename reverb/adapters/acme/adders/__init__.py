# SPDX-License-Identifier: Apache-2.0
"""Adders: they turn the steps of an agent in an environment into items of tables.

Replaces `from acme.adders import reverb as adders`. The differences: TensorFlow is not needed
(signatures have `reverb.specs.TensorSpec` unless the program imported it), an adder that is reset
within an episode can still be used, and wrong use raises an error.
"""

from reverb.adapters.acme.adders.base import (
    DEFAULT_PRIORITY_TABLE,
    PriorityFn,
    PriorityFnInput,
    PriorityFnMapping,
    ReverbAdder,
    Step,
    Trajectory,
)
from reverb.adapters.acme.adders.episode import EpisodeAdder
from reverb.adapters.acme.adders.sequence import EndBehavior, SequenceAdder
from reverb.adapters.acme.adders.structured import (
    StructuredAdder,
    create_n_step_transition_config,
    create_sequence_config,
    create_step_spec,
    n_step_from_trajectory,
)
from reverb.adapters.acme.adders.transition import NStepTransitionAdder

__all__ = [
    "DEFAULT_PRIORITY_TABLE",
    "EndBehavior",
    "EpisodeAdder",
    "NStepTransitionAdder",
    "PriorityFn",
    "PriorityFnInput",
    "PriorityFnMapping",
    "ReverbAdder",
    "SequenceAdder",
    "Step",
    "StructuredAdder",
    "Trajectory",
    "create_n_step_transition_config",
    "create_sequence_config",
    "create_step_spec",
    "n_step_from_trajectory",
]
