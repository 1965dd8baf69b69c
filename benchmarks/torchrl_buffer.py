# SPDX-License-Identifier: Apache-2.0
"""Measures the replay buffer for TorchRL beside TorchRL's own ones.

    python benchmarks/torchrl_buffer.py
    python benchmarks/torchrl_buffer.py --collectors 4 --seconds 5

The first part is in one process: TorchRL's buffer with a `LazyTensorStorage`, and ours with a
server in the process, with the same fields (CartPole's), called in turn; medians, and the median of
the ratios of neighbours (theirs to ours; above 1 ours is faster). An `extend` of ours returns when
the server has confirmed all items.

With `--collectors`, that many processes extend one buffer for some seconds, with batches of
`--frames`, while this process samples 256 of it, 50 times a second at most. TorchRL's
`RayReplayBuffer` needs Ray.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

from reverb.adapters.torchrl import ReverbReplayBuffer

SIZE = 100_000
BATCH = 256


def main() -> None:
    """Prints a table for one process, or for several."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=301)
    parser.add_argument("--collectors", type=int, default=0)
    parser.add_argument("--frames", type=int, default=100, help="of each extend of a collector")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.collectors:
        several_processes(arguments.collectors, arguments.frames, arguments.seconds)
    else:
        one_process(arguments.rounds)


def steps(count: int) -> TensorDict:
    """Returns transitions of CartPole `[count]`."""
    flag = torch.zeros(count, 1, dtype=torch.bool)
    following = {
        "observation": torch.randn(count, 4),
        "reward": torch.ones(count, 1),
        "done": flag,
        "terminated": flag.clone(),
        "truncated": flag.clone(),
    }
    return TensorDict(
        {
            "observation": torch.randn(count, 4),
            "action": torch.randint(2, (count, 1)),
            "next": TensorDict(following, [count]),
        },
        [count],
    )


# ---- One process ---------------------------------------------------------------------------------


def one_process(rounds: int) -> None:
    """Calls both buffers in turn."""
    uniform = (
        ReverbReplayBuffer(max_size=SIZE, batch_size=BATCH),
        TensorDictReplayBuffer(storage=LazyTensorStorage(SIZE), batch_size=BATCH),
    )
    prioritized = (
        ReverbReplayBuffer(max_size=SIZE, batch_size=BATCH, alpha=0.6, beta=0.4),
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(SIZE),
            sampler=PrioritizedSampler(SIZE, 0.6, 0.4),
            batch_size=BATCH,
        ),
    )
    for buffer in (*uniform, *prioritized):
        for _ in range(SIZE // 1000):
            buffer.extend(steps(1000))
    data = steps(1000)

    def learn(buffer: Any) -> None:
        sample = buffer.sample()
        sample["td_error"] = torch.rand(BATCH)
        buffer.update_tensordict_priority(sample)

    print(f"{'':34}{'ours':>10}{'theirs':>10}{'ratio':>8}")
    compare("sample 256", lambda buffer: buffer.sample(), uniform, rounds)
    compare("sample 256 and update priorities", learn, prioritized, rounds)
    compare("extend 1,000", lambda buffer: buffer.extend(data), uniform, rounds)
    compare("extend 1,000, prioritized", lambda buffer: buffer.extend(data), prioritized, rounds)
    uniform[0].close()
    prioritized[0].close()


def compare(name: str, call: Callable[[Any], Any], buffers: tuple[Any, Any], rounds: int) -> None:
    """Prints a line."""
    pairs = []
    for _ in range(rounds):
        times = []
        for buffer in buffers:
            started = time.perf_counter()
            call(buffer)
            times.append(time.perf_counter() - started)
        pairs.append(times)
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    print(f"{name:34}{ours * 1e6:7.0f} us{theirs * 1e6:7.0f} us{ratio:8.2f}")


# ---- Several processes ---------------------------------------------------------------------------


def several_processes(num_collectors: int, frames: int, seconds: float) -> None:
    """Lets collectors extend our buffer, then TorchRL's Ray buffer, with samples meanwhile."""
    rates = []
    for name, run in (("ours", with_processes), ("RayReplayBuffer", with_ray)):
        written, sampled = run(num_collectors, frames, seconds)
        rates.append(written)
        print(
            f"{name:18}{written:12,.0f} frames/s written by {num_collectors} processes"
            f"{sampled:9,.0f} batches/s sampled"
        )
    print(f"ratio {rates[0] / rates[1]:.1f}")


def extend_until(buffer: Any, frames: int, barrier: Any, stop: Any) -> None:
    """The writes of a collector, without an environment."""
    torch.set_num_threads(1)
    data = steps(frames)
    buffer.extend(data)
    barrier.wait()
    while not stop.is_set():
        buffer.extend(data)


def sample_for(buffer: Any, seconds: float) -> tuple[float, float]:
    """Samples 50 times a second, as a learner would; returns frames/s and batches/s."""
    before, started, batches = buffer.write_count, time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        buffer.sample(BATCH)
        batches += 1
        time.sleep(0.02)
    return (buffer.write_count - before) / passed, batches / passed


def with_processes(num_collectors: int, frames: int, seconds: float) -> tuple[float, float]:
    """Our buffer: each process has it by its address."""
    context = multiprocessing.get_context("spawn")
    buffer = ReverbReplayBuffer(max_size=SIZE, batch_size=BATCH)
    barrier, stop = context.Barrier(num_collectors + 1), context.Event()
    workers = [
        context.Process(target=extend_until, args=(buffer, frames, barrier, stop))
        for _ in range(num_collectors)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    result = sample_for(buffer, seconds)
    stop.set()
    for worker in workers:
        worker.join()
    buffer.close()
    return result


def with_ray(num_collectors: int, frames: int, seconds: float) -> tuple[float, float]:
    """TorchRL's buffer in an actor; each collector is a task of Ray."""
    import functools

    import ray
    from torchrl.data import RayReplayBuffer

    ray.init(num_cpus=num_collectors + 2, log_to_driver=False, include_dashboard=False)
    buffer = RayReplayBuffer(
        replay_buffer_cls=TensorDictReplayBuffer,
        storage=functools.partial(LazyTensorStorage, SIZE),
        batch_size=BATCH,
        remote_config={"num_cpus": 1},
    )

    @ray.remote(num_cpus=1)
    class Collector:
        """Extends the buffer, once it is known to be there."""

        def __init__(self, client: Any) -> None:
            torch.set_num_threads(1)
            self._client = client
            self._data = steps(frames)

        def prepare(self) -> None:
            self._client.extend(self._data)

        def run(self, seconds: float) -> int:
            count, until = 0, time.perf_counter() + seconds
            while time.perf_counter() < until:
                self._client.extend(self._data)
                count += 1
            return count

    client = buffer.client()
    collectors = [Collector.remote(client) for _ in range(num_collectors)]
    # As the barrier of the other part: all have started, and have written once.
    ray.get([collector.prepare.remote() for collector in collectors])
    buffer.sample(BATCH)
    # Longer than is measured, so that all of them write to the end.
    runs = [collector.run.remote(seconds + 1.0) for collector in collectors]
    result = sample_for(buffer, seconds)
    counts = ray.get(runs)
    print(f"(extends of each of Ray's collectors: {counts})")
    buffer.close()
    ray.shutdown()
    return result


if __name__ == "__main__":
    main()
