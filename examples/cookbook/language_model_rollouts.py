# SPDX-License-Identifier: Apache-2.0
"""Rollouts of a language model: workers generate, the learner reads each response once."""

import asyncio

import numpy as np

import reverb
import reverb.aio

WORKERS, RESPONSES, BATCH, MAX_TOKENS, MAX_AGE = 3, 40, 12, 32, 2
names = {"token": np.int32, "log_prob": np.float32, "prompt": np.int64, "version": np.int64}
version = 0  # The version of the weights; the learner makes a new one with each batch.

queue = reverb.Table.queue(
    "responses",
    max_size=2 * BATCH,  # Workers wait when they are two batches ahead.
    signature={name: reverb.specs.TensorSpec([None], dtype) for name, dtype in names.items()},
)


async def work(client, worker):
    """Stands for an inference server: responses of any length, each one item."""
    rng = np.random.default_rng(worker)
    for number in range(RESPONSES):
        await asyncio.sleep(0)  # Here the model writes.
        length = rng.integers(4, MAX_TOKENS + 1)
        response = {
            "token": rng.integers(1000, size=length).astype(np.int32),
            "log_prob": np.full(length, -1, np.float32),
            "prompt": np.array([worker * RESPONSES + number]),
            "version": np.array([version]),
        }
        await client.insert_sequence(response, {"responses": 1.0})  # Waits while it is full.


async def learn(client):
    global version
    seen, stale = [], 0
    for _ in range(WORKERS * RESPONSES // BATCH):
        options = {"ragged": "pad", "unpack_as_table_signature": True}
        batch = await client.sample_batch("responses", BATCH, **options)
        mask = np.arange(batch.data["token"].shape[1]) < batch.lengths["token"][:, None]  # [B, T]
        is_fresh = version - batch.data["version"][:, 0] <= MAX_AGE
        assert (batch.data["log_prob"][mask] == -1).all()  # Padding is 0; the loss is without it.
        seen += batch.data["prompt"][:, 0].tolist()
        stale += int((~is_fresh).sum())
        version += 1
    return seen, stale


async def main():
    async with reverb.aio.Client(f"localhost:{server.port}") as client:
        results = await asyncio.gather(learn(client), *(work(client, i) for i in range(WORKERS)))
        return results[0]


with reverb.Server([queue]) as server:
    seen, stale = asyncio.run(main())
assert sorted(seen) == list(range(WORKERS * RESPONSES))  # Each response once, none is lost.
print(f"{len(seen)} responses, {stale} of them too old to learn from")
