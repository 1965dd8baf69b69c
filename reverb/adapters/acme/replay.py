# SPDX-License-Identifier: Apache-2.0
"""Replay for an agent in one process: a server, an adder, and an iterator of batches.

Replaces `from acme.agents import replay`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import reverb
from reverb.adapters.acme import adders, datasets, tables
from reverb.adapters.acme.adders.base import DEFAULT_PRIORITY_TABLE

__all__ = [
    "ReverbReplay",
    "make_reverb_online_queue",
    "make_reverb_prioritized_nstep_replay",
    "make_reverb_prioritized_sequence_replay",
]


@dataclasses.dataclass
class ReverbReplay:
    """A server with one table in this process, with its adder and its iterator.

    Attributes:
      server: Keep a reference while the other attributes are used.
      adder: Writes the steps of the agent.
      data_iterator: Yields `ReplaySample`s, for the learner.
      client: Updates priorities.
      can_sample: Whether `next(data_iterator)` would return at once.
    """

    server: reverb.Server
    adder: adders.ReverbAdder
    data_iterator: Iterator[reverb.ReplaySample]
    client: reverb.Client | None = None
    can_sample: Callable[[], bool] = lambda: True


def make_reverb_prioritized_nstep_replay(
    environment_spec: Any,
    extra_spec: Any = (),
    n_step: int = 1,
    batch_size: int = 32,
    max_replay_size: int = 100_000,
    min_replay_size: int = 1,
    discount: float = 1.0,
    prefetch_size: int = 4,
    replay_table_name: str = DEFAULT_PRIORITY_TABLE,
    priority_exponent: float | None = None,
) -> ReverbReplay:
    """Makes a replay of transitions.

    Args:
      environment_spec: An `EnvironmentSpec`.
      extra_spec: Nest of specs of the extras.
      n_step: See `NStepTransitionAdder`.
      batch_size: Number of transitions in a batch.
      max_replay_size: Maximum number of transitions in the table.
      min_replay_size: Samples wait until the table has this many transitions.
      discount: See `NStepTransitionAdder`.
      prefetch_size: Number of batches to prefetch.
      replay_table_name: Name of the table.
      priority_exponent: Samples in proportion to priority ^ exponent; `None`: uniformly.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    signature = adders.NStepTransitionAdder.signature(environment_spec, extra_spec)
    table = _replay_table(
        signature, replay_table_name, max_replay_size, min_replay_size, priority_exponent
    )

    def make_adder(client: reverb.Client) -> adders.ReverbAdder:
        return adders.NStepTransitionAdder(
            client, n_step, discount, priority_fns={replay_table_name: None}
        )

    return _serve(table, make_adder, batch_size, prefetch_size)


def make_reverb_online_queue(
    environment_spec: Any,
    extra_spec: Any,
    max_queue_size: int,
    sequence_length: int,
    sequence_period: int,
    batch_size: int,
    replay_table_name: str = DEFAULT_PRIORITY_TABLE,
) -> ReverbReplay:
    """Makes a queue of sequences, for on-policy agents.

    One batch is prefetched. An agent in one thread must learn whenever `can_sample()` is true,
    because inserts wait while the queue is full.

    Args:
      environment_spec: An `EnvironmentSpec`.
      extra_spec: Nest of specs of the extras.
      max_queue_size: Maximum number of sequences in the queue.
      sequence_length: See `SequenceAdder`.
      sequence_period: See `SequenceAdder`.
      batch_size: Number of sequences in a batch.
      replay_table_name: Name of the table.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    signature = adders.SequenceAdder.signature(environment_spec, extra_spec, sequence_length)
    table = tables.make_queue_table(signature, max_size=max_queue_size, name=replay_table_name)

    def make_adder(client: reverb.Client) -> adders.ReverbAdder:
        return adders.SequenceAdder(
            client,
            sequence_length=sequence_length,
            period=sequence_period,
            priority_fns={replay_table_name: None},
        )

    return _serve(table, make_adder, batch_size, prefetch_size=1)


def make_reverb_prioritized_sequence_replay(
    environment_spec: Any,
    extra_spec: Any = (),
    batch_size: int = 32,
    max_replay_size: int = 100_000,
    min_replay_size: int = 1,
    priority_exponent: float = 0.0,
    burn_in_length: int = 40,
    sequence_length: int = 80,
    sequence_period: int = 40,
    replay_table_name: str = DEFAULT_PRIORITY_TABLE,
    prefetch_size: int = 4,
) -> ReverbReplay:
    """Makes a replay of sequences, for recurrent agents.

    Items have `burn_in_length + sequence_length + 1` steps: those that warm up the state of a
    network, those to learn from, and one more to bootstrap from.

    Args:
      environment_spec: An `EnvironmentSpec`.
      extra_spec: Nest of specs of the extras.
      batch_size: Number of sequences in a batch.
      max_replay_size: Maximum number of sequences in the table.
      min_replay_size: Samples wait until the table has this many sequences.
      priority_exponent: Samples in proportion to priority ^ exponent.
      burn_in_length: See above.
      sequence_length: See above.
      sequence_period: See `SequenceAdder`.
      replay_table_name: Name of the table.
      prefetch_size: Number of batches to prefetch.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    length = burn_in_length + sequence_length + 1
    signature = adders.SequenceAdder.signature(environment_spec, extra_spec, length)
    table = _replay_table(
        signature, replay_table_name, max_replay_size, min_replay_size, priority_exponent
    )

    def make_adder(client: reverb.Client) -> adders.ReverbAdder:
        return adders.SequenceAdder(
            client,
            sequence_length=length,
            period=sequence_period,
            priority_fns={replay_table_name: None},
        )

    return _serve(table, make_adder, batch_size, prefetch_size)


def _replay_table(
    signature: Any, name: str, max_size: int, min_size: int, priority_exponent: float | None
) -> reverb.Table:
    options: dict[str, Any] = {
        "name": name,
        "max_size": max_size,
        "min_size_to_sample": min_size,
    }
    if priority_exponent is None:
        return tables.make_replay_table(signature, **options)
    return tables.make_prioritized_table(signature, priority_exponent=priority_exponent, **options)


def _serve(
    table: reverb.Table,
    make_adder: Callable[[reverb.Client], adders.ReverbAdder],
    batch_size: int,
    prefetch_size: int,
) -> ReverbReplay:
    server = reverb.Server([table])
    client = server.localhost_client()
    iterator = datasets.make_reverb_dataset(
        client, batch_size=batch_size, prefetch_size=prefetch_size, table=table.name
    ).as_numpy_iterator()
    return ReverbReplay(server, make_adder(client), iterator, client, iterator.ready)
