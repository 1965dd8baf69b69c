# SPDX-License-Identifier: Apache-2.0
"""Dreamer: windows of T steps that begin at any step of any episode."""

import numpy as np

import reverb

T, BATCH, EPISODES = 16, 8, 20

table = reverb.Table(
    "windows",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=100_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    signature={
        "observation": reverb.specs.TensorSpec([T, 8, 8], np.uint8),
        "action": reverb.specs.TensorSpec([T], np.int64),
        "episode": reverb.specs.TensorSpec([T], np.int64),
        "is_first": reverb.specs.TensorSpec([T], np.bool_),
    },
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")

    # The actor. Stride 1: a window begins at each step. Windows share their steps, so a step is
    # stored once. No window has steps of two episodes.
    rng = np.random.default_rng(0)
    lengths = rng.integers(T, 3 * T, EPISODES)
    with client.sequence_writer("windows", T, stride_length=1) as writer:
        for episode, length in enumerate(lengths):
            for t in range(length):
                step = {
                    "observation": np.full((8, 8), t, np.uint8),
                    "action": np.int64(t % 3),
                    "episode": np.int64(episode),
                    "is_first": np.bool_(t == 0),
                }
                writer.append(step, is_last=t == length - 1)
    assert client.server_info()["windows"].current_size == sum(lengths - T + 1)

    # The learner of the world model.
    with reverb.batches(client, "windows", BATCH) as batches:
        starts: set[tuple[int, int]] = set()
        for _ in range(20):
            data = next(batches).data
            time = data["observation"][:, :, 0, 0].astype(int)
            assert (np.diff(time, axis=1) == 1).all()  # Consecutive.
            assert (np.diff(data["episode"], axis=1) == 0).all()  # One episode.
            starts.update(zip(data["episode"][:, 0].tolist(), time[:, 0].tolist(), strict=True))
    memory = client.status().tables["windows"]

size = memory.bytes / memory.items
print(f"{len(starts)} different starts in 160 windows; {size:.0f} bytes a window")
