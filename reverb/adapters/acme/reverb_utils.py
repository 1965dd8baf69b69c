# SPDX-License-Identifier: Apache-2.0
"""Conversions of table infos, samples and transitions.

Replaces `from acme.utils import reverb_utils`.
"""

import importlib
from typing import Any

import numpy as np
import tree

import reverb
from reverb import item_selectors
from reverb.adapters.acme.types import Transition
from reverb.errors import InvalidArgumentError
from reverb.reverb_types import TableInfo

__all__ = [
    "make_replay_table_from_info",
    "replay_sample_to_sars_transition",
    "transition_to_replaysample",
]


def make_replay_table_from_info(table_info: TableInfo) -> reverb.Table:
    """Makes an empty table with the options of another table, for example of another server.

    Args:
      table_info: A value of `client.server_info()`.
    """
    limiter = table_info.rate_limiter_info
    return reverb.Table(
        name=table_info.name,
        sampler=item_selectors.from_options(table_info.sampler_options),
        remover=item_selectors.from_options(table_info.remover_options),
        max_size=table_info.max_size,
        max_times_sampled=table_info.max_times_sampled,
        rate_limiter=reverb.rate_limiters.RateLimiter(
            samples_per_insert=limiter.samples_per_insert,
            min_size_to_sample=limiter.min_size_to_sample,
            min_diff=limiter.min_diff,
            max_diff=limiter.max_diff,
        ),
        signature=table_info.signature,
    )


def replay_sample_to_sars_transition(
    sample: reverb.ReplaySample,
    is_sequence: bool,
    strip_last_transition: bool = False,
    flatten_batch: bool = False,
    *,
    transition_type: type = Transition,
) -> Any:
    """Converts a sample to transitions.

    A sequence of `T` steps has `T - 1` transitions. The next observation of the last step is
    unknown; it is replaced by the first observation of the sequence.

    Args:
      sample: Data is a `Transition`, or a tuple of its fields; or a batch of sequences, a `Step`
        with leaves `[B, T, ...]`. Arrays of NumPy or of JAX.
      is_sequence: Whether data is a batch of sequences.
      strip_last_transition: Drops the last transition of each sequence.
      flatten_batch: Merges the first two dimensions.
      transition_type: The class of the result, for example `acme.types.Transition`.

    Returns:
      A `Transition` with leaves `[B, T, ...]`; with `T - 1` if stripped, `[B * T, ...]` or
      `[B * (T - 1), ...]` if flattened.
    """
    if not is_sequence:
        return transition_type(*sample.data)
    steps = sample.data
    transition = transition_type(
        observation=steps.observation,
        action=steps.action,
        reward=steps.reward,
        discount=steps.discount,
        next_observation=tree.map_structure(_rolled, steps.observation),
        extras=steps.extras,
    )
    if strip_last_transition:
        transition = tree.map_structure(lambda leaf: leaf[:, :-1], transition)
    if flatten_batch:
        transition = tree.map_structure(
            lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), transition
        )
    return transition


def transition_to_replaysample(transitions: Any) -> reverb.ReplaySample:
    """Makes a sample of transitions that are not from a table, for learners that take samples.

    Args:
      transitions: A `Transition` with leaves `[B, ...]`.

    Returns:
      A sample with this data. In its info, all `B` items have the same probability.

    Raises:
      InvalidArgumentError: If there is no leaf, or a leaf without dimensions.
    """
    leaves = tree.flatten(transitions)
    if not leaves or any(not np.shape(leaf) for leaf in leaves):
        raise InvalidArgumentError(
            "transitions must have leaves of shape [B, ...], got shapes "
            f"{[np.shape(leaf) for leaf in leaves]}"
        )
    batch_size = np.shape(leaves[0])[0]
    arrays: dict[str, Any] = {
        "key": np.arange(batch_size, dtype=np.uint64),
        "probability": np.full(batch_size, 1.0 / max(1, batch_size)),
        "table_size": np.full(batch_size, batch_size, np.int64),
        "priority": np.ones(batch_size),
        "times_sampled": np.ones(batch_size, np.int32),
    }
    return reverb.ReplaySample(reverb.SampleInfo(**arrays), transitions)


def _rolled(leaf: Any) -> Any:
    """Shifts the steps of each sequence by one; the first becomes the last."""
    # JAX arrays stay on their device, and may be tracers.
    module = np if isinstance(leaf, np.ndarray) else importlib.import_module("jax.numpy")
    return module.roll(leaf, -1, axis=1)
