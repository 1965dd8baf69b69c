# SPDX-License-Identifier: Apache-2.0
"""MuZero with Reanalyse: a stack of frames before a position, and an unroll after it.

The targets of a batch are computed when it is sampled, by a target network. So they are never older
than that network, and nothing in the table changes.
"""

import itertools

import numpy as np

import reverb

STACK, UNROLL, N, DISCOUNT, CELLS = 2, 5, 10, 0.9, 6
BATCH, EPISODES, TARGETS, UPDATES = 256, 1_000, 12, 20
rng = np.random.default_rng(0)

table = reverb.Table(
    "episodes",
    sampler=reverb.selectors.Uniform(over="steps"),
    remover=reverb.selectors.Fifo(),
    max_size=1_000,
    rate_limiter=reverb.rate_limiters.MinSize(EPISODES),
    seed=0,
    signature={
        "frame": reverb.specs.TensorSpec([None, CELLS], np.uint8),
        "action": reverb.specs.TensorSpec([None], np.int64),
        "reward": reverb.specs.TensorSpec([None], np.float64),
    },
)


def represent(stacks):
    """Stands for the network that makes the root of a tree of frames `[..., STACK, CELLS]`."""
    return CELLS * stacks[..., 0, :].argmax(-1) + stacks[..., 1, :].argmax(-1)


with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    # The actor walks at random; the last cell ends the episode with a reward of 1.
    with client.sequence_writer("episodes", None, max_sequence_length=10_000) as writer:
        for _ in range(EPISODES):
            cell = 0
            while cell < CELLS - 1:
                step = {"frame": np.eye(CELLS, dtype=np.uint8)[cell], "action": rng.integers(2)}
                cell = max(cell + 2 * step["action"] - 1, 0)
                is_last = cell == CELLS - 1
                writer.append({**step, "reward": float(is_last)}, is_last=is_last)

    # Frames from the stack of the first position to the one of the last value.
    spans = {"action": (0, UNROLL), "reward": (0, UNROLL + N - 1)}
    window = reverb.Window(UNROLL + N, before=STACK - 1, pad="both", spans=spans)
    dynamics = np.zeros((CELLS**2, 2), int)  # The next latent state, by state and action.
    target = np.zeros(CELLS**2)  # The values of the target network.
    with reverb.batches(client, "episodes", BATCH, window=window) as batches:
        for _ in range(TARGETS):
            sums, counts = np.zeros((2, CELLS**2))
            for batch in itertools.islice(batches, UPDATES):
                # Behind the end of an episode rewards and values are 0.
                action, is_there = batch.data["action"], batch.window_mask[:, STACK - 1 :]
                reward = np.where(is_there[:, :-1], batch.data["reward"], 0.0)
                stacks = [batch.data["frame"][:, k : k + STACK] for k in range(UNROLL + N)]
                latent = represent(stacks[0])  # From here on the model sees actions only.
                for k in range(UNROLL):
                    aim = reward[:, k : k + N] @ DISCOUNT ** np.arange(N)
                    aim += DISCOUNT**N * is_there[:, k + N] * target[represent(stacks[k + N])]
                    np.add.at(sums, latent[is_there[:, k]], aim[is_there[:, k]])
                    np.add.at(counts, latent[is_there[:, k]], 1)
                    on = is_there[:, k + 1]
                    dynamics[latent[on], action[on, k]] = represent(stacks[k + 1][on])
                    latent = dynamics[latent, action[:, k]]
            target = sums / np.maximum(counts, 1)
    status = client.status().tables["episodes"]

# The values of the walk, by its equation. Behind the goal they are 0, and its reward is 1.
values = np.full(CELLS, 1 / DISCOUNT)
for _ in range(200):
    values[:-1] = DISCOUNT * (values[[0, *range(CELLS - 2)]] + values[1:]) / 2
error = abs(target - values[np.arange(CELLS**2) % CELLS])[counts > 0].max()
print(f"largest error of a value: {error:.3f}; {status.inserts} inserts of {EPISODES} episodes")
assert error < 0.05
assert status.inserts == status.items == EPISODES
