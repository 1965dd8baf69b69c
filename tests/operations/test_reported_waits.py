# SPDX-License-Identifier: Apache-2.0
"""Calls that wait for a server: the log says so, and why, whatever the call and the way."""

import asyncio
import contextlib
import signal
import threading
import time

import grpc
import numpy as np
import pytest

import reverb
from reverb.errors import DeadlineExceededError, InvalidArgumentError, ReverbError
from support.hosts import HOSTS
from support.programs import Program
from support.waiting import DEADLINE_S, Background, wait_until
from support.wire.refusing_server import RefusingServer
from support.writer_kinds import EVERY_WRITER

STEP = {"x": np.zeros(3, np.float32)}


def tables():
    """A table of which nothing can be sampled, and one that takes one item."""
    uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
    return [
        reverb.Table("empty", uniform, fifo, 100, reverb.rate_limiters.MinSize(5)),
        reverb.Table.queue("full", 1),
    ]


@pytest.fixture
def log(caplog, reported_waits):
    """Returns a function for the lines about waits."""
    return lambda: [text for text in caplog.messages if "wait" in text]


def two_rows(client):
    client.insert_batch({"x": np.zeros((2, 3), np.float32)}, {"full": 1.0})


def insert_once(client):
    client.insert(STEP, {"full": 1.0})


def insert_twice(client):
    for _ in range(2):
        insert_once(client)


def batches(client, **options):
    with reverb.batches(client, "empty", 2, **options) as iterator:
        next(iterator)


def awaited(call):
    """A call of the twin of a client."""

    async def run(address):
        async with reverb.aio.Client(address) as client:
            await call(client)

    return lambda client: asyncio.run(run(client.server_address))


INSERTS, SAMPLES = "inserts into table full", "samples of table empty"
# The reason that the server reports for waiting calls.
CALLS = {
    "sample": (lambda client: next(client.sample("empty")), SAMPLES),
    "sample_batch": (lambda client: client.sample_batch("empty", 2), SAMPLES),
    "batches": (batches, SAMPLES),
    "batches_of_a_thread": (lambda client: batches(client, partial=True), SAMPLES),
    "insert": (insert_twice, INSERTS),
    "insert_batch": (two_rows, INSERTS),
    **{
        name: (lambda client, write=write: write(client, "full", 2), INSERTS)
        for name, write in EVERY_WRITER.items()
    },
    "aio_sample_batch": (awaited(lambda client: client.sample_batch("empty", 2)), SAMPLES),
    "aio_insert_batch": (
        awaited(lambda client: client.insert_batch({"x": np.zeros((2, 3))}, {"full": 1.0})),
        INSERTS,
    ),
}
REASONS = {
    (SAMPLES, False): "0 of 5 items; then sampling starts (min_size_to_sample).",
    # No shard is asked for what it does not have.
    (SAMPLES, True): "The table has 0 items, sampling needs 10 more inserts, and nobody inserts.",
    (INSERTS, False): "1 more sample allows the next insert.",
    (INSERTS, True): "1 more sample allows the next insert.",
}


@contextlib.contextmanager
def running(way):
    """Starts a server, or two shards of a group; yields a client, and one of each server."""
    servers = [reverb.Server(tables()) for _ in range(2 if way == "group" else 1)]
    address = f"{HOSTS.get(way)}:{servers[0].port}"
    own = [server.localhost_client() for server in servers]
    if way == "group":
        address = "shards:///" + ",".join(f"127.1:{server.port}" for server in servers)
        for client in own:
            # Each shard is full, whichever gets the next item.
            client.insert(STEP, {"full": 1.0})
    try:
        yield reverb.Client(address, connect_timeout_s=DEADLINE_S), own
    finally:
        for server in servers:
            server.stop()


def let_go_on(own, what, is_waiting):
    """Does what a call waits for, at each server."""
    if what == SAMPLES:
        for client in own:
            client.insert_batch({"x": np.zeros((5, 3), np.float32)}, {"empty": 1.0})
    while what == INSERTS and is_waiting():
        for client in own:
            with contextlib.suppress(DeadlineExceededError):
                client.sample_batch("full", 1, timeout_ms=20)


@pytest.mark.parametrize("way", [*HOSTS, "group"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_waits_is_told_with_its_reason(call, way, log):
    make, what = CALLS[call]
    with running(way) as (client, own):
        waiting = threading.Thread(target=make, args=(client,), daemon=True)
        waiting.start()
        start = f"1 call waits for {what} at {client.server_address}, for "
        reason = REASONS[what, way == "group"]
        wait_until(lambda: any(reason in line for line in log() if line.startswith(start)))
        let_go_on(own, what, waiting.is_alive)
        waiting.join(DEADLINE_S)
        assert not waiting.is_alive()


@pytest.mark.parametrize("way", HOSTS)
@pytest.mark.parametrize("call", ["sample_batch", "batches", "aio"])
def test_a_call_that_waits_for_a_window_is_told_so(call, way, log):
    window = reverb.Window(5)
    calls = {
        "sample_batch": lambda client: client.sample_batch("empty", 2, window=window),
        "batches": lambda client: batches(client, window=window),
        "aio": awaited(lambda client: client.sample_batch("empty", 2, window=window)),
    }
    with running(way) as (client, own):
        client.insert_batch({"x": np.zeros((5, 3), np.float32)}, {"empty": 1.0})
        waiting = threading.Thread(target=calls[call], args=(client,), daemon=True)
        waiting.start()
        text = "No item of table empty has a window of 5 steps; the longest has 1."
        wait_until(lambda: any(text in line for line in log()))
        own[0].insert_sequence({"x": np.zeros((5, 3), np.float32)}, {"empty": 1.0})
        waiting.join(DEADLINE_S)
        assert not waiting.is_alive()


def test_all_calls_of_a_process_are_one_wait(log):
    with running("remote") as (client, own):
        others = [reverb.Client(client.server_address) for _ in range(3)]
        calls = [Background(it.sample_batch, "empty", 2) for it in others]
        wait_until(lambda: any(line.startswith(f"3 calls wait for {SAMPLES}") for line in log()))
        let_go_on(own, SAMPLES, None)
        for call in calls:
            call.result()


@pytest.mark.parametrize("way", HOSTS)
def test_a_writer_of_two_tables_names_the_one_that_waits(way, log):
    """Also where the first item that is not confirmed is one of the other table."""
    with running(way) as (client, own):
        own[0].insert(STEP, {"full": 1.0})
        writer = client.trajectory_writer(1)
        for table in ["empty"] * 50 + ["full"] + ["empty"] * 5:
            writer.append(STEP)
            writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})
        waiting = Background(writer.flush)
        start = f"1 call waits for {INSERTS} at {client.server_address}, for "
        reason = REASONS[INSERTS, False]
        wait_until(lambda: any(reason in line for line in log() if line.startswith(start)))
        own[0].sample_batch("full", 1)
        waiting.result()
        writer.close()


def test_a_loop_of_short_timeouts_is_one_wait(log):
    with running("remote") as (client, _):
        stop = time.monotonic() + DEADLINE_S
        while not log():
            assert time.monotonic() < stop
            with pytest.raises(ReverbError):
                client.sample_batch("empty", 2, timeout_ms=20)


def test_nothing_is_told_if_that_is_wished(log):
    reverb.logging.report_waits(None)
    with running("remote") as (client, _), pytest.raises(ReverbError):
        client.sample_batch("empty", 2, timeout_ms=500)
    assert log() == []


def test_calls_that_go_through_are_not_told(log):
    with running("remote") as (client, _):
        client.insert_batch({"x": np.zeros((5, 3), np.float32)}, {"empty": 1.0})
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            client.sample_batch("empty", 2)
    assert log() == []


def test_a_server_that_cannot_be_reached(log):
    with reverb.Server(tables()) as server:
        port = server.port
    waiting = Background(reverb.Client(f"127.1:{port}", connect_timeout_s=2).server_info)
    start = f"1 call waits for the answer to ServerInfo at 127.1:{port}, for "
    wait_until(lambda: any(line.startswith(start) for line in log()))
    assert "The server cannot be reached: " in log()[0]
    with pytest.raises(ReverbError):
        waiting.result()


class SlowServer(RefusingServer):
    """Answers resets and samples late, and knows no other call, as an older release."""

    def __init__(self):
        super().__init__(grpc.StatusCode.UNIMPLEMENTED, "not known")
        self.may_answer = threading.Event()

    def service(self, handler_call_details):
        if handler_call_details.method.endswith(("/Reset", "/SampleStream")):
            return grpc.stream_stream_rpc_method_handler(self._answer_late)
        return super().service(handler_call_details)

    def _answer_late(self, _, context):
        self.may_answer.wait(DEADLINE_S)
        yield from self._refuse(_, context)


@pytest.mark.parametrize(
    ("call", "what", "reason"),
    [
        (
            lambda client: client.reset("t"),
            "the answer to Reset",
            "The server works on it, and answers other calls.",
        ),
        (
            lambda client: next(client.sample("t")),
            "samples of table t",
            "does not explain why a table waits: it is a server of dm-reverb, or of an older",
        ),
    ],
)
def test_a_server_that_does_not_tell_why(call, what, reason, log):
    server = SlowServer()
    with server as address:
        waiting = Background(call, reverb.Client(address))
        start = f"1 call waits for {what} at {address}, for "
        wait_until(lambda: any(line.startswith(start) and reason in line for line in log()))
        server.may_answer.set()
        with pytest.raises(ReverbError, match="not known"):
            waiting.result()


FROZEN = """
import reverb
with reverb.Server([reverb.Table.queue("full", 1)]) as server:
    print(server.port, flush=True)
    input()
"""


def test_a_server_that_is_frozen(log):
    with Program(FROZEN) as program:
        client = reverb.Client(f"127.1:{program.line()}", connect_timeout_s=DEADLINE_S)
        client.insert(STEP, {"full": 1.0})
        waiting = Background(insert_once, client)
        wait_until(lambda: client.status().tables["full"].inserting.waiting == 1)
        program.signal(signal.SIGSTOP)
        text = "The server does not answer other calls either."
        wait_until(lambda: any(line.endswith(text) for line in log()))
        program.signal(signal.SIGCONT)
        client.sample_batch("full", 1)
        waiting.result()
        program.tell()
        assert program.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), "after_s must be a number of seconds over 0, got 0"),
        (("1",), "after_s must be a number of seconds over 0, got '1'"),
        ((True,), "after_s must be a number of seconds over 0, got True"),
        ((1.0, None), "repeat_s must be a number of seconds over 0, got None"),
        ((1.0, float("nan")), "repeat_s must be a number of seconds over 0, got nan"),
    ],
)
def test_arguments_are_checked(arguments, text):
    with pytest.raises(InvalidArgumentError) as caught:
        reverb.logging.report_waits(*arguments)
    assert str(caught.value) == text


PROGRAM = """
import reverb
with reverb.Server([reverb.Table.queue("t", 5)]) as server:
    client = reverb.Client(f"127.1:{server.port}")
    try:
        client.sample_batch("t", 1, timeout_ms=700)
    except reverb.errors.DeadlineExceededError:
        print("late")
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.2", "1 call waits for samples of table t"),
        ("soon", 'REVERB_REPORT_WAITS_S must be a number of seconds over 0, or never, got "soon"'),
        ("never", ""),
    ],
)
def test_the_environment_sets_when(value, expected):
    with Program(PROGRAM, REVERB_REPORT_WAITS_S=value) as program:
        assert program.line() == "late"
        assert program.ended() == 0
    assert expected in program.errors
    assert expected or "wait" not in program.errors
