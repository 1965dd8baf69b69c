# SPDX-License-Identifier: Apache-2.0
"""Random programs of several servers on one directory, against a simple model."""

import collections
import contextlib
import dataclasses
import random

import pytest

import reverb
from support.checkpoints.server_process import process, refused


@dataclasses.dataclass(eq=False)
class Saved:
    """A checkpoint as the model has it."""

    name: str | None
    values: list
    holder: int | None


class Model:
    """A model of servers on one directory; each has a number and perhaps a name."""

    def __init__(self, names, keep_latest):
        self.names = names
        self.keep_latest = keep_latest
        self.saved = []
        self.running = {}

    def start(self, number):
        """The values that it loads; `None` if it is refused."""
        name = self.names[number]
        if name is not None and name in [self.names[other] for other in self.running]:
            return None
        found = [it for it in self.saved if name in (None, it.name)]
        if found and found[-1].holder is not None:
            return None
        if found:
            found[-1].holder = number
        self.running[number] = list(found[-1].values) if found else []
        return self.running[number]

    def save(self, number):
        name = self.names[number]
        new = Saved(name, list(self.running[number]), number)
        old = [it for it in self.saved if it.name == name and it.holder in (None, number)]
        surplus = old[: max(0, len(old) - (self.keep_latest - 1))]
        self.saved = [it for it in self.saved if it not in surplus] + [new]

    def end(self, number):
        del self.running[number]
        for it in self.saved:
            if it.holder == number:
                it.holder = None


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        pytest.param(0, 25),
        *(
            pytest.param(seed, 150, marks=[pytest.mark.slow, pytest.mark.timeout(600)])
            for seed in range(8)
        ),
    ],
)
def test_servers_that_save_start_and_die_in_any_order(root, seed, steps):
    """Random programs against a model: nobody loads what another one has."""
    chance = random.Random(seed)
    model = Model(["a", "a", "b", None, None], keep_latest=1 + seed % 2)
    counts = collections.Counter()
    with contextlib.ExitStack() as stack:
        programs = {}
        for value in range(steps):
            number = chance.randrange(len(model.names))
            if number not in programs:
                started = process(root, model.names[number], model.keep_latest)
                programs[number] = stack.enter_context(started)
            program = programs[number]
            if number not in model.running:
                expected = model.start(number)
                if expected is None:
                    refused(program, root, "process ")
                    counts["refused"] += 1
                else:
                    assert program.ask("start") == " ".join(map(str, expected))
                    counts["started"] += 1
                continue
            kind = chance.choice(["insert", "save", "save", "stop", "kill"])
            counts[kind] += 1
            if kind == "insert":
                program.tell(f"insert {value}")
                model.running[number].append(value)
            elif kind == "save":
                program.ask("save")
                model.save(number)
                assert len(list(root.glob("*/DONE"))) == len(model.saved)
            elif kind == "stop":
                program.ask("stop")
                model.end(number)
            else:
                program.kill()
                del programs[number]
                model.end(number)
        stored = [reverb.checkpointers.read(path.parent) for path in sorted(root.glob("*/DONE"))]
        assert [
            (it.server_name, [sample.data[0].item() for sample in it.scan("table")])
            for it in stored
        ] == [(it.name, it.values) for it in model.saved]
    assert min(counts[kind] for kind in ("refused", "started", "save", "stop", "kill")) > 0, counts
