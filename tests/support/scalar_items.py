# SPDX-License-Identifier: Apache-2.0
"""The items of episodes by a loop over single steps: what recorders are compared with."""

import collections

import numpy as np

COLUMNS = (
    "action",
    "discount",
    "next_observation",
    "observation",
    "reward",
    "terminated",
    "truncated",
)


def transitions(episodes, n_step, discount, frame_stack=None):
    """One item for each step of each episode."""
    for episode in episodes:
        for start in range(len(episode)):
            reward, factor, at = 0.0, 1.0, start
            while at < min(start + n_step, len(episode)):
                reward += factor * episode.rewards[at]
                factor *= discount
                at += 1
            terminated = episode.terminated and at == len(episode)
            truncated = episode.truncated and at == len(episode)
            yield {
                "observation": frames(episode, start, frame_stack),
                "action": episode.actions[start],
                "reward": reward,
                "discount": 0.0 if terminated else factor,
                "next_observation": frames(episode, at, frame_stack),
                "terminated": terminated,
                "truncated": truncated,
            }


def frames(episode, at, frame_stack):
    """The observation at a time, or the stack of frames that ends there."""
    if frame_stack is None:
        return episode.observations[at]
    times = range(at - frame_stack + 1, at + 1)
    return np.stack([episode.observations[max(0, time)] for time in times])


def sequences(episodes, num_steps, stride, discount, keeps_short=False, frame_stack=None):
    """Windows of each episode, and one at its end."""
    for episode in episodes:
        length = len(episode)
        starts = [start for start in range(0, length, stride) if start + num_steps <= length]
        if starts and starts[-1] + num_steps < length:
            starts.append(length - num_steps)
        for start in starts:
            yield window(episode, start, start + num_steps, discount, frame_stack)
        if 0 < length < num_steps and keeps_short:
            yield window(episode, 0, length, discount, frame_stack)


def window(episode, start, stop, discount, frame_stack=None):
    """The steps from `start` to `stop` of an episode."""
    steps = list(range(start, stop))
    terminated = [episode.terminated and step + 1 == len(episode) for step in steps]
    before = 0 if frame_stack is None else frame_stack - 1
    times = [max(0, time) for time in range(start - before, stop)]
    next_times = [max(0, time) for time in range(start + 1 - before, stop + 1)]
    return {
        "observation": [episode.observations[time] for time in times],
        "action": [episode.actions[step] for step in steps],
        "reward": [episode.rewards[step] for step in steps],
        "discount": [0.0 if ends else discount for ends in terminated],
        "next_observation": [episode.observations[time] for time in next_times],
        "terminated": terminated,
        "truncated": [episode.truncated and step + 1 == len(episode) for step in steps],
    }


def multiset(items):
    """Counts items, each a dict of columns."""
    return collections.Counter(tuple(hashable(item[name]) for name in COLUMNS) for item in items)


def hashable(value):
    """Any nest of arrays as tuples of floats."""
    if isinstance(value, dict):
        return tuple((name, hashable(part)) for name, part in sorted(value.items()))
    if isinstance(value, tuple):
        return tuple(hashable(part) for part in value)
    array = np.asarray(value, np.float64)
    return array.shape, array.tobytes()


def stored(client, table="replay"):
    """The items of a table whose samples are flat, with the columns of a recorder alone."""
    for sample in client.scan(table):
        yield dict(zip(COLUMNS, sample.data, strict=True))
