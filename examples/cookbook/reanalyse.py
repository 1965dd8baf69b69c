# SPDX-License-Identifier: Apache-2.0
"""Reanalyse (MuZero): new targets for stored states.

Each state has a key of its own, under which an item with new targets takes the place of the old.
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
    remover=reverb.selectors.Fifo(),  # An item with new targets is the newest.
    max_size=SIZE,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    signature={"observation": column(4), "value": column(), "version": column(dtype=np.int64)},
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    observations = np.random.default_rng(0).normal(size=(SIZE, 4)).astype(np.float32)
    rows = {"observation": observations, "value": search(observations, 1)}
    keys = [reverb.key_of(f"state {number}") for number in range(SIZE)]
    client.insert_batch({**rows, "version": np.ones(SIZE, np.int64)}, {"replay": 1.0}, keys=keys)

    for version in (2, 3):
        for first in range(0, SIZE, BATCH):
            chosen = keys[first : first + BATCH]
            info, old = client.fetch("replay", chosen, squeeze=True, unpack_as_table_signature=True)
            value = search(old["observation"], version)
            rows = {**old, "value": value, "version": np.full(BATCH, version)}
            # The distance of the targets is a good priority.
            error = np.abs(value - old["value"])
            client.insert_batch(rows, {"replay": error + 1e-3}, keys=info.key, replace=True)

    batch = client.sample_batch("replay", 256, squeeze=True, unpack_as_table_signature=True)
    assert (batch.data["version"] == 3).all()
    assert client.server_info()["replay"].current_size == SIZE
    assert np.allclose(batch.data["value"], search(batch.data["observation"], 3))

print("every item has the values of version 3")
