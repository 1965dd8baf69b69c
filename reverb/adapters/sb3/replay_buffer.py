# SPDX-License-Identifier: Apache-2.0
"""A replay buffer for Stable-Baselines3 whose data is in a table."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

import reverb
from reverb.adapters.own_server import OwnServer
from reverb.adapters.sb3 import arrays
from reverb.adapters.sb3.column_order import order_in
from reverb.adapters.sb3.leaf import make_leaf
from reverb.adapters.sb3.library import buffers, spaces, type_aliases
from reverb.adapters.sb3.step import TransitionSpec
from reverb.adapters.sb3.transition_writer import STEPS_PER_SEND, TransitionWriter
from reverb.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError

__all__ = ["ReverbReplayBuffer"]

# Attributes that are made again when a buffer is loaded.
_NOT_PICKLED = (
    *("_own", "_client", "_steps"),
    *("_leaves", "_spec", "_order", "info"),
)


class ReverbReplayBuffer(buffers.ReplayBuffer):
    """A replay buffer for the off-policy algorithms of Stable-Baselines3.

        DQN("CnnPolicy", env, replay_buffer_class=ReverbReplayBuffer)

    Nothing is stored twice: the next observation of a transition is the observation of the next
    one, and stacks of frames share their frames. Time limits are never taken for terminations.
    With `server` the transitions are in a table of another process, and several programs may write
    to it. Dict observations, `VecNormalize` and n-step returns work as with the buffers of
    Stable-Baselines3.

    Without `server`, the seed of an algorithm (which also seeds NumPy) makes samples reproducible.

    Not thread-safe. It does not replace `HerReplayBuffer`.
    """

    _is_closed = False

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        server: str | None = None,
        table: str = "replay",
        n_steps: int = 1,
        gamma: float = 0.99,
        priority_exponent: float | None = None,
    ) -> None:
        """Makes a buffer.

        Args:
          buffer_size: Maximum number of transitions of all environments. Ignored with `server`,
            where the table has its own size.
          observation_space: As in `ReplayBuffer`; may be a `Dict`.
          action_space: As in `ReplayBuffer`.
          device: Device of the tensors that `sample` returns.
          n_envs: Number of environments.
          optimize_memory_usage: Ignored: memory use is always that of `True`, together with the
            handling of time limits.
          handle_timeout_termination: Whether an episode that ends by a time limit does not count as
            terminated. `False`: `infos` is not read.
          server: Address of a server with the table; `None`: a server in this process.
          table: Name of the table.
          n_steps: Number of steps of a transition. Near the end of an episode it has fewer.
          gamma: Discount of the rewards of several steps.
          priority_exponent: Samples by priority; new transitions have the largest one. `None`:
            uniformly. Only without `server`.

        Raises:
          InvalidArgumentError: If a number is out of its range, if `priority_exponent` is given
            with `server`, or if the server has no such table.
          SignatureMismatchError: If the signature of the table names other columns.
          UnavailableError: If no server answers.
        """
        buffers.BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        if n_steps < 1:
            raise InvalidArgumentError(f"n_steps must be at least 1, got {n_steps}")
        if not 0 <= gamma <= 1:
            raise InvalidArgumentError(f"gamma must be from 0 to 1, got {gamma}")
        if server is not None and priority_exponent is not None:
            raise InvalidArgumentError(
                f"priority_exponent={priority_exponent} is a setting of the table, which is on "
                f"server {server}; leave it out"
            )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = n_steps
        self.gamma = gamma
        self._discounts = np.float32(gamma) ** np.arange(n_steps, dtype=np.float32)[:, None]
        self._address = server
        self._table = table
        self._priority_exponent = priority_exponent
        self._is_dict = isinstance(observation_space, spaces.Dict)
        # Discrete and continuous actions; float64 is stored as float32.
        self._action_dtype = np.dtype(self._maybe_cast_dtype(action_space.dtype))
        self._open()

    # ---- Calls of Stable-Baselines3 --------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Adds a transition of each environment; see `ReplayBuffer.add`.

        Values are cast to the dtypes of the spaces as in `ReplayBuffer`. Blocks while 1,000
        transitions are not confirmed.

        Raises:
          InvalidArgumentError: If `infos` is one dict, and time limits must be read from it.
          ValueError: If a shape differs. Nothing was added.
        """
        timeout = None
        if self.handle_timeout_termination:
            timeout = self._timeouts_in(infos)
        if self._is_dict:
            obs = [obs[name] for name in self._names]
            next_obs = [next_obs[name] for name in self._names]
        else:
            obs, next_obs = [obs], [next_obs]
        self._steps.add(obs, next_obs, action, reward, done, timeout)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Samples transitions; see `ReplayBuffer.sample`.

        Afterwards, the attribute `info` has keys and probabilities of the batch. All transitions
        that this buffer has added may be sampled. With `server`, blocks while there is none.

        Raises:
          InvalidArgumentError: Without `server`, if there is no transition yet.
        """
        if self._own is not None and not self._steps.has_items:
            return self._unwritten(batch_size, env)
        self._steps.flush()
        batch = self._client.sample_batch(self._table, batch_size, partial=False)
        self.info = batch.info
        num_columns = 2 * len(self._leaves) + len(arrays.NUMBERS)
        columns = batch.data if self._order is None else tree.flatten(batch.data)
        if len(columns) != num_columns:
            raise InvalidArgumentError(
                f"table {self._table} has {len(columns)} columns, but this buffer needs "
                f"{num_columns}: another program writes other data to it"
            )
        if self._order is not None:
            columns = [columns[at] for at in np.argsort(self._order)]
        return self._as_samples(columns, env)

    def _as_samples(self, columns: Any, env: Any) -> Any:
        """Makes the tensors of a batch of columns `[B, ...]`."""
        num_leaves = len(self._leaves)
        observations = self._as_tensors(columns[:num_leaves], env)
        next_observations = self._as_tensors(columns[num_leaves : 2 * num_leaves], env)
        action, rewards, dones, discounts, *_ = columns[2 * num_leaves :]
        rewards = self._returns(rewards, env)
        make = type_aliases.DictReplayBufferSamples
        if not self._is_dict:
            make = type_aliases.ReplayBufferSamples
        to_torch = self._to_torch
        return make(
            observations=observations,
            actions=to_torch(action),
            next_observations=next_observations,
            dones=to_torch(dones[:, None]),
            rewards=to_torch(rewards),
            discounts=to_torch(discounts[:, None]) if self.n_steps > 1 else None,
        )

    def importance_weights(self, beta: float, normalize: Any = "table") -> Any:
        """Returns the importance weights of the last batch, a tensor `[B, 1]` of float32.

        Args:
          beta: How much of the bias to correct, from 0 (none) to 1 (all).
          normalize: See `reverb.importance_weights`.
        """
        weights = reverb.importance_weights(self.info, beta, normalize)
        return self._to_torch(weights.reshape(-1, 1))

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """Updates priorities; see `reverb.Client.update_priorities`.

        Args:
          keys: `[B]`, `info.key` after `sample`.
          priorities: `[B]`.
        """
        self._client.update_priorities(self._table, keys, priorities)

    def reset(self) -> None:
        """Removes all transitions."""
        super().reset()
        self._steps.close(flush=False)
        self._client.reset(self._table)
        self._begin_writing()

    def flush(self) -> None:
        """Waits until all transitions are in the table."""
        self._steps.flush()

    @property
    def dones(self) -> arrays.Dones:
        """An array like `observations` and the others, which Stable-Baselines3 also sets."""
        return arrays.Dones(lambda: self._array("dones"), self._steps.end_episodes)

    def __getattr__(self, name: str) -> Any:
        """Reads one of the arrays of other buffers from the table.

        `observations`, `next_observations`, `actions`, `rewards`, `dones` and `timeouts` have the
        shapes `[buffer_size, n_envs, ...]`. Each access reads the whole table and returns a
        read-only copy.

        Raises:
          AttributeError: With `server` or `n_steps` above 1, and for all other names.
          FailedPreconditionError: If the buffer is closed.
        """
        if name in arrays.ARRAYS and "_own" in self.__dict__:
            return self._array(name)
        if self._is_closed and name in ("_client", "_steps"):
            raise FailedPreconditionError("the replay buffer is closed")
        raise AttributeError(arrays.no_attribute(type(self).__name__, name))

    def close(self) -> None:
        """Ends the writer, and the server if it belongs to this buffer.

        With `server`, it waits until the transitions are confirmed, for at most 10 s. Later calls
        raise `FailedPreconditionError`. May be called more than once.

        Raises:
          DeadlineExceededError: If some were not confirmed; the text says what they wait for.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._steps.close(flush=self._own is None)
        finally:
            if self._own is not None:
                self._own.stop()
            # Whatever looks for them learns from `__getattr__` that the buffer is closed.
            del self._steps, self._client

    # ---- Parts -----------------------------------------------------------------------------------

    def _open(self, checkpoint: bytes | None = None, num_steps: int = 0) -> None:
        """Starts or finds the server.

        Args:
          checkpoint: Packed transitions to start with; `None`: no transitions.
          num_steps: Number of earlier calls of `add`.
        """
        self._own: OwnServer | None = None
        self._make_leaves()
        signature = None
        if self._address is None:
            has_priorities = self._priority_exponent is not None
            self._own = OwnServer(lambda: [self._own_table()], checkpoint)
            self._own.choose_compression(self._max_bytes())
            self._client = self._own.client
        else:
            self._client = reverb.Client(self._address)
            tables = self._client.server_info()
            if self._table not in tables:
                raise InvalidArgumentError(
                    f"server {self._address} has no table {self._table}; it has {sorted(tables)}"
                )
            has_priorities = tables[self._table].sampler_options.HasField("prioritized")
            signature = tables[self._table].signature
        # Servers of dm-reverb do not know `MAX_PRIORITY`; it is used only where it has an effect.
        self._priority = reverb.MAX_PRIORITY if has_priorities else 1.0
        names = [leaf.name for leaf in self._leaves]
        names += [f"next_{name}" for name in names]
        self._order = order_in(self._table, signature, [*names, *arrays.NUMBERS])
        self._spec = TransitionSpec(
            self._leaves,
            self.action_dim,
            self._action_dtype,
            self.n_envs,
            self.n_steps,
            self.gamma,
            self._order,
        )
        self._begin_writing(num_steps)
        if checkpoint is not None:
            self._steps.has_items = self._client.server_info()[self._table].current_size > 0

    def _max_bytes(self) -> int:
        """Bytes of the full buffer without compression: each frame and action is stored once."""
        frames = sum(leaf.frame_bytes for leaf in self._leaves)
        action = self.action_dim * self._action_dtype.itemsize
        numbers = 4 * (self.n_steps + 2) + 9
        return self.buffer_size * self.n_envs * (frames + action + numbers)

    def _own_table(self) -> reverb.Table:
        sampler: Any = reverb.selectors.Uniform()
        if self._priority_exponent is not None:
            sampler = reverb.selectors.Prioritized(self._priority_exponent)
        return reverb.Table(
            self._table,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            max_size=self.buffer_size * self.n_envs,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            # From the generator that algorithms seed.
            seed=int(np.random.randint(2**31)),
        )

    def _make_leaves(self) -> None:
        """Makes the leaves of an observation, in the order of the columns."""
        space: Any = self.observation_space
        shapes: Any = self.obs_shape
        if self._is_dict:
            self._names = sorted(space.spaces)
            self._leaves = [
                make_leaf(f"obs_{name}", space[name], shapes[name]) for name in self._names
            ]
        else:
            self._leaves = [make_leaf("obs", space, shapes)]

    def _begin_writing(self, num_steps: int = 0) -> None:
        # Other programs read a table with a server at any time; this buffer's own table is read
        # only after `flush`.
        steps_per_send = STEPS_PER_SEND if self._address is None else 1
        self._steps = TransitionWriter(
            self._client, self._table, self._spec, self._priority, num_steps, steps_per_send
        )
        self.info: Any = None

    def _unwritten(self, batch_size: int, env: Any) -> Any:
        """Returns samples while the table of this process has no transition, and none can arrive.

        Raises:
          InvalidArgumentError: Unless the program has set `full`: then all rows are zeros.
        """
        if not self.full or self._steps.num_steps:
            raise InvalidArgumentError(
                f"the buffer has no transition yet, after {self._steps.num_steps} steps: one needs "
                f"n_steps={self.n_steps} steps, or the end of an episode. Add more steps before "
                "sample(), for example with a larger learning_starts"
            )
        observations = [
            leaf.stored(np.zeros((batch_size, *leaf.shape), leaf.dtype)) for leaf in self._leaves
        ]
        action = np.zeros((batch_size, self.action_dim), self._action_dtype)
        rewards = np.zeros((batch_size, self.n_steps), np.float32)
        none = np.zeros(batch_size, np.float32)
        return self._as_samples([*observations, *observations, action, rewards, none, none], env)

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        """Returns the transitions of these rows, each of a random environment, as `ReplayBuffer`.

        Unlike `sample`, reads the whole table.

        Raises:
          IndexError: If there is no transition in a row, or not yet.
          UnimplementedError: With `server`, whose table has transitions of other programs too.
        """
        if self._own is None:
            raise UnimplementedError(
                "transitions of a table of several programs have no positions; call sample(), for "
                "which the server draws"
            )
        envs = np.random.randint(self.n_envs, size=len(batch_inds))
        columns = self._stored().columns(np.asarray(batch_inds).tolist(), envs.tolist())
        return self._as_samples(columns, env)

    def _stored(self) -> arrays.StoredTransitions:
        self.flush()
        return arrays.StoredTransitions(
            self._client, self._table, self._spec, self.buffer_size, self._steps.num_steps
        )

    def _array(self, name: str) -> Any:
        """Returns an array, or a dict of arrays for dict observations."""
        owner = type(self).__name__
        if self._own is None:
            reason = f"other programs may also write to table {self._table} of {self._address}"
            raise AttributeError(arrays.no_attribute(owner, name, reason))
        if self.n_steps > 1:
            reason = f"its transitions are of n_steps={self.n_steps}, not of single steps"
            raise AttributeError(arrays.no_attribute(owner, name, reason))
        found = self._stored().arrays(name)
        if self._is_dict and name in ("observations", "next_observations"):
            return dict(zip(self._names, found, strict=True))
        return found[0]

    def _timeouts_in(self, infos: Any) -> Any:
        """The environments that reached their time limits, booleans `[N]`; `None`: none."""
        if not isinstance(infos, list) and isinstance(infos, Mapping):
            raise InvalidArgumentError(
                "infos must be a list with a dict for each environment, got one dict, as from "
                "vector environments of Gymnasium; with handle_timeout_termination=False, infos "
                "are not read, and done must then be the terminations only"
            )
        found = [info.get("TimeLimit.truncated", False) for info in infos]
        return found if any(found) or len(found) != self.n_envs else None

    def _as_tensors(self, columns: Any, env: Any) -> Any:
        found = [leaf.restored(it) for leaf, it in zip(self._leaves, columns, strict=True)]
        if not self._is_dict:
            return self._to_torch(self._normalize_obs(found[0], env))
        normal = self._normalize_obs(dict(zip(self._names, found, strict=True)), env)
        return {name: self._to_torch(value) for name, value in normal.items()}

    def _returns(self, rewards: np.ndarray[Any, Any], env: Any) -> np.ndarray[Any, Any]:
        """The discounted sums `[B, 1]` of rewards `[B, n_steps]`, which are 0 after an end."""
        rewards = self._normalize_reward(rewards, env).astype(np.float32, copy=False)
        return rewards @ self._discounts if self.n_steps > 1 else rewards

    def _to_torch(self, array: np.ndarray[Any, Any]) -> Any:
        # No other batch uses this memory, so it need not be copied on the CPU.
        return self.to_torch(np.ascontiguousarray(array), copy=False)

    # ---- Files -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state: with `server` its address, otherwise all transitions."""
        self._steps.flush()
        kept = {name: it for name, it in self.__dict__.items() if name not in _NOT_PICKLED}
        kept["_num_steps"] = self._steps.num_steps
        kept["_open_steps"] = self._steps.open_steps()
        if self._own is not None:
            kept["_checkpoint"] = self._own.pack()
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        checkpoint, num_steps = state.pop("_checkpoint", None), state.pop("_num_steps")
        # States of earlier releases do not have these steps.
        open_steps = state.pop("_open_steps", None)
        self.__dict__.update(state)
        self._open(checkpoint, num_steps)
        if open_steps is not None:
            self._steps.restore(open_steps)

    def __del__(self) -> None:
        # A writer that is deleted counts in the log what a server elsewhere has not confirmed.
        with contextlib.suppress(Exception):
            if self._own is not None:
                self.close()
