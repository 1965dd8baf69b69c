# SPDX-License-Identifier: Apache-2.0
"""Counted calls: `reverb_calls_total` has a stream once, `reverb_requests_total` each request."""

import grpc
import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.core import protos
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


def test_a_sample_stream_cancelled_after_its_answers_is_ok(server, wire):
    stream = wire.sample_stream()
    for _ in range(3):
        stream.send(sample("t", 4))
        stream.samples(4)
    assert streams(server) == {}, "it counts when it ends"
    stream.cancel()
    ends_with(server, "SampleStream", "OK")


def test_a_sample_stream_that_never_asked_is_ok(server, wire):
    stream = wire.sample_stream()
    wait_until(lambda: server.status().traffic.streams["sample"] == 1)
    stream.cancel()
    ends_with(server, "SampleStream", "OK")


def test_a_sample_stream_that_is_cancelled_while_it_waits_is_not(server, wire):
    stream = wire.sample_stream()
    stream.send(sample("t", 4))
    stream.samples(4)
    stream.send(sample("queue"))
    wait_until(lambda: server.status().tables["queue"].sampling.waiting == 1)
    stream.cancel()
    ends_with(server, "SampleStream", "CANCELLED")


def test_a_sample_stream_that_timed_out_tells_it(server, wire):
    stream = wire.sample_stream()
    stream.send(sample("queue", timeout_ms=10))
    assert stream.status()[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    ends_with(server, "SampleStream", "DEADLINE_EXCEEDED")


def test_a_bad_request_after_good_ones_tells_it(server, wire):
    stream = wire.sample_stream()
    stream.send(sample("t", 4))
    stream.samples(4)
    stream.send(b"\xff\xff")
    assert stream.status()[0] == grpc.StatusCode.INVALID_ARGUMENT
    ends_with(server, "SampleStream", "INVALID_ARGUMENT")


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


def test_a_stream_that_a_drain_ends_is_ok_and_the_client_is_told(server, wire):
    stream = wire.sample_stream()
    stream.send(sample("t", 4))
    stream.samples(4)
    reverb.Client(f"127.1:{server.port}").drain(timeout_ms=None)
    assert stream.status()[0] == grpc.StatusCode.UNAVAILABLE
    ends_with(server, "SampleStream", "OK")


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


def test_a_stream_of_a_missing_table_fails_beside_a_good_one(server, wire):
    # A stream that is cancelled before it has sent anything may never reach the server.
    first = wire.sample_stream()
    first.send(sample("t", 4))
    first.samples(4)
    first.cancel()
    message = protos.SampleStreamRequest(table="missing", num_samples=1)
    stream = wire.sample_stream()
    stream.send(message)
    assert stream.status()[0] == grpc.StatusCode.NOT_FOUND
    wait_until(lambda: sum(streams(server).values()) == 2)
    assert streams(server) == {("SampleStream", "OK"): 1, ("SampleStream", "NOT_FOUND"): 1}


def test_each_request_of_a_sample_stream_counts(server, wire):
    stream = wire.sample_stream()
    for _ in range(15):
        stream.send(sample("t", 4))
        stream.samples(4)
    # It counts when it is answered, which is after the last sample was sent.
    wait_until(lambda: requests(server) == {("SampleStream", "OK"): 15})
    stream.send(sample("queue", timeout_ms=10))
    assert stream.status()[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    ends_with(server, "SampleStream", "DEADLINE_EXCEEDED")
    # The reader got what it asked for: nothing came in that time.
    assert requests(server) == {("SampleStream", "OK"): 16}


def test_a_request_of_a_peer_that_leaves_is_no_failure(server, wire):
    stream = wire.sample_stream()
    stream.send(sample("queue"))
    wait_until(lambda: server.status().tables["queue"].sampling.waiting == 1)
    stream.cancel()
    ends_with(server, "SampleStream", "CANCELLED")
    assert requests(server) == {}


def test_a_request_that_fails_counts_with_its_code(server, wire):
    stream = wire.sample_stream()
    stream.send(sample("t", 4))
    stream.samples(4)
    stream.send(sample("missing"))
    assert stream.status()[0] == grpc.StatusCode.NOT_FOUND
    ends_with(server, "SampleStream", "NOT_FOUND")
    expected = {("SampleStream", "OK"): 1, ("SampleStream", "NOT_FOUND"): 1}
    assert requests(server) == expected


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


def test_a_writer_that_is_killed_fails_no_request(server):
    source = f"{PROGRAM}writer = write('queue', 4)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    with Program(source, f"localhost:{server.port}") as program:
        assert program.line() == "ready"
        wait_until(lambda: server.status().tables["queue"].inserting.waiting)
        program.kill()
    ends_with(server, "InsertStream", "UNAVAILABLE")
    assert not any(code != "OK" for _, code in requests(server))


def test_a_call_without_a_stream_is_one_request(server, wire):
    client = reverb.Client(f"127.1:{server.port}")
    client.reset("t")
    with pytest.raises(reverb.errors.TableNotFoundError):
        client.reset("missing")
    counted = server.status().traffic.requests
    assert [counted["Reset", code] for code in ("OK", "NOT_FOUND")] == [1, 1]
