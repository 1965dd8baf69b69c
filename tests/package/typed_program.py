# SPDX-License-Identifier: Apache-2.0
"""Types that programs see in their editor. `make check` reads this with mypy; nothing runs it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from typing_extensions import assert_type

import reverb
from reverb import aio


def samples(client: reverb.Client, emit_timesteps: bool) -> None:
    assert_type(client.sample("t"), Iterator[list[reverb.ReplaySample]])
    assert_type(client.sample("t", emit_timesteps=emit_timesteps), Iterator[Any])
    for sample in client.sample("t", emit_timesteps=False):
        assert_type(sample, reverb.ReplaySample)
        assert_type(sample.info, reverb.SampleInfo)
        assert_type(sample.info.key, int)
        assert_type(sample.info.probability, float)
        assert_type(sample.info.table_size, int)
        assert_type(sample.info.priority, float)
        assert_type(sample.info.times_sampled, int)
        assert_type(sample.data, Any)


def scans(client: reverb.Client) -> None:
    assert_type(client.scan("t"), Iterator[reverb.ReplaySample])
    for at, sample in client.scan("t", with_inserted_at=True):
        assert_type(at, float)
        assert_type(sample.info.key, int)


def batches(client: reverb.Client) -> None:
    batch = client.sample_batch("t", 2)
    assert_type(batch, reverb.ReplayBatch)
    # Arrays, or tensors of the library that a loader is for.
    assert_type(batch.info, reverb.BatchInfo)
    assert_type(client.insert_batch([np.zeros(2)], {"t": 1.0}), dict[str, np.ndarray])


async def awaited(client: aio.Client) -> None:
    async for steps in client.sample("t"):
        assert_type(steps, list[reverb.ReplaySample])
    async for sample in client.sample("t", emit_timesteps=False):
        assert_type(sample.info.key, int)
    async for at, sample in client.scan("t", with_inserted_at=True):
        assert_type(at, float)
        assert_type(sample.info.priority, float)
    async for sample in client.scan("t"):
        assert_type(sample, reverb.ReplaySample)
