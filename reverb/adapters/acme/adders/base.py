# SPDX-License-Identifier: Apache-2.0
"""The base of all adders: a writer, tables with priority functions, and episodes."""

import itertools
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tree

from reverb import errors
from reverb.adapters.acme import specs
from reverb.client import Client
from reverb.structured_writer import StructuredWriter
from reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter

if TYPE_CHECKING:
    import dm_env  # pyright: ignore[reportMissingImports]

__all__ = [
    "DEFAULT_PRIORITY_TABLE",
    "PriorityFn",
    "PriorityFnInput",
    "PriorityFnMapping",
    "ReverbAdder",
    "Step",
    "Trajectory",
]

DEFAULT_PRIORITY_TABLE = "priority_table"

# An older writer is not used for another episode, so that actors spread over all servers of an
# address again.
_MAX_WRITER_AGE_S = 60.0

# How long an adder that is deleted waits for its last items.
_CLOSE_TIMEOUT_MS = 10_000

_logger = logging.getLogger("reverb")


class Step(NamedTuple):
    """A step; or, with a leading time axis `[T, ...]`, a sequence of steps.

    Attributes:
      observation: Nest of arrays, the observation before the action.
      action: Nest of arrays; zeros in the last step of an episode.
      reward: Nest of arrays, the reward for the action; zeros in the last step.
      discount: Nest of arrays, the discount with the reward; zeros in the last step.
      start_of_episode: bool, whether the observation is the first of its episode.
      extras: Nest of arrays, additional data of the agent; zeros in the last step.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    start_of_episode: Any
    extras: Any = ()


Trajectory = Step


class PriorityFnInput(NamedTuple):
    """Legacy name of the argument of a priority function; see `PriorityFn`."""

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any
    start_of_episode: Any
    extras: Any


# Computes the priority of an item. The argument is the item with NumPy arrays as leaves: a `Step`
# with a time axis, or a `Transition`.
PriorityFn = Callable[[Any], float]
PriorityFnMapping = Mapping[str, PriorityFn | None]


class ReverbAdder:
    """The base of adders, which turn the steps of an agent in an environment into items.

    A subclass implements `_write` and `_write_last`. The steps are in `self._writer.history`: in
    `_write`, the newest row has only the observation, and `[-n-1:-1]` are the last `n` complete
    steps; in `_write_last`, they are `[-n:]`. Not thread-safe.
    """

    def __init__(
        self,
        client: Client,
        max_sequence_length: int,
        max_in_flight_items: int | None,
        delta_encoded: bool = False,
        priority_fns: PriorityFnMapping | None = None,
        validate_items: bool = True,
        *,
        get_signature_timeout_ms: int | None = None,
    ) -> None:
        """Makes an adder; does not connect yet.

        Args:
          client: Client of the server with the tables.
          max_sequence_length: Number of newest steps that new items may use.
          max_in_flight_items: `add` waits while more items than this are unconfirmed; `None`: it
            never waits.
          delta_encoded: Ignored, as in Acme.
          priority_fns: The tables to insert into, with a priority function for each; a function of
            `None` means priority 1.0. `None` or empty: the table is `DEFAULT_PRIORITY_TABLE`.
          validate_items: Compares items with their table's signature before they are sent.
          get_signature_timeout_ms: Ignored; accepted for programs for older versions.

        Raises:
          InvalidArgumentError: If a number is out of its range.
        """
        del delta_encoded, get_signature_timeout_ms
        if max_sequence_length < 1:
            raise errors.InvalidArgumentError(
                f"max_sequence_length must be at least 1, got {max_sequence_length}"
            )
        if max_in_flight_items is not None and max_in_flight_items < 0:
            raise errors.InvalidArgumentError(
                f"max_in_flight_items must be at least 0 or None, got {max_in_flight_items}"
            )
        self._client = client
        self._max_sequence_length = max_sequence_length
        self._max_in_flight_items = max_in_flight_items
        self._validate_items = validate_items
        self._priority_fns = dict(priority_fns or {DEFAULT_PRIORITY_TABLE: None})
        self._add_first_called = False
        # A `TrajectoryWriter`, or what `_make_writer` of a subclass makes.
        self._open_writer: Any = None
        self._writer_made_at = 0.0

    @classmethod
    def signature(cls, environment_spec: Any, extras_spec: Any = ()) -> Any:
        """Returns the signature of a table for steps of an environment.

        Args:
          environment_spec: An `EnvironmentSpec`, of this package or of Acme.
          extras_spec: Nest of specs of the `extras` of `add`.

        Returns:
          A `Step` with leaves `reverb.specs.TensorSpec`, or `tf.TensorSpec` if the
          program imported TensorFlow.
        """
        step = Step(*environment_spec, start_of_episode=np.bool_, extras=extras_spec)
        return tree.map_structure_with_path(specs.tensor_spec, step)

    def add_priority_table(self, table_name: str, priority_fn: PriorityFn | None) -> None:
        """Adds a table; later items are inserted into it too.

        Args:
          table_name: Name of the table.
          priority_fn: Returns the priority of an item; `None`: 1.0.

        Raises:
          InvalidArgumentError: If items are already inserted into that table.
        """
        if table_name in self._priority_fns:
            raise errors.InvalidArgumentError(
                f"A priority function already exists for {table_name}. Existing tables: "
                f"{', '.join(self._priority_fns)}."
            )
        self._priority_fns[table_name] = priority_fn

    def add_first(self, timestep: "dm_env.TimeStep") -> None:
        """Begins an episode with its first observation.

        The very first call blocks until the server has sent its tables' signatures.

        Args:
          timestep: The result of `environment.reset()`.

        Raises:
          InvalidArgumentError: If it is not a first time step, or if an episode is in progress.
        """
        if not timestep.first():
            raise errors.InvalidArgumentError(
                "adder.add_first needs an initial timestep, one for which timestep.first() is "
                f"True, got step_type {timestep.step_type!r}"
            )
        if self._add_first_called:
            raise errors.InvalidArgumentError(
                "adder.add_first was called while an episode is in progress: add steps until one "
                "is the last, or call adder.reset() to abandon the episode"
            )
        self._begin(timestep.observation)
        self._add_first_called = True

    def add(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any = ()) -> None:
        """Adds an action and its outcome.

        Blocks while more than `max_in_flight_items` items are unconfirmed, and at the end of an
        episode until all are confirmed. The tables' rate limiters may delay that. After an error
        within an episode, continue with `reset` and `add_first`.

        Args:
          action: Nest of arrays, the action after the last observation.
          next_timestep: The result of `environment.step(action)`.
          extras: Nest of arrays, additional data of this step. Give it in all steps or in none.

        Raises:
          InvalidArgumentError: If no episode is in progress, or if values are missing.
          SignatureMismatchError: If a value's shape or dtype differs from earlier steps, or if an
            item does not match its table's signature.
          TableNotFoundError: If the server has no such table.
          UnavailableError: If the server no longer answers.
        """
        if not self._add_first_called:
            raise errors.InvalidArgumentError(
                "adder.add_first must be called before adder.add: no episode is in progress"
            )
        self._add(action, next_timestep, extras)
        if next_timestep.last():
            self._finish(action, next_timestep, extras)
            self.reset()

    def reset(self, timeout_ms: int | None = None) -> None:
        """Abandons the episode in progress, if there is one.

        Its items are kept. Blocks until they are confirmed.

        Args:
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          DeadlineExceededError: After `timeout_ms`. Nothing has changed; call again.
          ReverbError: If the connection failed permanently. The next episode makes a new one.
        """
        if self._open_writer is not None:
            try:
                self._open_writer.end_episode(clear_buffers=True, timeout_ms=timeout_ms)
            except errors.DeadlineExceededError:
                raise
            except errors.ReverbError:
                self._drop_writer()
                raise
            if time.monotonic() - self._writer_made_at > _MAX_WRITER_AGE_S:
                self._drop_writer()
        self._forget_steps()

    def close(self, timeout_ms: int | None = None) -> None:
        """Blocks until all items are confirmed, then closes the writer.

        An adder that is deleted, or still open when the program exits, does the same for ten
        seconds at most.

        Args:
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          DeadlineExceededError: After `timeout_ms`. Unconfirmed items are abandoned.
          ReverbError: If the connection failed permanently.
        """
        writer, self._open_writer = self._open_writer, None
        self._forget_steps()
        if writer is not None:
            self._at_drop.detach()
            try:
                # In `TrajectoryWriter.flush`, 0 means "no limit".
                limit = None if timeout_ms is None else max(1, timeout_ms)
                writer.flush(0, timeout_ms=limit)
            finally:
                if isinstance(writer, TrajectoryWriter):  # Others end with their last reference.
                    writer.close()

    @property
    def _writer(self) -> Any:
        """The writer of this episode, made on first use."""
        if self._open_writer is None:
            self._open_writer = self._make_writer()
            self._writer_made_at = time.monotonic()
            # Unlike `__del__`, this also waits at the exit of the program.
            self._at_drop = weakref.finalize(self, _send_last_items, self._open_writer)
        return self._open_writer

    def _make_writer(self) -> TrajectoryWriter | StructuredWriter:
        return self._client.trajectory_writer(
            self._num_keep_alive_refs(), validate_items=self._validate_items
        )

    def _num_keep_alive_refs(self) -> int:
        return self._max_sequence_length

    def _drop_writer(self) -> None:
        if self._open_writer is not None:
            self._at_drop.detach()
            _abandon(self._open_writer)
            self._open_writer = None
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Called when the writer has cleared its history: no episode is in progress."""
        self._add_first_called = False

    def _begin(self, observation: Any) -> None:
        self._append({"observation": observation, "start_of_episode": True}, is_open=True)

    def _add(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        self._append(self._outcome(action, next_timestep, extras), is_open=False)
        observation = {"observation": next_timestep.observation, "start_of_episode": False}
        self._append(observation, is_open=True)
        self._write()

    def _finish(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> None:
        outcome = self._outcome(action, next_timestep, extras)
        zeros: Any = tree.map_structure(zeros_like, outcome)
        self._append(zeros, is_open=False)
        self._write_last()

    def _append(self, fields: dict[str, Any], *, is_open: bool) -> None:
        """Appends some fields of a step; `is_open`: more of them follow."""
        self._writer.append(fields, partial_step=is_open)

    def _outcome(self, action: Any, next_timestep: "dm_env.TimeStep", extras: Any) -> dict:
        """Returns the fields of a step without its observation."""
        outcome = {
            "action": action,
            "reward": next_timestep.reward,
            "discount": next_timestep.discount,
        }
        if not is_empty(extras):
            outcome["extras"] = extras
        return outcome

    def _write(self) -> None:
        """Makes the items that are due after a step."""
        raise NotImplementedError(f"{type(self).__name__} must implement _write")

    def _write_last(self) -> None:
        """Makes the items that are due at the end of an episode."""
        raise NotImplementedError(f"{type(self).__name__} must implement _write_last")

    def _create_items(self, structure: Any, columns: list[TrajectoryColumn]) -> None:
        """Queues an item of flat columns for each table; `max_in_flight_items` may block it."""
        writer = self._writer
        for table, priority_fn in self._priority_fns.items():
            priority = 1.0
            if priority_fn is not None:
                values = [column.numpy() for column in columns]
                priority = float(priority_fn(_unflatten_fields(structure, values)))
            writer.create_item(table, priority, columns)
        if self._max_in_flight_items is not None:
            writer.flush(self._max_in_flight_items)


def _send_last_items(writer: TrajectoryWriter | StructuredWriter) -> None:
    """Flushes the writer of an adder that is being deleted, for a bounded time."""
    try:
        writer.flush(0, timeout_ms=_CLOSE_TIMEOUT_MS)
    except errors.ReverbError as error:
        _logger.warning("The last items of a dropped adder may be lost: %s", error)
    _abandon(writer)


def _abandon(writer: TrajectoryWriter | StructuredWriter) -> None:
    """Closes a writer without a flush; a structured writer ends with its last reference."""
    if isinstance(writer, TrajectoryWriter):
        writer.close(flush=False)


def _unflatten_fields(structure: Any, values: list[Any]) -> Any:
    """A faster `tree.unflatten_as` for named tuples whose fields are leaves."""
    fields, remaining = [], iter(values)
    for field in structure:
        if tree.is_nested(field):
            count = len(tree.flatten(field))
            fields.append(tree.unflatten_as(field, list(itertools.islice(remaining, count))))
        else:
            fields.append(next(remaining))
    return type(structure)(*fields)


def is_empty(extras: Any) -> bool:
    """Whether there are no extras: a container without entries."""
    return isinstance(extras, tuple | list | Mapping) and not extras


def zeros_like(value: Any) -> np.ndarray:
    """Returns zeros with the shape and dtype that the value is stored with."""
    return np.zeros_like(np.asarray(value))
