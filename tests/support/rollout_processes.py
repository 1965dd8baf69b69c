# SPDX-License-Identifier: Apache-2.0
"""Processes around a table with rollouts, which write down what was confirmed to them.

Each line of their log is `[kind, who, begin, end, *values]`: something happened at some moment
between `begin` and `end`, in seconds of the clock that all processes share. They write to one file,
a line at once, so that the lines of a process that is killed stay. `rollout_log.py` compares them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Iterator

import numpy as np

import reverb
import reverb.aio
from support import rollout_tables
from support.waiting import DEADLINE_S

NUM_ROLLOUTS = 4
BATCH = 4
# Learner steps between two checkpoints of its model.
SAVE_PERIOD = 3
# How long a rollout or a learner step takes at most.
WORK_S = 0.01


class Log:
    """The file that all processes write to. A line that a kill has cut off stands by itself."""

    def __init__(self, directory: pathlib.Path, role: str) -> None:
        self.who = f"{role} {os.getpid()}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(directory / "log", flags, 0o600)

    def write(self, kind: str, begin: float, *values: object, who: str = "") -> None:
        """Adds a line about what has begun at `begin` and ends now."""
        line = json.dumps([kind, who or self.who, begin, time.monotonic(), *values])
        os.write(self._file, f"\n{line}\n".encode())


def serve(log: Log, directory: pathlib.Path, port: str) -> None:
    """Serves the table from its latest checkpoint; prints the port."""
    table = rollout_tables.table(
        NUM_ROLLOUTS,
        ahead=2,
        items_per_version=BATCH,
        max_attempts=10**6,  # No item is given up because it was lost too often.
    )
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(directory / "tables"))
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            server = reverb.Server(
                [table], port=int(port) or None, checkpointer=checkpointer, lease_grace_s=1.0
            )
            break
        except reverb.errors.ReverbError:
            # A client that connects to a port where nobody listens may have it for a moment.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    print(server.port, flush=True)
    sys.stdin.readline()
    server.stop()


def feed(log: Log, directory: pathlib.Path, address: str) -> None:
    """Inserts prompts, number by number, for ever."""
    client = reverb.Client(address)
    while True:
        newest = rollout_tables.info(client).newest
        log.write("continues", time.monotonic(), newest)
        for number in itertools.count(int(newest or -1) + 1):
            begin = time.monotonic()
            try:
                prompt = rollout_tables.prompt(number)
                is_new = client.insert_item("train", prompt, name=str(number), after=newest)
            except reverb.errors.FailedPreconditionError:
                break  # The server has gone back.
            log.write("inserted" if is_new else "known", begin, number)
            newest = str(number)


class Rollouts:
    """The rollouts that a generator makes: each in two turns, and each with a text of its own."""

    def __init__(self, log: Log) -> None:
        self._log, self._counter = log, itertools.count()

    def opened(self, begin: float, item: reverb.OpenItem) -> list[int]:
        """Checks an item; returns the numbers of the rollouts that it lacks."""
        assert (item.data["prompt"] == rollout_tables.prompt(int(item.name))["prompt"]).all()
        missing, partial = list(item.missing), sorted(item.partial)
        self._log.write("opened", begin, item.key, missing, partial)
        return missing

    def turns(self, rollout: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yields the kind and the columns of what is sent for a rollout, one after another."""
        for kind in ("partial", "final"):
            count = next(self._counter)
            tokens = [rollout, os.getpid(), count] + [0] * (count % 7)
            yield (
                kind,
                {"tokens": np.array(tokens, np.int32), "score": np.array(rollout, np.float32)},
            )

    def sends(self, item: reverb.OpenItem, rollout: int, kind: str, columns: dict) -> float:
        """Writes down what is sent now."""
        begin = time.monotonic()
        self._log.write("sends", begin, item.key, rollout, kind, stamp(columns["tokens"]))
        return begin

    def answered(self, is_there: bool, begin: float, item: reverb.OpenItem, *sent: object) -> bool:
        """Writes down what was confirmed."""
        self._log.write("added" if is_there else "refused", begin, item.key, *sent)
        return is_there


def stamp(tokens: np.ndarray) -> str:
    """What no other rollout has."""
    return " ".join(map(str, tokens[1:3]))


def generate(log: Log, directory: pathlib.Path, address: str) -> None:
    """Makes rollouts, one after another."""
    client, rollouts = reverb.Client(address), Rollouts(log)
    while True:
        begin = time.monotonic()
        with client.open_item("train") as item:
            for rollout in rollouts.opened(begin, item):
                for kind, columns in rollouts.turns(rollout):
                    time.sleep(random.uniform(0, WORK_S))
                    begin = rollouts.sends(item, rollout, kind, columns)
                    is_partial = kind == "partial"
                    is_there = client.add_rollout(
                        item, columns, rollout=rollout, partial=is_partial
                    )
                    sent = rollout, kind, stamp(columns["tokens"])
                    if not rollouts.answered(is_there, begin, item, *sent):
                        break


def generate_several(log: Log, directory: pathlib.Path, address: str) -> None:
    """Makes rollouts of two items at a time, all rollouts of an item at once."""
    rollouts = Rollouts(log)

    async def make(item: reverb.OpenItem, rollout: int) -> None:
        for kind, columns in rollouts.turns(rollout):
            await asyncio.sleep(random.uniform(0, WORK_S))
            begin = rollouts.sends(item, rollout, kind, columns)
            is_partial = kind == "partial"
            is_there = await client.add_rollout(item, columns, rollout=rollout, partial=is_partial)
            sent = rollout, kind, stamp(columns["tokens"])
            if not rollouts.answered(is_there, begin, item, *sent):
                break

    async def work() -> None:
        while True:
            begin = time.monotonic()
            async with client.open_item("train") as item:
                await asyncio.gather(*(make(item, it) for it in rollouts.opened(begin, item)))

    async def main() -> None:
        nonlocal client
        async with client:
            await asyncio.gather(work(), work())

    client = reverb.aio.Client(address)
    asyncio.run(main())


class Model:
    """What a learner has learned: the numbers of all prompts that it was trained on."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._path = directory / "model"
        saved = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.step: int = saved.get("step", 0)
        self.trained: list[int] = saved.get("trained", [])

    def save(self) -> None:
        """Replaces the checkpoint, which is whole at any moment, and on disk afterwards."""
        new = self._path.with_suffix(".new")
        with new.open("w") as file:
            json.dump({"step": self.step, "trained": self.trained}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)


def learn(log: Log, directory: pathlib.Path, address: str) -> None:
    """Trains on what there is, and acks what a checkpoint of the model has seen."""
    client, model = reverb.Client(address), Model(directory)
    held: list[reverb.RolloutBatch] = []
    # It goes back to its checkpoint, and so does the version.
    client.set_version("train", model.step, rewind=True)
    while True:
        begin = time.monotonic()
        try:
            held.append(client.take("train", BATCH, partial=True, timeout_ms=500))
        except reverb.DeadlineExceededError:
            is_idle = True
        else:
            is_idle = False
            log.write("taken", begin, *contents(held[-1]))
            time.sleep(random.uniform(0, WORK_S))
            model.trained += map(int, held[-1].name)
            model.step += 1
        if is_idle or len(held) == SAVE_PERIOD:
            model.save()
            for batch in held:
                begin = time.monotonic()
                others = client.ack(batch).tolist()
                keys = [key for key in batch.info.key.tolist() if key not in others]
                log.write("acked", begin, keys)
            held.clear()
        # After a while without items the server may have gone back to a larger version.
        client.set_version("train", model.step, rewind=is_idle)


def contents(batch: reverb.RolloutBatch) -> tuple[list[int], list[str], list[list]]:
    """Returns keys, names, and of each item the numbers and stamps of its rollouts."""
    rows: list[list] = [[] for _ in batch.name]
    columns = batch.item, batch.rollout, batch.data["tokens"], batch.data["score"]
    for item, rollout, row, score in zip(*columns, strict=True):
        assert row[0] == rollout == score, "the columns of a rollout belong together"
        rows[item].append([int(rollout), stamp(row)])
    for name, prompt in zip(batch.name, batch.data["prompt"], strict=True):
        assert (prompt == rollout_tables.prompt(int(name))["prompt"]).all()
    return batch.info.key.tolist(), batch.name, rows


ROLES = {"server": serve, "feeder": feed, "learner": learn}
ROLES |= {"generator-0": generate, "generator-1": generate}
ROLES |= {"generator-2": generate_several, "generator-3": generate_several}


def main() -> None:
    """Is the process of a role until it is killed: `ROLE DIRECTORY ADDRESS`."""
    role, directory, place = sys.argv[1:4]
    path = pathlib.Path(directory)
    ROLES[role](Log(path, role), path, place)
