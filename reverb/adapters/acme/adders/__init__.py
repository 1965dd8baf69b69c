# SPDX-License-Identifier: Apache-2.0
"""Adders: they turn what an agent does in an environment into items of tables.

In place of `from acme.adders import reverb as adders`. What differs: nothing here needs TensorFlow
(signatures are made of `reverb.specs.TensorSpec` unless the program imported it), an adder that is
reset in the middle of an episode can be used on, and wrong use is an error that says so.
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
