# SPDX-License-Identifier: Apache-2.0
"""A replay buffer of Stable-Baselines3 whose data is in a table."""

import contextlib
import shutil
import tempfile
import weakref
from typing import Any

import numpy as np

import reverb
from reverb.adapters.sb3 import arrays
from reverb.adapters.sb3.leaf import Frames, Leaf, Rows
from reverb.adapters.sb3.library import buffers, spaces, type_aliases
from reverb.errors import InvalidArgumentError, UnimplementedError
from reverb.packed_checkpoint import pack_checkpoint, unpack_checkpoint

__all__ = ["ReverbReplayBuffer"]

# More frames than this in an observation are no stack.
_MAX_FRAMES = 16
# How far the program may be ahead of the table, in transitions.
_MAX_UNCONFIRMED = 1_000
# Made anew by whoever loads a buffer.
_NOT_PICKLED = (
    *("_server", "_client", "_writer", "_directory", "_remove"),
    *("_leaves", "_rows", "_starts", "_actions", "info"),
)


class ReverbReplayBuffer(buffers.ReplayBuffer):
    """A replay buffer for the off-policy algorithms of Stable-Baselines3.

        DQN("CnnPolicy", env, replay_buffer_class=ReverbReplayBuffer)

    Nothing is stored twice: the next observation of a transition is the observation of the next
    one, and stacks of frames share their frames. Time limits are told from failures in any case.
    With `server` the transitions are in a table of another process, and several programs may write
    into it. Dict observations, `VecNormalize` and n-step returns work as with the buffers of
    Stable-Baselines3.

    Without `server`, the seed of an algorithm (which is that of NumPy) makes samples reproducible.

    Not thread-safe. `HerReplayBuffer` is a class of its own, which this one does not replace.
    """

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
          buffer_size: Maximum number of transitions of all environments. With `server` the table
            has its own.
          observation_space: As in `ReplayBuffer`; may be a `Dict`.
          action_space: As in `ReplayBuffer`.
          device: Of the tensors that `sample` returns.
          n_envs: Number of environments.
          optimize_memory_usage: Of no effect: memory is always used as with `True`, and time
            limits are handled all the same.
          handle_timeout_termination: Whether the end of an episode by a time limit counts as none.
          server: Address of a server with the table; `None`: a server in this process.
          table: Name of the table.
          n_steps: Number of steps of a transition. Near the end of an episode it has fewer.
          gamma: Discount of the rewards of several steps.
          priority_exponent: Samples by priority; new transitions have the largest one. `None`:
            uniformly. Only without `server`.

        Raises:
          InvalidArgumentError: If a number is out of its range, if `priority_exponent` is given
            with `server`, or if the server has no such table.
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
                f"priority_exponent={priority_exponent} is a setting of the table, which server "
                f"{server} has; leave it out"
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
        # Number of calls of `add`. It tells the places of transitions, see `arrays`.
        self._num_steps = 0
        self._open()

    # ---- What Stable-Baselines3 calls ------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Adds a transition of each environment; see `ReplayBuffer.add`.

        Blocks while 1,000 transitions are not confirmed.
        """
        done = np.array(done, np.bool_)
        observations, next_observations = self._leaves_of(obs), self._leaves_of(next_obs)
        goes_on = ~self._is_start
        for leaf, observation in zip(self._leaves, observations, strict=True):
            goes_on &= leaf.continues(observation)
        begins = ~goes_on
        interrupted = begins & ~self._is_start
        if interrupted.any():
            # What was written last is not what came before this: another episode has begun.
            self._finish_episodes(interrupted, np.zeros(self.n_envs, np.int64))
        if begins.any():
            for leaf, observation in zip(self._leaves, observations, strict=True):
                leaf.begin(self._rows, observation, begins)
        # The steps of the episode that are not items yet, in turn.
        at = self._num_steps % self.n_steps
        self._num_steps += 1
        self._starts[at] = [leaf.places.copy() for leaf in self._leaves]
        self._rewards[at] = np.asarray(reward, np.float32)
        timeout = np.array([bool(info.get("TimeLimit.truncated")) for info in infos])
        ends = arrays.DONE * done + arrays.TIMEOUT * timeout
        done |= timeout
        action = np.asarray(action).reshape(self.n_envs, -1)
        row = {"action": action.astype(self._action_dtype, copy=False)}
        for leaf, observation in zip(self._leaves, next_observations, strict=True):
            row[leaf.name] = leaf.prepare(self._rows, observation)
        self._rows.append(row)
        for leaf in self._leaves:
            leaf.is_written(self._rows)
        self._actions[at] = self._rows.count.copy()
        self._age += 1
        self._create((self._age == self.n_steps) & ~done, ends)
        if done.any():
            self._finish_episodes(done, ends)
        self._is_start = done
        self._writer.flush(block_until_num_items=_MAX_UNCONFIRMED)
        self._is_flushed = False
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Samples transitions; see `ReplayBuffer.sample`.

        `info` has keys and probabilities of the batch afterwards. All transitions that this buffer
        has added may be sampled. With `server`, blocks until there is a transition.

        Raises:
          InvalidArgumentError: If there is no transition yet. Only without `server`.
        """
        if self._server is not None and not self._has_items:
            return self._unwritten(batch_size, env)
        if not self._is_flushed:
            self._writer.flush()
            self._is_flushed = True
        batch = self._client.sample_batch(self._table, batch_size, partial=False)
        self.info = batch.info
        num_columns = 2 * len(self._leaves) + len(arrays.NUMBERS)
        if len(batch.data) != num_columns:
            raise InvalidArgumentError(
                f"table {self._table} has {len(batch.data)} columns, where this buffer needs "
                f"{num_columns}: another program writes into it"
            )
        return self._as_samples(batch.data, env)

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
          beta: How much is made up for: 0 nothing, 1 everything.
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
        self._num_steps = 0
        self._writer.close()
        self._client.reset(self._table)
        self._begin_writing()

    def flush(self) -> None:
        """Waits until all transitions are in the table."""
        self._writer.flush()
        self._is_flushed = True

    @property
    def dones(self) -> arrays.Dones:
        """As `observations` and the other arrays; Stable-Baselines3 also sets it."""
        return arrays.Dones(lambda: self._array("dones"), self._end_episodes)

    def __getattr__(self, name: str) -> Any:
        """Reads one of the arrays of other buffers from the table.

        `observations`, `next_observations`, `actions`, `rewards`, `dones` and `timeouts` have the
        shapes `[buffer_size, n_envs, ...]`. Each time the whole table is read, and what is returned
        is a read-only copy.

        Raises:
          AttributeError: With `server` or `n_steps` above 1, and for all other names.
        """
        if name in arrays.ARRAYS and "_client" in self.__dict__:
            return self._array(name)
        raise AttributeError(arrays.no_attribute(type(self).__name__, name))

    def close(self) -> None:
        """Ends the writer and the server, if it is this buffer's own."""
        self._writer.close()
        if self._server is not None:
            self._server.stop()
        if self._remove is not None:
            self._remove()

    # ---- Parts -----------------------------------------------------------------------------------

    def _open(self, checkpoint: bytes | None = None) -> None:
        """Starts or finds the server."""
        self._server: reverb.Server | None = None
        self._directory: str | None = None
        self._remove: Any = None
        if self._address is None:
            self._directory = tempfile.mkdtemp(prefix="reverb-sb3-")
            self._remove = weakref.finalize(self, shutil.rmtree, self._directory, True)
            if checkpoint is not None:
                unpack_checkpoint(checkpoint, self._directory)
            exponent = self._priority_exponent
            has_priorities = exponent is not None
            sampler: Any = reverb.selectors.Uniform()
            if exponent is not None:
                sampler = reverb.selectors.Prioritized(exponent)
            made = reverb.Table(
                self._table,
                sampler=sampler,
                remover=reverb.selectors.Fifo(),
                max_size=self.buffer_size * self.n_envs,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                # The generator that algorithms seed.
                seed=int(np.random.randint(2**31)),
            )
            checkpointer = reverb.checkpointers.DefaultCheckpointer(self._directory)
            self._server = reverb.Server([made], checkpointer=checkpointer)
            self._client = self._server.localhost_client()
        else:
            self._client = reverb.Client(self._address)
            tables = self._client.server_info()
            if self._table not in tables:
                raise InvalidArgumentError(
                    f"server {self._address} has no table {self._table}; it has {sorted(tables)}"
                )
            has_priorities = tables[self._table].sampler_options.HasField("prioritized")
        # A table of dm-reverb whose sampler takes no priorities does as well.
        self._priority = reverb.MAX_PRIORITY if has_priorities else 1.0
        self._begin_writing()
        if checkpoint is not None:
            self._has_items = self._client.server_info()[self._table].current_size > 0

    def _begin_writing(self) -> None:
        space = self.observation_space
        leaves = space.spaces if self._is_dict else {"observation": space}
        self._leaves = [
            _leaf_of(f"obs_{name}", leaf, self.n_envs) for name, leaf in sorted(leaves.items())
        ]
        # The rows of all steps of an item: its frames, what it led to, and its numbers.
        per_step = 2 + sum(leaf.places.shape[1] for leaf in self._leaves)
        self._writer = self._client.batched_trajectory_writer(
            self.n_envs, per_step * (self.n_steps + 2)
        )
        self._rows = Rows(self._writer)
        # Discrete and continuous ones; float64 is stored as float32.
        dtype = np.dtype(self.action_space.dtype)
        self._action_dtype = np.dtype(np.float32) if dtype == np.float64 else dtype
        self._is_start = np.ones(self.n_envs, np.bool_)
        self._age = np.zeros(self.n_envs, np.int64)
        self._starts: list[Any] = [None] * self.n_steps
        self._actions: list[Any] = [None] * self.n_steps
        self._rewards = np.zeros((self.n_steps, self.n_envs), np.float32)
        self.info: Any = None
        self._has_items, self._is_flushed = False, True

    def _unwritten(self, batch_size: int, env: Any) -> Any:
        """Samples of a table of this process that has no transition, so that none can come.

        Raises:
          InvalidArgumentError: Unless the program has set `full`: then all rows are zeros.
        """
        if not self.full or self._num_steps:
            raise InvalidArgumentError(
                f"the buffer has no transition yet, after {self._num_steps} steps, where one is of "
                f"n_steps={self.n_steps} or of an episode that ended; add steps before sample(), "
                "as with larger learning_starts"
            )
        observations = [
            leaf.stored(np.zeros((batch_size, *shape), dtype))
            for leaf, (shape, dtype) in zip(self._leaves, self._leaf_arrays(), strict=True)
        ]
        action = np.zeros((batch_size, self.action_dim), self._action_dtype)
        rewards = np.zeros((batch_size, self.n_steps), np.float32)
        none = np.zeros(batch_size, np.float32)
        return self._as_samples([*observations, *observations, action, rewards, none, none], env)

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        """As in `ReplayBuffer`: the transitions of these rows, each of some environment.

        Reads the whole table, where `sample` lets the server draw.

        Raises:
          IndexError: If there is no transition in a row, or not yet.
          UnimplementedError: With `server`, whose table has transitions of other programs too.
        """
        if self._server is None:
            raise UnimplementedError(
                "transitions of a table of several programs have no positions; the server draws "
                "them in sample()"
            )
        envs = np.random.randint(self.n_envs, size=len(batch_inds))
        columns = self._stored().columns(np.asarray(batch_inds).tolist(), envs.tolist())
        return self._as_samples(columns, env)

    def _stored(self) -> arrays.StoredTransitions:
        self.flush()
        shape = (self.buffer_size, self.n_envs)
        return arrays.StoredTransitions(
            self._client, self._table, self._leaves, shape, self._num_steps
        )

    def _array(self, name: str) -> Any:
        """Returns an array, or a dict of them if observations are."""
        owner = type(self).__name__
        if self._server is None:
            reason = f"other programs may write into table {self._table} of {self._address}, too"
            raise AttributeError(arrays.no_attribute(owner, name, reason))
        if self.n_steps > 1:
            reason = f"its transitions are of n_steps={self.n_steps}, not of single steps"
            raise AttributeError(arrays.no_attribute(owner, name, reason))
        stored = self._stored()
        if name == "actions":
            return stored.actions((self.action_dim,), self._action_dtype)
        if name not in ("observations", "next_observations"):
            return stored.numbers(name)
        first = len(self._leaves) if name == "next_observations" else 0
        found = [
            stored.observations(at, shape, dtype)
            for at, (shape, dtype) in enumerate(self._leaf_arrays(), first)
        ]
        if not self._is_dict:
            return found[0]
        return dict(zip(sorted(self.observation_space.spaces), found, strict=True))

    def _leaf_arrays(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of each leaf of an observation, in the order of the columns."""
        space: Any = self.observation_space
        if not self._is_dict:
            return [(self.obs_shape, space.dtype)]
        return [(self.obs_shape[name], space[name].dtype) for name in sorted(space.spaces)]

    def _leaves_of(self, observation: Any) -> list[np.ndarray[Any, Any]]:
        """Arrays `[num_envs, ...]` of all leaves, in the order of the cells."""
        if self._is_dict:
            found = [np.asarray(observation[name]) for name in sorted(observation)]
        else:
            # Discrete observations come as [n_envs].
            found = [np.asarray(observation).reshape(self.n_envs, *self.obs_shape)]
        space = self.observation_space
        shapes = [self.obs_shape[name] for name in sorted(space.spaces)] if self._is_dict else None
        if shapes is None:
            return found
        return [it.reshape(self.n_envs, *shape) for it, shape in zip(found, shapes, strict=True)]

    def _finish_episodes(self, where: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
        """Makes items of all steps that are left, and ends the episodes."""
        while (left := where & (self._age > 0)).any():
            self._create(left, ends)
        self._rows.end_episode(where)

    def _end_episodes(self) -> None:
        """What comes next begins other episodes."""
        self._finish_episodes(~self._is_start, np.zeros(self.n_envs, np.int64))
        self._is_start = np.ones(self.n_envs, np.bool_)

    def _create(self, where: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
        """Makes an item of the oldest step that is none yet, of each of these environments.

        Args:
          where: Booleans `[n_envs]`.
          ends: What was said of their newest steps, bits of `arrays`.
        """
        if not where.any():
            return
        envs = np.flatnonzero(where)
        steps = self._num_steps - self._age[envs, None] + np.arange(self.n_steps)
        is_step = steps < self._num_steps
        rewards = np.zeros((self.n_envs, self.n_steps), np.float32)
        rewards[envs] = self._rewards[steps % self.n_steps, envs[:, None]] * is_step
        discounts = np.zeros(self.n_envs, np.float32)
        discounts[envs] = self.gamma ** self._age[envs]
        is_last = ends & arrays.DONE > 0
        if self.handle_timeout_termination:
            is_last &= ends & arrays.TIMEOUT == 0
        numbers = {
            "reward": rewards,
            "done": is_last.astype(np.float32),
            "discount": discounts,
            "place": (self._num_steps - self._age) * self.n_envs + np.arange(self.n_envs),
            "end": ends.astype(np.uint8),
        }
        self._rows.append(numbers, where)
        # Where the cells are, counted from the newest row: the same for most environments.
        first = steps[:, 0] % self.n_steps
        starts = [self._starts[at] for at in first]
        places = [
            np.stack([it[at][env] for it, env in zip(starts, envs, strict=True)])
            for at in range(len(self._leaves))
        ]
        places += [leaf.places[envs] for leaf in self._leaves]
        places.append(
            np.array([[self._actions[at][env]] for at, env in zip(first, envs, strict=True)])
        )
        ends = np.cumsum([it.shape[1] for it in places])[:-1]
        relative = np.concatenate(places, axis=1) - self._rows.count[envs, None] - 1
        kinds, kind_of = np.unique(relative, axis=0, return_inverse=True)
        history, leaves = self._writer.history, [*self._leaves, *self._leaves]
        for number, kind in enumerate(kinds):
            mask = np.zeros(self.n_envs, np.bool_)
            mask[envs[kind_of.ravel() == number]] = True
            *of_leaves, (of_action,) = (it.tolist() for it in np.split(kind, ends))
            trajectory = [
                *(it.column(self._writer, at) for it, at in zip(leaves, of_leaves, strict=True)),
                history["action"][of_action],
                *(history[name][-1] for name in numbers),
            ]
            self._writer.create_items(self._table, self._priority, trajectory, where=mask)
        self._has_items = True
        self._age[envs] -= 1

    def _as_tensors(self, columns: Any, env: Any) -> Any:
        found = [leaf.restored(it) for leaf, it in zip(self._leaves, columns, strict=True)]
        if not self._is_dict:
            return self._to_torch(self._normalize_obs(found[0], env))
        names = sorted(self.observation_space.spaces)
        normal = self._normalize_obs(dict(zip(names, found, strict=True)), env)
        return {name: self._to_torch(value) for name, value in normal.items()}

    def _returns(self, rewards: np.ndarray[Any, Any], env: Any) -> np.ndarray[Any, Any]:
        """The discounted sums `[B, 1]` of rewards `[B, n_steps]`; what is no step is 0."""
        rewards = self._normalize_reward(rewards, env).astype(np.float32, copy=False)
        return rewards @ self._discounts

    def _to_torch(self, array: np.ndarray[Any, Any]) -> Any:
        # The memory is the batch's own, so that nothing is copied on the CPU.
        return self.to_torch(np.ascontiguousarray(array), copy=False)

    # ---- Files -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Without a server's address, the state has all transitions; else the address."""
        self._writer.flush()
        kept = {name: it for name, it in self.__dict__.items() if name not in _NOT_PICKLED}
        if self._directory is not None:
            kept["_checkpoint"] = pack_checkpoint(self._client.checkpoint())
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        checkpoint = state.pop("_checkpoint", None)
        self.__dict__.update(state)
        self._open(checkpoint)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _leaf_of(name: str, space: Any, num_envs: int) -> Leaf:
    """Stacks of frames are images of bytes with some channels."""
    shape = space.shape or ()
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(shape) == 3:
        axis = 0 if shape[0] == min(shape) else 2
        if 2 <= shape[axis] <= _MAX_FRAMES:
            return Frames(name, num_envs, shape[axis], axis)
    return Leaf(name, num_envs)
