# SPDX-License-Identifier: Apache-2.0
"""A server that is killed in the middle of a save: the last checkpoint stays, and is whole."""

import contextlib
import random
import shutil
import time

import pytest

import reverb
from support.checkpoints import on_disk
from support.programs import Program

# Restores, says what it found, then inserts and saves without an end. Numbers count up over all
# lives; an item holds its number, and 1 kB that depends on it.
SERVER = """
    import sys
    import numpy as np
    import reverb
    from reverb import testing

    def make(number):
        return np.random.default_rng(number).integers(0, 256, 1000, np.uint8)

    root, batch = sys.argv[1], int(sys.argv[2])
    checkpointer = reverb.checkpointers.DefaultCheckpointer(root)
    tables = [testing.table("a", max_size=10**6), testing.table("b", max_size=10**6)]
    server = reverb.Server(tables, checkpointer=checkpointer)
    client = server.localhost_client()

    def held(table):
        numbers = []
        for sample in client.scan(table):
            number, content = (column[0] for column in sample.data)
            assert (content == make(int(number))).all()
            numbers.append(int(number))
        assert numbers == list(range(len(numbers)))
        return len(numbers)

    count = held("a")
    assert held("b") == count
    print("restored", count)
    while True:
        for number in range(count, count + batch):
            client.insert([np.int64(number), make(number)], {"a": 1.0, "b": 2.0})
        count += batch
        print("saving", count)
        client.checkpoint()
        print("saved", count)
"""
BATCH = 5


class Toll:
    """The parent's records about all runs of the server so far."""

    def __init__(self, root):
        self.root = root
        # The items of the last acknowledged save, and of a possible later one.
        self.acknowledged = 0
        self.attempted = 0
        # Lives that ended inside a save: with something left over, or with an unheard answer.
        self.partial = 0

    def live(self, delay_s):
        """Starts a server, lets it save once, and kills it some time later."""
        with Program(SERVER, self.root, BATCH) as program:
            self.hear(program, "restored")
            # The first save of a life removes what the life before has left.
            self.hear(program, "saving")
            self.hear(program, "saved")
            self.no_parts()
            time.sleep(delay_s)
            program.kill()
            self.hear_the_rest(program)
        self.partial += any(path.name.startswith(".partial-") for path in self.root.iterdir())
        self.check_offline()

    def hear(self, program, expected):
        line = program.line()
        word, number = line.split()
        assert word == expected, line
        self.note(word, int(number))

    def hear_the_rest(self, program):
        """Its output before it was killed; the last line may be cut."""
        with contextlib.suppress(AssertionError):
            while len(parts := program.line().split()) == 2:
                self.note(parts[0], int(parts[1]))

    def note(self, word, number):
        if word == "restored":
            assert number in (self.acknowledged, self.attempted)
            self.acknowledged = self.attempted = number
        elif word == "saving":
            self.attempted = number
        else:
            self.acknowledged = number

    def no_parts(self):
        # The server may be at the next one already, whose parts come and go.
        left = [path.name for path in self.root.iterdir() if path.name.startswith(".partial-")]
        assert len(left) <= 1, left

    def check_offline(self):
        """Reads what is there now with a reader that knows nothing of the core."""
        complete = [path for path in self.root.iterdir() if (path / on_disk.DONE).exists()]
        complete = [path for path in complete if not path.name.startswith(".partial-")]
        assert 1 <= len(complete) <= 2
        stored = on_disk.read(max(complete), verify=False)
        counts = {len(stored.items_of(name)) for name in "ab"}
        (count,) = counts
        assert count in (self.acknowledged, self.attempted)
        for name in "ab":
            limiter = stored.table(name).rate_limiter
            assert (limiter.insert_count, limiter.delete_count) == (count, 0)
        assert reverb.checkpointers.read(self.root).path == str(max(complete))


@pytest.mark.parametrize(
    "num_lives",
    [
        pytest.param(8, id="short"),
        pytest.param(100, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_nothing_acknowledged_is_lost(root, num_lives):
    toll = Toll(root)
    rng = random.Random(num_lives)
    for life in range(num_lives):
        if life % 25 == 24:
            # Small again, so that it stays cheap.
            shutil.rmtree(root)
            toll.acknowledged = toll.attempted = 0
        toll.live(rng.uniform(0, 0.02))
    assert toll.acknowledged >= BATCH
    if num_lives > 50:
        assert toll.partial >= num_lives / 20, "hardly any kill came in the middle of a save"
    # The parts of the last life go with the next save.
    with Program(SERVER, root, BATCH) as program:
        toll.hear(program, "restored")
        toll.hear(program, "saving")
        toll.hear(program, "saved")
        program.kill()
