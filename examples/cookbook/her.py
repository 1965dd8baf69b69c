# SPDX-License-Identifier: Apache-2.0
"""HER, strategy "future": an item is an episode, and the learner gives steps other goals."""

import numpy as np

import reverb

BATCH, MAX_LENGTH, RELABELLED = 64, 30, 0.8
rng = np.random.default_rng(0)


def play(writer):
    """A point on a grid walks at random towards a goal that it mostly misses."""
    position, goal = np.zeros(2, np.int64), rng.integers(-5, 6, 2)
    length = rng.integers(5, MAX_LENGTH + 1)
    for t in range(length):
        action = rng.integers(-1, 2, 2)
        step = {"position": position, "action": action, "goal": goal}
        position = position + action
        step["next_position"] = position
        writer.append(step, is_last=t == length - 1)


def relabel(data, lengths):
    """One step of each episode, with a goal that was reached later in it, in 80 % of the rows."""
    rows = np.arange(len(lengths))
    now = rng.integers(lengths)  # A step of each episode, never padding.
    later = rng.integers(now, lengths)  # This step or a later one.
    step = {name: column[rows, now] for name, column in data.items()}
    other = (rng.random(len(lengths)) < RELABELLED)[:, None]
    step["goal"] = np.where(other, data["next_position"][rows, later], step["goal"])
    reached = (step["next_position"] == step["goal"]).all(axis=1)
    step["reward"] = reached.astype(np.float32)
    return step


names = ("position", "action", "goal", "next_position")
table = reverb.Table(
    "episodes",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=10_000,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    signature={name: reverb.specs.TensorSpec([None, 2], np.int64) for name in names},
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    with client.sequence_writer("episodes", None, max_sequence_length=MAX_LENGTH) as writer:
        for _ in range(200):
            play(writer)
    with reverb.batches(client, "episodes", BATCH, ragged="pad") as batches:
        rewards = []
        for _ in range(50):
            batch = next(batches)
            step = relabel(batch.data, batch.lengths["position"])
            rewards.append(step["reward"].mean())

print(f"{np.mean(rewards):.0%} of the steps reach their goal")
assert np.mean(rewards) > 0.1
