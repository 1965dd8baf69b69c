# SPDX-License-Identifier: Apache-2.0
"""Offline learning: a data set in a table, read in epochs; behaviour cloning of a linear policy."""

import numpy as np

import reverb

ROWS, BATCH, EPOCHS = 1_000, 64, 20

rng = np.random.default_rng(0)
expert = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
observations = rng.normal(size=(ROWS, 4)).astype(np.float32)
demonstrations = {"observation": observations, "action": observations @ expert}

table = reverb.Table(
    "demonstrations",
    sampler=reverb.selectors.Shuffle(seed=0),  # Every item once before any item again.
    remover=reverb.selectors.Fifo(),
    max_size=ROWS,
    rate_limiter=reverb.rate_limiters.MinSize(ROWS),  # All data first.
    signature={
        "observation": reverb.specs.TensorSpec([1, 4], np.float32),
        "action": reverb.specs.TensorSpec([1], np.float32),
    },
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    client.insert_batch(demonstrations, {"demonstrations": 1.0})

    weights, seen = np.zeros(4, np.float32), 0
    # No batch spans two epochs, so the last one of each is shorter; `drop_last=True` drops it.
    with client.batches("demonstrations", BATCH, epochs=EPOCHS, squeeze=True) as batches:
        for batch in batches:
            observation, action = batch.data["observation"], batch.data["action"]
            error = observation @ weights - action
            weights -= 0.1 * observation.T @ error / len(error)
            seen += len(error)
    assert seen == EPOCHS * ROWS

print(f"learned {weights}, the expert has {expert}")
assert np.allclose(weights, expert, atol=1e-2)
