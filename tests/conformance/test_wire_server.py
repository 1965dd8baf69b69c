# SPDX-License-Identifier: Apache-2.0
"""The server, driven message by message: what old clients rely on, and what it must refuse."""

import os
import time

import grpc
import numpy as np
import pytest

from reverb.core import protos
from support.compared_packages import PACKAGES
from support.waiting import PATIENCE, wait_until
from support.wire import messages as m
from support.wire.wire_client import WireClient

Code = grpc.StatusCode

LIMITER_TIMEOUT = "Rate Limiter: Timeout exceeded before the right to insert was acquired."

TABLES = [
    {"name": "fifo"},
    {"name": "lifo", "sampler": "Lifo"},
    {"name": "heap", "sampler": "MaxHeap"},
    {"name": "prio", "sampler": "Prioritized 0.8"},
    {"name": "queue", "max_size": 5, "max_times_sampled": 1, "limiter": ["Queue", 5]},
]

pytestmark = pytest.mark.parametrize("server", PACKAGES)


@pytest.fixture
def client(server, serve):
    """A raw client of a server with `TABLES`."""
    with WireClient(serve(server, *TABLES)) as wire_client:
        yield wire_client


@pytest.fixture
def sizes(client, server, worker_of):
    """Returns the current size of a table."""
    names = [table["name"] for table in TABLES]
    worker = worker_of(server, "server")
    return lambda name: worker.call("table_counts", table=names.index(name))["size"]


def put(client, *keys, table="fifo", **fields):
    """Inserts one item per key, whose value is the key."""
    stream = client.insert_stream()
    for key in keys:
        chunk = m.numbers(1000 + key, 1, first=key)
        stream.send(m.insert([chunk], [m.item(key, table, (1000 + key, 0, 1, 0), **fields)]))
    stream.confirmed(len(keys))
    stream.cancel()


def take(client, table, count=1):
    """Samples items."""
    stream = client.sample_stream()
    stream.send(m.sample(table, count))
    samples = stream.samples(count)
    stream.cancel()
    return samples


@pytest.mark.parametrize("keep", [[], [1]])
def test_s1_message_without_chunks_and_items(server, client, keep):
    stream = client.insert_stream()
    stream.send(m.insert(keep=keep))
    assert stream.status()[0] is Code.INVALID_ARGUMENT


def test_s2_item_is_confirmed(server, client):
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], [m.item(9, "fifo", (5, 0, 3, 0))], keep=[5]))
    assert stream.confirmed(1) == [9]
    # The chunk is still held, so another item may use it.
    stream.send(m.insert([], [m.item(10, "fifo", (5, 1, 2, 0))], keep=[5]))
    assert stream.confirmed(1) == [10]
    stream.cancel()


def test_s3_item_of_a_chunk_that_was_not_sent(server, client):
    stream = client.insert_stream()
    stream.send(m.insert([], [m.item(1, "fifo", (99, 0, 1, 0))]))
    code, text = stream.status()
    assert code is Code.INTERNAL
    assert "99" in text


def test_s4_unknown_table(server, client):
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], [m.item(1, "nope", (5, 0, 1, 0))]))
    code, text = stream.status()
    assert code is Code.NOT_FOUND
    assert "nope" in text


@pytest.mark.parametrize("keep", [[5, 1234], [5, 5]], ids=["unknown", "repeated"])
def test_s5_wrong_keep_list(server, client, keep):
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], [m.item(1, "fifo", (5, 0, 1, 0))], keep=keep))
    assert stream.status()[0] is Code.FAILED_PRECONDITION


def test_s6_keep_list_of_a_message_without_items_is_ignored(server, client):
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], keep=[1234]))
    stream.send(m.insert([], [m.item(103, "fifo", (5, 0, 1, 0))], keep=[5]))
    assert stream.confirmed(1) == [103]
    stream.cancel()


def test_s7_chunk_is_gone_when_it_was_not_kept(server, client):
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], [m.item(1, "fifo", (5, 0, 1, 0))]))
    assert stream.confirmed(1) == [1]
    stream.send(m.insert([], [m.item(2, "fifo", (5, 0, 1, 0))]))
    assert stream.status()[0] is Code.INTERNAL


def test_s8_first_bytes_of_a_repeated_chunk_count(server, client):
    stream = client.insert_stream()
    chunks = [m.numbers(7, first=1), m.numbers(7, first=50)]
    stream.send(m.insert(chunks, [m.item(1, "fifo", (7, 0, 3, 0))], keep=[7]))
    stream.confirmed(1)
    stream.cancel()
    ((_, stored),) = take(client, "fifo")
    assert stored == chunks[:1]


def test_s9_streams_do_not_share_chunk_keys(server, client):
    streams = [client.insert_stream() for _ in range(2)]
    chunks = [m.numbers(7, first=1), m.numbers(7, first=50)]
    for key, (stream, chunk) in enumerate(zip(streams, chunks, strict=True)):
        stream.send(m.insert([chunk], [m.item(key, "lifo", (7, 0, 3, 0))], keep=[7]))
        stream.confirmed(1)
        ((info, stored),) = take(client, "lifo")
        assert (info.item.key, stored) == (key, [chunk])
    for stream in streams:
        stream.cancel()


def test_s10_same_item_key_again_only_changes_the_priority(server, client):
    stream = client.insert_stream()
    first, second = m.numbers(7), m.numbers(8, first=50)
    stream.send(m.insert([first], [m.item(111, "fifo", (7, 0, 3, 0))]))
    assert stream.confirmed(1) == [111]
    stream.send(m.insert([second], [m.item(111, "fifo", (8, 0, 3, 0), priority=5.5)]))
    assert stream.confirmed(1) == [111]
    stream.cancel()
    ((info, stored),) = take(client, "fifo")
    assert (info.item.priority, info.table_size, stored) == (5.5, 1, [first])


def test_s11_server_sets_the_time_and_keeps_the_count(server, client):
    stream = client.insert_stream()
    item = m.item(112, "fifo", (7, 0, 1, 0), times_sampled=41)
    item.inserted_at.seconds = 5
    stream.send(m.insert([m.numbers(7)], [item]))
    stream.confirmed(1)
    stream.cancel()
    ((info, _),) = take(client, "fifo")
    assert info.item.times_sampled == 42
    assert info.item.inserted_at.seconds > 1_000_000_000


@pytest.mark.parametrize("columns", [[], [[]]], ids=["no columns", "no slices"])
def test_s12_empty_trajectory(server, client, columns):
    item = protos.PrioritizedItem(key=1, table="fifo", priority=1.0)
    item.flat_trajectory.CopyFrom(m.trajectory(columns))
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], [item]))
    assert stream.status()[0] is Code.INVALID_ARGUMENT


def test_s13_several_items_of_two_tables_in_one_message(server, client):
    items = [m.item(key, table, (5, 0, 1, 0)) for key, table in ((1, "fifo"), (2, "lifo"))]
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], items))
    assert sorted(stream.confirmed(2)) == [1, 2]
    stream.cancel()


def test_s16_half_close_while_an_item_waits(server, client, sizes):
    put(client, *range(5), table="queue")
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(30)], [m.item(300, "queue", (30, 0, 1, 0))]))
    stream.half_close()
    take(client, "queue")
    if server == "ours":
        # The peer may end the stream without a confirmation.
        assert stream.confirmed(1) == [300]
    assert stream.status()[0] is Code.OK
    wait_until(lambda: sizes("queue") == 5)
    assert [info.item.key for info, _ in take(client, "queue", 5)][-1] == 300


def test_s17_cancel_while_an_item_waits(server, client, sizes):
    put(client, *range(5), table="queue")
    stream = client.insert_stream()
    chunks, items = [m.numbers(30)], [m.item(300, "fifo", (30, 0, 1, 0))]
    # The item of the other table, confirmed, shows that the server has read the message.
    items.insert(0, m.item(301, "queue", (30, 0, 1, 0)))
    stream.send(m.insert(chunks, items))
    assert stream.confirmed(1) == [300]
    stream.cancel()
    take(client, "queue")
    wait_until(lambda: sizes("queue") == 5)


def test_s18_compressed_message(server, client):
    stream = client.insert_stream(grpc.Compression.Gzip)
    chunk = m.chunk(5, np.zeros((3, 1000), np.int32))
    stream.send(m.insert([chunk], [m.item(1, "fifo", (5, 0, 3, 0))]))
    assert stream.confirmed(1) == [1]
    stream.cancel()
    assert take(client, "fifo")[0][1] == [chunk]


@pytest.mark.parametrize("count", [0, -1])
def test_s19_number_of_samples_must_be_positive(server, client, count):
    stream = client.sample_stream()
    stream.send(m.sample("fifo", count))
    assert stream.status()[0] is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("timeout_ms", [None, -1])
def test_s20_no_timeout_waits(server, client, timeout_ms):
    stream = client.sample_stream()
    stream.send(m.sample("fifo", 1, timeout_ms))
    assert stream.is_silent(0.3)
    put(client, 1)
    ((info, _),) = stream.samples(1)
    assert info.item.key == 1
    assert info.rate_limited
    stream.cancel()


def test_s21_timeout_has_the_text_that_clients_match(server, client):
    started = time.monotonic()
    stream = client.sample_stream()
    stream.send(m.sample("fifo", 1, 100))
    code, text = stream.status()
    assert code is Code.DEADLINE_EXCEEDED
    assert LIMITER_TIMEOUT in text
    assert 0.09 < time.monotonic() - started < 5 * PATIENCE


def test_s22_what_there_is_comes_before_the_timeout(server, client):
    put(client, 1, table="queue")
    stream = client.sample_stream()
    stream.send(m.sample("queue", 3, 300))
    ((info, _),) = stream.samples(1)
    assert info.item.key == 1
    code, text = stream.status()
    assert code is Code.DEADLINE_EXCEEDED
    assert LIMITER_TIMEOUT in text


def test_s23_requests_are_answered_in_order(server, client):
    put(client, 1)
    put(client, 2, table="lifo")
    stream = client.sample_stream()
    stream.send(m.sample("fifo", 2))
    stream.send(m.sample("lifo", 1))
    assert [info.item.key for info, _ in stream.samples(3)] == [1, 1, 2]
    stream.half_close()
    assert stream.status()[0] is Code.OK


def test_s24_half_close_after_the_request(server, client):
    put(client, 1)
    stream = client.sample_stream()
    stream.send(m.sample("fifo", 3))
    stream.half_close()
    responses = stream.receive_all()
    assert sum(entry.end_of_sequence for r in responses for entry in r.entries) == 3
    assert stream.status()[0] is Code.OK


def test_s25_large_item_comes_in_several_messages(server, client):
    rows = np.random.default_rng(0).integers(0, 256, (7, 1, 600 * 1024), np.uint8)
    chunks = [m.chunk(key, row) for key, row in enumerate(rows, 1)]
    stream = client.insert_stream()
    stream.send(m.insert(chunks, [m.item(9, "fifo", *((key, 0, 1, 0) for key in range(1, 8)))]))
    stream.confirmed(1)
    stream.cancel()
    stream = client.sample_stream()
    stream.send(m.sample("fifo"))
    stream.half_close()
    responses = stream.receive_all()
    entries = [entry for response in responses for entry in response.entries]
    assert len(responses) >= 2
    assert [entry.HasField("info") for entry in entries] == [True] + [False] * (len(entries) - 1)
    assert [entry.end_of_sequence for entry in entries] == [False] * (len(entries) - 1) + [True]
    assert [chunk for entry in entries for chunk in entry.data] == chunks


def test_s26_no_pointer_is_handed_out(server, client, worker_of):
    stream = client.connection_stream()
    stream.send(protos.InitializeConnectionRequest(pid=os.getpid(), table_name="fifo"))
    assert [answer.address for answer in stream.receive_all()] in ([], [0])
    assert stream.status()[0] in (Code.OK, Code.UNIMPLEMENTED)


def test_s27_deletes_come_before_updates(server, client, sizes):
    put(client, 111, 112, table="heap")
    request = protos.MutatePrioritiesRequest(table="heap", delete_keys=[111])
    request.updates.add(key=111, priority=9.0)
    client.unary("MutatePriorities", request)
    assert sizes("heap") == 1
    assert take(client, "heap")[0][0].item.key == 112


@pytest.mark.parametrize("priority", [float("nan"), -1.0])
def test_s28_prioritized_table_refuses_bad_updates(server, client, priority):
    put(client, 1, table="prio")
    request = protos.MutatePrioritiesRequest(table="prio")
    request.updates.add(key=1, priority=priority)
    with pytest.raises(grpc.RpcError) as caught:
        client.unary("MutatePriorities", request)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert take(client, "prio")[0][0].probability == 1.0


@pytest.mark.parametrize("priority", [float("nan"), -1.0])
def test_prioritized_table_refuses_bad_inserts(server, client, priority):
    if server == "peer":
        pytest.skip("it would end the peer's table (D-01 of its defects)")
    stream = client.insert_stream()
    stream.send(m.insert([m.numbers(5)], [m.item(1, "prio", (5, 0, 1, 0), priority=priority)]))
    assert stream.status()[0] is Code.INVALID_ARGUMENT
    put(client, 2, table="prio")
    assert take(client, "prio")[0][0].item.key == 2


@pytest.mark.parametrize("method", ["MutatePriorities", "Reset", "SampleStream", "InsertStream"])
def test_s29_unknown_table_is_not_found(server, client, method):
    if method == "SampleStream":
        stream = client.sample_stream()
        stream.send(m.sample("nope"))
        code, text = stream.status()
    elif method == "InsertStream":
        stream = client.insert_stream()
        stream.send(m.insert([m.numbers(5)], [m.item(1, "nope", (5, 0, 1, 0))]))
        code, text = stream.status()
    else:
        kind = {"MutatePriorities": protos.MutatePrioritiesRequest, "Reset": protos.ResetRequest}
        with pytest.raises(grpc.RpcError) as caught:
            client.unary(method, kind[method](table="nope"))
        code, text = caught.value.code(), caught.value.details()
    assert code is Code.NOT_FOUND
    assert "nope" in text


def test_s31_message_of_more_than_forty_mebibytes(server, client):
    row = np.random.default_rng(0).integers(0, 256, (1, 1024 * 1024), np.uint8)
    chunks = [m.chunk(key, row) for key in range(1, 46)]
    stream = client.insert_stream()
    stream.send(m.insert(chunks[:42]))
    item = m.item(9, "fifo", *((key, 0, 1, 0) for key in range(1, 46)))
    stream.send(m.insert(chunks[42:], [item]))
    assert stream.confirmed(1) == [9]
    stream.cancel()
    ((_, stored),) = take(client, "fifo")
    assert [chunk.chunk_key for chunk in stored] == list(range(1, 46))
    assert stored[44] == chunks[44]


def test_many_tiny_samples_come_in_few_messages(server, client):
    put(client, 1)
    stream = client.sample_stream()
    stream.send(m.sample("fifo", 2000))
    stream.half_close()
    responses = stream.receive_all()
    assert sum(len(response.entries) for response in responses) == 2000
    assert len(responses) <= 20


def test_undecodable_message(server, client):
    stream = client.insert_stream()
    stream.send(b"\xff\xff\xff")
    code, _ = stream.status()
    # The peer takes it for the end of the stream.
    assert code in ((Code.OK,) if server == "peer" else (Code.INVALID_ARGUMENT, Code.INTERNAL))
    put(client, 1)


def test_unknown_method(server, client):
    with pytest.raises(grpc.RpcError) as caught:
        client.unary("Nope", b"")
    assert caught.value.code() is Code.UNIMPLEMENTED


def test_streams_without_messages_end_well(server, client):
    for stream in (client.insert_stream(), client.sample_stream()):
        stream.half_close()
        assert stream.status()[0] is Code.OK


def test_several_slices_of_one_chunk_in_any_order(server, client):
    chunk = m.numbers(50, 4, first=10)
    slices = [(50, 3, 1, 0), (50, 0, 2, 0), (50, 3, 1, 0)]
    stream = client.insert_stream()
    stream.send(m.insert([chunk], [m.item(500, "fifo", *slices)]))
    stream.confirmed(1)
    stream.cancel()
    ((info, stored),) = take(client, "fifo")
    assert stored == [chunk]
    (column,) = info.item.flat_trajectory.columns
    assert [(s.offset, s.length) for s in column.chunk_slices] == [(3, 1), (0, 2), (3, 1)]


def test_server_info_counts(server, client):
    put(client, 1, 2)
    take(client, "fifo")
    answer = client.unary("ServerInfo", protos.ServerInfoRequest(), protos.ServerInfoResponse)
    again = client.unary("ServerInfo", protos.ServerInfoRequest(), protos.ServerInfoResponse)
    assert answer.tables_state_id == again.tables_state_id
    assert answer.tables_state_id.high or answer.tables_state_id.low
    info = {table.name: table for table in answer.table_info}
    assert sorted(info) == sorted(table["name"] for table in TABLES)
    fifo = info["fifo"]
    assert (fifo.current_size, fifo.num_episodes, fifo.num_unique_samples) == (2, 1, 1)
    assert fifo.rate_limiter_info.insert_stats.completed == 2
    assert fifo.rate_limiter_info.sample_stats.completed == 1
    assert fifo.sampler_options.is_deterministic
    assert not info["prio"].sampler_options.is_deterministic
    # A counter of zero is there all the same.
    assert info["heap"].rate_limiter_info.HasField("insert_stats")
