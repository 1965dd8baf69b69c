# SPDX-License-Identifier: Apache-2.0
"""Staged stalls: a server with one table for each state that a diagnosis can name."""

import contextlib
import threading
import time

import numpy as np

import reverb
from reverb import testing
from reverb.core import protos
from reverb.errors import ReverbError
from support.waiting import DEADLINE_S, PATIENCE
from support.wire.raw_http2 import Http2

# How soon a state has to be named once its condition holds: a second, on a machine that is idle.
PROMPT_S = 8.0 * PATIENCE


def limiter(samples_per_insert=1.0, min_size=1, min_diff=-1e9, max_diff=1e9):
    return reverb.rate_limiters.RateLimiter(samples_per_insert, min_size, min_diff, max_diff)


@contextlib.contextmanager
def looping(work):
    """Repeats a call in a thread; at the end waits until it fails, as the server has stopped."""
    stop = threading.Event()

    def run():
        with contextlib.suppress(ReverbError):
            while not stop.is_set():
                work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the call goes on without its server"


class Stage:
    """A server with one table, and its clients.

    `limits` are the arguments of `limiter`: a rate limiter belongs to one table for good.
    """

    def __init__(self, limits=None, **options):
        if limits is not None:
            options["rate_limiter"] = limiter(*limits)
        self.server = reverb.Server(
            [testing.table("replay", **{"max_size": 1000, **options})],
            host="127.0.0.1",
            http_port=0,
        )
        # The server is in this process, so it is there until it stops.
        self.client = reverb.Client(f"127.0.0.1:{self.server.port}", connect_timeout_s=0.2)
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server.stop()
        self.stack.close()

    def insert(self, count=1, size=4):
        self.client.insert_batch({"x": np.zeros((count, size))}, {"replay": np.ones(count)})

    def insert_all_the_time(self, pause_s=0.05, size=4):
        def work():
            self.insert(1, size)
            time.sleep(pause_s)

        self.stack.enter_context(looping(work))

    def sample_all_the_time(self, pause_s=0.0):
        def work():
            self.client.sample_batch("replay", 1)
            time.sleep(pause_s)

        self.stack.enter_context(looping(work))

    def state(self):
        return self.client.diagnose("replay").state


def flowing(stage):
    stage.insert_all_the_time()
    stage.sample_all_the_time(0.01)


def filling(stage):
    stage.insert_all_the_time()
    stage.sample_all_the_time()


def ahead(stage):
    stage.insert(3)
    stage.insert_all_the_time(0.3)
    stage.sample_all_the_time()


def behind(stage):
    stage.insert_all_the_time(0.0)


def stuck(stage):
    stage.sample_all_the_time()
    stage.insert_all_the_time(0.0)


def full(stage):
    stage.insert_all_the_time(0.0, size=1000)


def paused(stage):
    stage.client.pause_table("replay", samples=False)
    stage.insert_all_the_time(0.0)


def draining(stage):
    stage.insert_all_the_time()
    stage.client.drain()


def nothing(stage):
    del stage


def starved(stage):
    stage.sample_all_the_time()


def slow_readers(stage):
    """A reader asks for much and reads nothing: its samples fill the connection."""
    stage.insert(100, size=50_000)
    reader = stage.stack.enter_context(Http2(stage.server.port))
    request = protos.SampleStreamRequest(table="replay", num_samples=100_000)
    number = reader.open("SampleStream", reverb_client="learner-3")
    reader.send(number, request.SerializeToString())


# How it is staged, the options of the table, and what the sentence says.
STALLS = {
    "flowing": (flowing, {}, "inserts/s"),
    "filling": (filling, {"limits": (1.0, 900)}, "of 900 items; at "),
    "ahead": (ahead, {"limits": (1.0, 1, 0.0, 10.0)}, "Learners wait for actors"),
    "behind": (behind, {"limits": (1.0, 1, -10, 5.0)}, "Actors wait for learners"),
    "stuck": (stuck, {"limits": (1.0, 1, 5.0, 5.0)}, "Neither can go on"),
    "never": (nothing, {"max_size": 5, "limits": (1.0, 6)}, "max_size is 5"),
    "full": (full, {"max_bytes": "64KiB", "when_full": "wait"}, "Inserts wait for memory"),
    "paused": (paused, {}, "Inserts are paused by "),
    "draining": (draining, {}, "The server ends its streams, for "),
    "idle": (nothing, {}, "no insert yet, no sample yet"),
}
# Those that need more than a moment, or another kind of client.
SPECIAL_STALLS = {
    "starved": (starved, {"limits": (1.0, 1, 0.0, 10.0)}, "Nothing was ever inserted; 0 insert"),
    "slow readers": (slow_readers, {}, "1 reader does not take what is ready"),
}

# Why the first insert in the queue is blocked, and the first request for samples.
INSERTS_WAIT = {
    "behind": "1 more sample allows the next insert.",
    "stuck": "1 more sample allows the next insert.",
    "full": "Inserts wait for memory: the table holds ",
    "paused": "It is paused by ",
}
SAMPLES_WAIT = {
    "filling": " more inserts allow the next sample.",
    "ahead": "1 more insert allows the next sample.",
    "stuck": "1 more insert allows the next sample.",
    "starved": "1 more insert allows the next sample.",
}
# Texts of timeouts of samples: what is told beside that, or where nobody waits yet.
TIMEOUTS = {
    "stuck": "Inserts are blocked too: an insert would bring the cursor ",
    "never": "Table replay: It will never hold the 6 items that sampling needs",
    "idle": "Table replay: 1 more insert allows the next sample.",
}
