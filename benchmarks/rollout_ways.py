# SPDX-License-Identifier: Apache-2.0
"""Ways of items with rollouts: this package, TransferQueue, a Ray actor and a process's queue.

Each way has an end that produces and one that consumes, of the same class. The others are used by
their documented calls, with the same items, and nothing in the way: no pause but the poll of a
consumer of TransferQueue, whose keys have no call that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from rollout_processes import (
    QUEUE,
    QUEUE_SIZE,
    TABLE,
    End,
    Remote,
    Shape,
    Taken,
    cpu_s,
    open_server,
)

OURS = "reverb-replay"
_NAMESPACE = "rollouts"
# How often a consumer asks that has no call that waits.
_POLL_S = 0.01


@dataclasses.dataclass
class ReverbEnd(End):
    """A client of a server, with a table with rollouts."""

    address: str

    def connect(self) -> None:
        import reverb

        self.client = reverb.Client(self.address)
        self._opened = contextlib.ExitStack()

    def put(self, number: int, shape: Shape) -> None:
        rollouts = self.noise.rollouts(number, shape)
        self.client.insert_item(TABLE, {"prompt": np.array([number], np.int32)}, rollouts)

    def put_begin(self, number: int, shape: Shape) -> None:
        prompt = {"prompt": np.array([number], np.int32)}
        self.client.insert_item(TABLE, prompt, self.noise.rollouts(number, shape)[:-1])
        self.hold()

    def put_end(self, number: int, shape: Shape) -> None:
        self.client.add_rollout(self._item, self.noise.rollouts(number, shape)[-1])

    def hold(self) -> int:
        """Opens an item instead of the one before; returns when it had it."""
        self._opened.close()
        self._item = self._opened.enter_context(self.client.open_item(TABLE))
        return time.monotonic_ns()

    def take(self, count: int, shape: Shape) -> Taken:
        self._batch = self.client.take(TABLE, count)
        data = self._batch.data
        numbers = data["prompt"].values.tolist()
        return Taken(numbers, data["tokens"].values, data["logprobs"].values)

    def settle(self) -> None:
        self.client.ack(self._batch)

    def prompts(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.client.insert_item(TABLE, {"prompt": np.array([number], np.int32)})

    @contextlib.asynccontextmanager
    async def growing(self) -> Any:
        import reverb.aio

        async with reverb.aio.Client(self.address) as self._awaited:
            await self._awaited.server_info()
            yield

    async def grow(self, number: int, shape: Shape, spent_s: list[float]) -> None:
        began = time.perf_counter()
        async with self._awaited.open_item(TABLE) as item:
            spent_s.append(time.perf_counter() - began)
            # Another coroutine may have got the item of this number.
            for rollout in self.noise.rollouts(int(item.data["prompt"][0]), shape):
                began = time.perf_counter()
                await self._awaited.add_rollout(item, rollout)
                spent_s.append(time.perf_counter() - began)

    def probe(self, seconds: float) -> float:
        """Makes small calls of the table for some time; returns how long the longest took."""
        longest, until = 0.0, time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            self.client.server_info()
            longest = max(longest, time.perf_counter() - began)
        return longest

    def wait(self, coroutines: int, seconds: float, server: int) -> tuple[int, float, float]:
        """Lets coroutines wait in `open_item`, then has an item for each.

        Returns:
          How many threads there are more, and the time of processors while nothing happened: that
          of this process and of the server.
        """
        return asyncio.run(self._wait(coroutines, seconds, server))

    async def _wait(self, coroutines: int, seconds: float, server: int) -> tuple[int, float, float]:
        async with self.growing():
            before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
            waiting = [asyncio.create_task(self._open_one()) for _ in range(coroutines)]
            while (await self._awaited.status()).tables[TABLE].sampling.waiting < coroutines:
                await asyncio.sleep(0.1)
            pids = (os.getpid(), server)
            began = [cpu_s(pid) for pid in pids]
            await asyncio.sleep(seconds)
            ours_s, servers_s = (cpu_s(pid) - at for pid, at in zip(pids, began, strict=True))
            threads = len(os.listdir("/proc/self/task")) - before  # noqa: PTH208
            feeder = threading.Thread(target=self.prompts, args=(0, coroutines))
            feeder.start()
            await asyncio.gather(*waiting)
            feeder.join()
            return threads, ours_s, servers_s

    async def _open_one(self) -> None:
        async with self._awaited.open_item(TABLE):
            pass


class _Items:
    """The actor: a queue of items."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    async def put(self, item: Any) -> None:
        await self._items.put(item)

    async def take(self, count: int) -> list[Any]:
        return [await self._items.get() for _ in range(count)]


def _joined(items: list[Any]) -> Taken:
    rollouts = [rollout for _, each in items for rollout in each]
    tokens, logprobs = (
        np.concatenate([rollout[name] for rollout in rollouts]) for name in ("tokens", "logprobs")
    )
    return Taken([number for number, _ in items], tokens, logprobs)


@dataclasses.dataclass
class RayEnd(End):
    """A process that calls an actor with an `asyncio.Queue`."""

    address: str

    def connect(self) -> None:
        _join_ray(self.address)
        import ray

        self._get, self._actor = ray.get, ray.get_actor("items", _NAMESPACE)

    def put(self, number: int, shape: Shape) -> None:
        self._get(self._actor.put.remote((number, self.noise.rollouts(number, shape))))

    def take(self, count: int, shape: Shape) -> Taken:
        return _joined(self._get(self._actor.take.remote(count)))

    async def grow(self, number: int, shape: Shape, spent_s: list[float]) -> None:
        # The queue knows no items that grow, so each rollout is one.
        for at, rollout in enumerate(self.noise.rollouts(number, shape)):
            began = time.perf_counter()
            await self._actor.put.remote((number * shape.rollouts + at, [rollout]))
            spent_s.append(time.perf_counter() - began)

    def drain_grown(self, count: int, batch: int, shape: Shape) -> None:
        self.drain(count * shape.rollouts, batch, Shape(1, shape.tokens))


@dataclasses.dataclass
class TransferQueueEnd(End):
    """A process with TransferQueue's calls of keys: a key is a rollout."""

    address: str

    def connect(self) -> None:
        _join_ray(self.address)
        import tensordict
        import torch
        import transfer_queue

        transfer_queue.init()
        self._calls, self._dict, self._tensor = (
            transfer_queue,
            tensordict.TensorDict,
            torch.from_numpy,
        )

    def put(self, number: int, shape: Shape) -> None:
        self._calls.kv_batch_put(**self._put_of(number, shape, range(shape.rollouts)))

    def put_begin(self, number: int, shape: Shape) -> None:
        self._calls.kv_batch_put(**self._put_of(number, shape, range(shape.rollouts - 1)))

    def put_end(self, number: int, shape: Shape) -> None:
        self._calls.kv_batch_put(**self._put_of(number, shape, [shape.rollouts - 1]))

    def take(self, count: int, shape: Shape) -> Taken:
        while (taken := self._take_now(count, shape)) is None:
            time.sleep(_POLL_S)
        return taken

    def _take_now(self, count: int, shape: Shape) -> Taken | None:
        found: dict[int, list[str]] = {}
        for key in self._calls.kv_list(partition_id=TABLE).get(TABLE, {}):
            found.setdefault(int(key.partition("_")[0]), []).append(key)
        numbers = [it for it, keys in found.items() if len(keys) == shape.rollouts][:count]
        if len(numbers) < count:
            return None
        self._keys = [key for number in numbers for key in found[number]]
        try:
            rows = self._calls.kv_batch_get(keys=self._keys, partition_id=TABLE)
        except ValueError:
            # Documented: a key may be listed before its fields are there.
            return None
        tokens, logprobs = (
            (it.values() if it.is_nested else it.flatten()).numpy()
            for it in (rows["tokens"], rows["logprobs"])
        )
        return Taken(numbers, tokens, logprobs)

    def settle(self) -> None:
        self._calls.kv_clear(keys=self._keys, partition_id=TABLE)

    async def grow(self, number: int, shape: Shape, spent_s: list[float]) -> None:
        for at in range(shape.rollouts):
            began = time.perf_counter()
            await self._calls.async_kv_batch_put(**self._put_of(number, shape, [at]))
            spent_s.append(time.perf_counter() - began)

    def _put_of(self, number: int, shape: Shape, chosen: Any) -> dict[str, Any]:
        rollouts = self.noise.rollouts(number, shape)
        fields = {
            name: self._tensor(np.stack([rollouts[at][name] for at in chosen]))
            for name in ("tokens", "logprobs")
        }
        return {
            "keys": [f"{number}_{at}" for at in chosen],
            "partition_id": TABLE,
            "fields": self._dict(fields, batch_size=len(chosen)),
            "tags": [{"item": number} for _ in chosen],
        }


@dataclasses.dataclass
class ProcessQueueEnd(End):
    """A process with a queue, such as `multiprocessing`'s, whose `put` hands over to a thread."""

    queue: Any
    confirms = False

    def put(self, number: int, shape: Shape) -> None:
        self.queue.put((number, self.noise.rollouts(number, shape)))

    def take(self, count: int, shape: Shape) -> Taken:
        return _joined([self.queue.get() for _ in range(count)])


@dataclasses.dataclass
class TimedQueueEnd(ProcessQueueEnd):
    """The same, whose `put` has a time-out."""

    def put(self, number: int, shape: Shape) -> None:
        self.queue.put((number, self.noise.rollouts(number, shape)), timeout=600)


class ServingQueueEnd(ProcessQueueEnd):
    """A consumer in the process of the server, as a learner that starts it."""

    def __init__(self) -> None:
        super().__init__(None)

    def connect(self) -> None:
        import reverb
        from reverb.adapters.queue import Queue

        self._server = reverb.Server([reverb.Table.queue(QUEUE, QUEUE_SIZE)])
        self.queue = Queue(self.address(), QUEUE)

    def address(self) -> str:
        """Where the server is."""
        return f"localhost:{self._server.port}"


@dataclasses.dataclass
class RayQueueEnd(ProcessQueueEnd):
    """A process with a `ray.util.queue.Queue`, an actor whose handle is pickled."""

    address: str

    def connect(self) -> None:
        _join_ray(self.address)
        self.queue = pickle.loads(self.queue)


def _quiet_ray() -> None:
    """Keeps Ray from asking the network, and its workers from giving way to other processes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")


def _join_ray(address: str) -> None:
    _quiet_ray()
    import ray

    ray.init(address, namespace=_NAMESPACE, logging_level="ERROR", log_to_driver=False)


@contextlib.contextmanager
def open_ray() -> Iterator[str]:
    """Starts Ray for both ways that need it; yields its address."""
    _quiet_ray()
    import ray

    # Places for the actors; not more processors than there are.
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        namespace=_NAMESPACE,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


@contextlib.contextmanager
def open_actor(address: str) -> Iterator[RayEnd]:
    """Starts the actor with a queue."""
    import ray

    actor = ray.remote(_Items).options(name="items").remote()
    try:
        yield RayEnd(address)
    finally:
        ray.kill(actor)


@contextlib.contextmanager
def open_transfer_queue(address: str) -> Iterator[TransferQueueEnd]:
    """Starts TransferQueue with two storage units."""
    import omegaconf
    import transfer_queue

    units = {"backend": {"SimpleStorage": {"num_data_storage_units": 2}}}
    transfer_queue.init(omegaconf.OmegaConf.create(units))
    try:
        yield TransferQueueEnd(address)
    finally:
        transfer_queue.close()


def process_queue() -> ProcessQueueEnd:
    """Makes a queue of processes."""
    return ProcessQueueEnd(multiprocessing.get_context("spawn").Queue())


# By name of the way: its package, and what starts it, on Ray.
ON_RAY: dict[str, tuple[str, Callable[[str], Any]]] = {
    "TransferQueue": ("TransferQueue", open_transfer_queue),
    "Ray actor": ("ray", open_actor),
}


def version_of(package: str) -> str | None:
    """The version of a package; `None` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclasses.dataclass
class Ways:
    """All ways, and the numbers of the items that they have sent.

    Attributes:
      pairs: By name of the way the producer and the consumer.
      confirming: Names of those whose put returns when others can have the item.
    """

    pairs: Mapping[str, tuple[Remote, Remote]]
    confirming: frozenset[str]
    _sent: int = 0

    def numbers(self, count: int) -> int:
        """The first of that many numbers, which no item had."""
        self._sent += count
        return self._sent - count


@contextlib.contextmanager
def open_ways() -> Iterator[Ways]:
    """Starts all ways."""
    with contextlib.ExitStack() as stack:
        address, _ = stack.enter_context(open_server())
        ends: dict[str, Any] = {OURS: ReverbEnd(address)}
        installed = {name: way for name, way in ON_RAY.items() if version_of(way[0])}
        ray = stack.enter_context(open_ray()) if installed else ""
        for name, (_, start) in installed.items():
            ends[name] = stack.enter_context(start(ray))
        ends["multiprocessing.Queue"] = process_queue()
        pairs = {
            name: (stack.enter_context(Remote(end)), stack.enter_context(Remote(end)))
            for name, end in ends.items()
        }
        yield Ways(pairs, frozenset(name for name, end in ends.items() if end.confirms))


@contextlib.contextmanager
def open_queues() -> Iterator[Ways]:
    """Starts queues of the same size, with Python's calls."""
    from reverb.adapters.queue import Queue

    with contextlib.ExitStack() as stack:
        address, _ = stack.enter_context(open_server())
        ours = Queue(address, QUEUE)
        processes = multiprocessing.get_context("spawn")
        ends: dict[str, Any] = {
            OURS: ProcessQueueEnd(ours),
            f"{OURS}, put with a time-out": TimedQueueEnd(ours),
            "multiprocessing.Queue": ProcessQueueEnd(processes.Queue(QUEUE_SIZE)),
        }
        if version_of("ray"):
            at = stack.enter_context(open_ray())
            import ray.util.queue

            queue = ray.util.queue.Queue(QUEUE_SIZE)
            ends["ray.util.queue.Queue"] = RayQueueEnd(pickle.dumps(queue), at)
        pairs = {
            name: (stack.enter_context(Remote(end)), stack.enter_context(Remote(end)))
            for name, end in ends.items()
        }
        consumer = stack.enter_context(Remote(ServingQueueEnd()))
        producer = Remote(ProcessQueueEnd(Queue(consumer.ask("address"), QUEUE)))
        name = f"{OURS}, server in the consumer's process"
        pairs[name] = (stack.enter_context(producer), consumer)
        yield Ways(pairs, frozenset())
