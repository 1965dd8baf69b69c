# SPDX-License-Identifier: Apache-2.0
"""TRL's batchers give the same rows over a queue of a server as over Python's.

A producer in another thread puts samples as a rollout worker does: by `put_nowait`, again after
`queue.Full`. The queue is smaller than a batch, so that this happens.
"""

import collections
import json
import queue
import threading
import time

import accelerate
import numpy as np
import torch
from trl.experimental.async_grpo.async_grpo_trainer import (
    FixedCountBatcher,
    RolloutQueueDataset,
    TokenBudgetBatcher,
)
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

import reverb
from reverb.adapters.queue import Queue

SAMPLES, SIZE, RANKS, VERSION = 120, 5, 2, 6
BATCHERS = {
    "fixed count": lambda dataset, _: FixedCountBatcher(dataset, RANKS, 8),
    "token budget": lambda dataset, metrics: TokenBudgetBatcher(dataset, RANKS, 150, metrics),
}


def samples():
    """Samples of several groups and versions, some of them too old."""
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        prompt = np.arange(number // 4, number // 4 + 10)
        answer = rng.integers(0, 1000, rng.integers(2, 60))
        ids = np.concatenate([prompt, answer])
        mask = np.repeat([0, 1], [len(prompt), len(answer)])
        yield RolloutSample(
            prompt=[{"role": "user", "content": f"prompt {number // 4}"}],
            completion=[{"role": "assistant", "content": f"answer {number}"}],
            input_ids=ids,
            completion_mask=mask,
            old_log_probs=rng.normal(size=len(ids)).astype(np.float32),
            advantage=float(rng.normal()),
            model_version=int(rng.integers(0, VERSION + 1)),
            group_id=number // 4,
            metrics={"reward": float(number)},
        )


def produce(buffer, was_full):
    for sample in samples():
        while True:
            try:
                buffer.put_nowait(sample)
                break
            except queue.Full:
                was_full.set()
                time.sleep(0.001)


def rows_of(buffer, make):
    """The tensors of all rows that a batcher makes of the queue."""
    metrics, was_full = collections.defaultdict(list), threading.Event()

    def check_health(_):
        if not producer.is_alive() and buffer.empty():
            raise EOFError

    dataset = RolloutQueueDataset(
        buffer, lambda: VERSION, check_health, 300.0, metrics, max_staleness=3, poll_interval_s=0.1
    )
    producer = threading.Thread(target=produce, args=(buffer, was_full))
    producer.start()
    assert was_full.wait(60)
    rows = []
    try:
        for batch in make(dataset, metrics):
            rows += [row.pack() for row in batch]
    except EOFError:
        pass
    producer.join()
    return rows


def main():
    accelerate.PartialState()  # Their loggers need it.
    tables = [reverb.Table.queue(name, SIZE) for name in BATCHERS]
    found = {}
    with reverb.Server(tables) as server:
        for name, make in BATCHERS.items():
            theirs = rows_of(queue.Queue(SIZE), make)
            # Over the network; a server of this process would be reached without a socket.
            ours = rows_of(Queue(f"127.1:{server.port}", name), make)
            assert len(ours) == len(theirs) > 10
            for one, other in zip(ours, theirs, strict=True):
                assert one.keys() == other.keys()
                assert all(torch.equal(one[key], other[key]) for key in one)
            found[name] = len(ours)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
