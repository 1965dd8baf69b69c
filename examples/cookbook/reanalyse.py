# SPDX-License-Identifier: Apache-2.0
"""Reanalyse (MuZero): new targets for stored states.

Items do not change: read the oldest, insert them with new targets, and the remover drops the old.
"""

import numpy as np

import reverb

SIZE, BATCH = 1_000, 100


def search(observations, version):
    """Stands for a tree search with the newest network: values of the states."""
    return (observations.sum(axis=1) * (1 - 0.5**version)).astype(np.float32)


def column(*shape, dtype=np.float32):
    return reverb.specs.TensorSpec([1, *shape], dtype)


table = reverb.Table(
    "replay",
    sampler=reverb.selectors.Prioritized(1.0),
    remover=reverb.selectors.Fifo(),  # An item that is inserted again is the newest.
    max_size=SIZE,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    signature={"observation": column(4), "value": column(), "version": column(dtype=np.int64)},
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    observations = np.random.default_rng(0).normal(size=(SIZE, 4)).astype(np.float32)
    rows = {"observation": observations, "value": search(observations, 1)}
    client.insert_batch({**rows, "version": np.ones(SIZE, np.int64)}, {"replay": 1.0})

    for version in (2, 3):
        # All items, the oldest first. They are copied here before any of them is replaced.
        stored = list(client.scan("replay", unpack_as_table_signature=True))
        for first in range(0, SIZE, BATCH):
            part = stored[first : first + BATCH]
            observation = np.concatenate([item.data["observation"] for item in part])
            value = search(observation, version)
            # The distance of the targets is a good priority.
            error = np.abs(value - np.concatenate([item.data["value"] for item in part]))
            rows = {"observation": observation, "value": value}
            rows["version"] = np.full(BATCH, version)
            client.insert_batch(rows, {"replay": error + 1e-3})

    batch = client.sample_batch("replay", 256, unpack_as_table_signature=True)
    assert (batch.data["version"] == 3).all()
    assert client.server_info()["replay"].current_size == SIZE
    expected = search(batch.data["observation"][:, 0], 3)
    assert np.allclose(batch.data["value"][:, 0], expected)

print("every item has the values of version 3")
