# SPDX-License-Identifier: Apache-2.0
"""Makes a buffer with its table and server in one call.

Replaces `tf_agents.train.utils.replay_buffer_utils`.
"""

from typing import Any

from tf_agents.specs import tensor_spec  # pyright: ignore[reportMissingImports]

import reverb
from reverb import errors
from reverb.adapters.tf_agents import reverb_replay_buffer, reverb_utils

__all__ = ["get_reverb_buffer", "get_reverb_buffer_and_observer"]


def get_reverb_buffer(
    data_spec: Any,
    sequence_length: int | None = None,
    table_name: str = "uniform_table",
    table: reverb.Table | None = None,
    reverb_server_address: str | None = None,
    port: int | None = None,
    replay_capacity: int = 1000,
    min_size_limiter_size: int = 1,
) -> reverb_replay_buffer.ReverbReplayBuffer:
    """Makes a buffer over a running server, or over a new server in this process.

    Args:
      data_spec: Nest of specs of one frame.
      sequence_length: Length of the items; `None`: items differ in length.
      table_name: Name of the table.
      table: The table of the new server; `None`: one that samples uniformly and evicts the oldest
        item.
      reverb_server_address: Address of the running server; `None`: starts a new server.
      port: Port of the new server; `None`: any.
      replay_capacity: Maximum number of items of the new table, if `table` is `None`.
      min_size_limiter_size: Number of items before the new table is sampled, if `table` is `None`.

    Returns:
      The buffer; its `local_server` is the new server.

    Raises:
      KeyError: If the server has no such table.
      UnavailableError: If no server answers.
    """
    if reverb_server_address is not None:
        return reverb_replay_buffer.ReverbReplayBuffer(
            data_spec,
            table_name=table_name,
            sequence_length=sequence_length,
            server_address=reverb_server_address,
        )
    if table is None:
        table = _uniform_table(
            data_spec, sequence_length, table_name, replay_capacity, min_size_limiter_size
        )
    return reverb_replay_buffer.ReverbReplayBuffer(
        data_spec,
        table_name=table.name,
        sequence_length=sequence_length,
        local_server=reverb.Server([table], port=port),
    )


def get_reverb_buffer_and_observer(
    data_spec: Any,
    sequence_length: int | None = None,
    table_name: str = "uniform_table",
    table: reverb.Table | None = None,
    reverb_server_address: str | None = None,
    port: int | None = None,
    replay_capacity: int = 1000,
    min_size_limiter_size: int = 1,
    stride_length: int = 1,
) -> tuple[reverb_replay_buffer.ReverbReplayBuffer, reverb_utils.ReverbAddTrajectoryObserver]:
    """Makes a buffer and an observer that writes into its table.

    Args:
      data_spec: As in `get_reverb_buffer`.
      sequence_length: As in `get_reverb_buffer`.
      table_name: As in `get_reverb_buffer`.
      table: As in `get_reverb_buffer`.
      reverb_server_address: As in `get_reverb_buffer`.
      port: As in `get_reverb_buffer`.
      replay_capacity: As in `get_reverb_buffer`.
      min_size_limiter_size: As in `get_reverb_buffer`.
      stride_length: Number of frames from the start of an item to that of the next.

    Returns:
      The buffer and the observer.

    Raises:
      InvalidArgumentError: If `sequence_length` is `None`.
      KeyError: If the server has no such table.
      UnavailableError: If no server answers.
    """
    if sequence_length is None:
        raise errors.InvalidArgumentError(
            "sequence_length must be a number for this observer, got None; to write whole "
            "episodes, use get_reverb_buffer with a ReverbAddEpisodeObserver"
        )
    buffer = get_reverb_buffer(
        data_spec,
        sequence_length,
        table_name,
        table,
        reverb_server_address,
        port,
        replay_capacity,
        min_size_limiter_size,
    )
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        buffer.py_client, buffer.table_name, sequence_length, stride_length=stride_length
    )
    return buffer, observer


def _uniform_table(
    data_spec: Any, sequence_length: int | None, name: str, max_size: int, min_size: int
) -> reverb.Table:
    return reverb.Table(
        name,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=reverb.rate_limiters.MinSize(min_size),
        signature=tensor_spec.add_outer_dim(data_spec, sequence_length),
    )
