# SPDX-License-Identifier: Apache-2.0
"""Conversions between what tables tell, what they hold, and what learners want.

In place of `from acme.utils import reverb_utils`.
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
    """A new and empty table with the options of another, for example of another server.

    Args:
      table_info: What `client.server_info()` tells of the other.
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
    """The transitions in a sample.

    A sequence of `T` steps has `T - 1` of them; what would be the last has the first observation of
    the sequence for its next observation, because nobody knows the right one.

    Args:
      sample: Data is a `Transition`, or a tuple of its fields; or a batch of sequences, a `Step`
        with leaves `[B, T, ...]`. Arrays of NumPy or of JAX.
      is_sequence: Whether data is a batch of sequences.
      strip_last_transition: Leaves out the last transition of each sequence.
      flatten_batch: Joins the first two dimensions into one.
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
    """A sample of transitions that came from no table, for learners that want samples.

    Args:
      transitions: A `Transition` with leaves `[B, ...]`.

    Returns:
      A sample with these data. Its info says that every one of `B` items was as likely.

    Raises:
      InvalidArgumentError: If there is no leaf, or one without dimensions.
    """
    leaves = tree.flatten(transitions)
    if not leaves or any(not np.shape(leaf) for leaf in leaves):
        raise InvalidArgumentError(
            "transitions must have leaves of shape [B, ...], got shapes "
            f"{[np.shape(leaf) for leaf in leaves]}"
        )
    batch_size = np.shape(leaves[0])[0]
    info = reverb.SampleInfo(
        key=np.arange(batch_size, dtype=np.uint64),
        probability=np.full(batch_size, 1.0 / max(1, batch_size)),
        table_size=np.full(batch_size, batch_size, np.int64),
        priority=np.ones(batch_size),
        times_sampled=np.ones(batch_size, np.int32),
    )
    return reverb.ReplaySample(info, transitions)


def _rolled(leaf: Any) -> Any:
    """The steps of each sequence, one earlier; the first comes last."""
    # Arrays of JAX stay where they are, and may be traced.
    module = np if isinstance(leaf, np.ndarray) else importlib.import_module("jax.numpy")
    return module.roll(leaf, -1, axis=1)
