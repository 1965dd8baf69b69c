# SPDX-License-Identifier: Apache-2.0
"""Counted calls: `reverb_calls_total` has a stream once, `reverb_requests_total` each request."""

import grpc
import numpy as np
import pytest

import reverb
from reverb import testing
from support.programs import Program
from support.waiting import wait_until
from support.wire.messages import insert, item, numbers, sample
from support.wire.shard_calls import ShardCalls
from support.wire.wire_client import WireClient

# Code of another process that uses `client`, before it is killed.
PROGRAM = """
import sys, time
import numpy as np
import reverb
client = reverb.Client(sys.argv[1])
def write(table, count):
    writer = client.trajectory_writer(1)
    for _ in range(count):
        writer.append({"x": np.zeros(3)})
        writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})
    return writer
"""


@pytest.fixture
def server():
    tables = [testing.table("t"), reverb.Table.queue("queue", 2)]
    with reverb.Server(tables, http_port=0) as server:
        server.localhost_client().insert_batch([np.arange(9)], {"t": np.ones(9)})
        yield server


@pytest.fixture
def wire(server):
    with WireClient(f"127.0.0.1:{server.port}") as wire:
        yield wire


def streams(server):
    """How many streams have ended, by method and code."""
    methods = {"SampleStream", "InsertStream", "Scan", "Watch"}
    calls = server.status().traffic.calls
    return {key: count for key, count in calls.items() if key[0] in methods and count}


def requests(server):
    """How many requests of streams were answered or have failed, by method and code."""
    of_streams = server.status().traffic.requests.items()
    return {key: count for key, count in of_streams if key[0] in {"SampleStream", "InsertStream"}}


def ends_with(server, method, code):
    """Waits until the only stream has ended, and checks how."""
    wait_until(lambda: streams(server))
    assert streams(server) == {(method, code): 1}


@pytest.fixture
def answered(wire):
    """A sample stream whose first request was answered."""
    stream = wire.sample_stream()
    stream.send(sample("t", 4))
    stream.samples(4)
    return stream


def cancel(server, stream):
    stream.cancel()


def cancel_while_it_waits(server, stream):
    stream.send(sample("queue"))
    wait_until(lambda: server.status().tables["queue"].sampling.waiting == 1)
    stream.cancel()


def time_out(server, stream):
    stream.send(sample("queue", timeout_ms=10))
    assert stream.status()[0] == grpc.StatusCode.DEADLINE_EXCEEDED


def send_nonsense(server, stream):
    stream.send(b"\xff\xff")
    assert stream.status()[0] == grpc.StatusCode.INVALID_ARGUMENT


def ask_for_a_missing_table(server, stream):
    stream.send(sample("missing"))
    assert stream.status()[0] == grpc.StatusCode.NOT_FOUND


def drain(server, stream):
    reverb.Client(f"127.1:{server.port}").drain(timeout_ms=None)
    assert stream.status()[0] == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("end", "code", "counted"),
    [
        (cancel, "OK", {"OK": 1}),
        # A request of a peer that leaves is no failure.
        (cancel_while_it_waits, "CANCELLED", {"OK": 1}),
        # The reader got what it asked for: nothing came in that time.
        (time_out, "DEADLINE_EXCEEDED", {"OK": 2}),
        (send_nonsense, "INVALID_ARGUMENT", {"OK": 1, "INVALID_ARGUMENT": 1}),
        (ask_for_a_missing_table, "NOT_FOUND", {"OK": 1, "NOT_FOUND": 1}),
        (drain, "OK", {"OK": 1}),
    ],
)
def test_a_sample_stream_counts_once_and_each_request(server, answered, end, code, counted):
    assert streams(server) == {}, "it counts when it ends"
    end(server, answered)
    ends_with(server, "SampleStream", code)
    assert requests(server) == {("SampleStream", code): n for code, n in counted.items()}


def test_a_sample_stream_that_never_asked_is_ok(server, wire):
    stream = wire.sample_stream()
    wait_until(lambda: server.status().traffic.streams["sample"] == 1)
    stream.cancel()
    ends_with(server, "SampleStream", "OK")


def test_an_insert_stream_with_everything_confirmed_is_ok(server, wire):
    stream = wire.insert_stream()
    stream.send(insert([numbers(1)], [item(1, "t", (1, 0, 3, 0))], keep=[1]))
    assert stream.confirmed(1) == [1]
    stream.send(insert([numbers(2)]))
    stream.cancel()
    ends_with(server, "InsertStream", "OK")


def test_an_insert_stream_with_something_unconfirmed_is_not(server, wire):
    stream = wire.insert_stream()
    items = [item(key, "queue", (1, 0, 3, 0)) for key in range(3)]
    stream.send(insert([numbers(1)], items))
    assert stream.confirmed(2) == [0, 1]
    stream.cancel()
    ends_with(server, "InsertStream", "CANCELLED")


def test_a_watch_has_no_other_end(server):
    with ShardCalls(server.port) as calls:
        next(calls.watch())
    ends_with(server, "Watch", "OK")


@pytest.mark.parametrize(
    ("does", "method", "code"),
    [
        ("client.sample_batch('t', 4)", "SampleStream", "OK"),
        ("list(client.sample('t', 5))", "SampleStream", "OK"),
        # With more samples the process may be killed while it waits for those after the first.
        ("samples = client.sample('t', 1); next(samples)", "SampleStream", "OK"),
        ("list(client.scan('t'))", "Scan", "OK"),
        ("client.insert_batch({'x': np.zeros((9, 3))}, {'t': 1.0})", "InsertStream", "OK"),
        ("writer = write('t', 3); writer.flush()", "InsertStream", "OK"),
        ("writer = write('queue', 4)", "InsertStream", "UNAVAILABLE"),
    ],
)
def test_a_stream_whose_process_is_killed_counts_once(server, does, method, code):
    source = f"{PROGRAM}{does}\nprint('ready', flush=True)\ntime.sleep(600)\n"
    with Program(source, f"localhost:{server.port}") as program:
        assert program.line() == "ready"
        if code != "OK":
            # One or two: the server reads no message behind one whose items wait.
            wait_until(lambda: server.status().tables["queue"].inserting.waiting)
        program.kill()
    ends_with(server, method, code)
    assert not any(code != "OK" for _, code in requests(server)), "no request has failed"


def test_a_message_of_items_counts_when_all_are_confirmed(server, wire):
    stream = wire.insert_stream()
    stream.send(insert([numbers(1)], [item(1, "t", (1, 0, 3, 0))], keep=[1]))
    stream.send(insert([numbers(2)]))
    assert stream.confirmed(1) == [1]
    wait_until(lambda: requests(server) == {("InsertStream", "OK"): 1})
    items = [item(key, "queue", (1, 0, 3, 0)) for key in range(3)]
    stream.send(insert([numbers(1)], items))
    assert stream.confirmed(2) == [0, 1]
    server.localhost_client().sample_batch("queue", 1)
    assert stream.confirmed(1) == [2]
    wait_until(lambda: requests(server) == {("InsertStream", "OK"): 2})


def test_a_call_without_a_stream_is_one_request(server, wire):
    client = reverb.Client(f"127.1:{server.port}")
    client.reset("t")
    with pytest.raises(reverb.errors.TableNotFoundError):
        client.reset("missing")
    counted = server.status().traffic.requests
    assert [counted["Reset", code] for code in ("OK", "NOT_FOUND")] == [1, 1]
