# SPDX-License-Identifier: Apache-2.0
"""Peers that would fill the memory of a server: it keeps to its budget, and serves others."""

import time

import grpc
import numpy as np
import pytest

from reverb.core import protos
from support.served_apart import served_apart
from support.waiting import PATIENCE, wait_until
from support.wire import messages
from support.wire.messages import insert, sample
from support.wire.raw_http2 import Http2
from support.wire.wire_client import SERVICE, WireClient

MIB = 2**20
BUDGET = 256 * MIB
RNG = np.random.default_rng(0)

TABLES = 'testing.table("table", max_size=10**6), reverb.Table.queue("queue", 10**6)'
OPTIONS = f"max_bytes={BUDGET}, limits=reverb.Limits(unread_timeout_s=1)"


def noise(key, size):
    """A chunk of one step that does not compress."""
    return messages.chunk(key, RNG.integers(0, 256, (1, size), dtype=np.uint8))


class Served:
    """A server whose memory is watched."""

    def __init__(self, server):
        self.port = server.port
        self.address = server.address
        self.client = server.client
        self._memory = server.memory
        self.client.insert(np.zeros(3), {"table": 1.0})
        self._idle = server.memory()

    def check_memory(self):
        """Checks that the process holds at most a quarter more than its budget."""
        used = self._memory() - self._idle
        assert used < 1.25 * BUDGET, f"{used:,} bytes are used: {self.client.status()}"

    def check_others(self):
        """Checks that another client makes progress."""
        start = time.monotonic()
        self.client.insert(np.zeros(3), {"table": 1.0})
        assert len(list(self.client.sample("table", 1))) == 1
        assert time.monotonic() - start < 15 * PATIENCE


@pytest.fixture
def served():
    with served_apart(TABLES, OPTIONS) as server:
        yield Served(server)


def test_streams_that_only_send_chunks_are_ended(served):
    for _ in range(100):
        served.client.insert(RNG.integers(0, 256, 100_000, dtype=np.uint8), {"table": 1.0})
    with WireClient(served.address) as wire:
        # Each stays below its own limit, which is 64 MiB here.
        streams = [wire.insert_stream() for _ in range(5)]
        for key in range(75):
            streams[key % 5].send(insert([noise(key, 4 * MIB)]))
            served.check_memory()
        wait_until(lambda: any(stream.has_ended for stream in streams))
        wait_until(lambda: served.client.status().memory.total < 0.9 * BUDGET)
        served.check_memory()
        served.check_others()
        assert served.client.server_info()["table"].current_size == 102
        ended = [stream.status() for stream in streams if stream.has_ended]
        assert ended
        for code, text in ended:
            assert code == grpc.StatusCode.UNAVAILABLE
            assert "it held the most chunks that no item refers to" in text
            assert "the memory of the server is used up" in text


@pytest.mark.parametrize("call", ["InsertStream", "MutatePriorities"])
def test_many_calls_with_a_part_of_a_message_each(served, call):
    with Http2(served.port) as attacker:
        for _ in range(500):
            stream = attacker.open(call)
            attacker.send_part(stream, bytes(MIB))
            served.check_memory()
        attacker.ping()
        wait_until(lambda: served.client.status().memory.total < BUDGET)
        served.check_memory()
        served.check_others()
    wait_until(lambda: served.client.status().memory.streams == 0)


def test_a_large_message_beside_many_parts_gets_the_reason(served):
    update = protos.MutatePrioritiesRequest(table="table")
    update.updates.extend(protos.KeyWithPriority(key=key, priority=1) for key in range(10**5))
    with Http2(served.port) as attacker:
        for _ in range(100):
            attacker.send_part(attacker.open("MutatePriorities"), bytes(MIB))
        attacker.ping()
        with WireClient(served.address) as wire, pytest.raises(grpc.RpcError) as error:
            wire.unary("MutatePriorities", update)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert (
            "A large message is refused: messages that have not arrived yet take more than 12 % "
            "of the memory of the server (268,435,456 bytes, max_bytes)."
        ) in error.value.details()


def test_a_reader_that_reads_nothing_while_the_table_turns_over(served):
    for _ in range(200):
        served.client.insert(RNG.integers(0, 256, 100_000, dtype=np.uint8), {"table": 1.0})
    with Http2(served.port) as attacker:
        reader = attacker.open("SampleStream")
        attacker.send(reader, sample("table", 10**6).SerializeToString())
        for _ in range(2000):
            served.client.insert(RNG.integers(0, 256, 100_000, dtype=np.uint8), {"table": 1.0})
        served.check_memory()
        # The limit of the server is 1 s; what waited for the reader is free then.
        wait_until(lambda: served.client.status().memory.other == 0)
        served.check_others()


def test_a_reader_that_reads_nothing_gets_the_limit(served):
    for _ in range(20):
        served.client.insert(RNG.integers(0, 256, MIB, dtype=np.uint8), {"table": 1.0})
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(served.address, options=unlimited) as channel:
        call = channel.stream_stream(SERVICE + "SampleStream")
        responses = call(iter([sample("table", 10**5).SerializeToString()]))
        next(responses)
        # It reads nothing more until the server has given up.
        wait_until(lambda: served.client.status().memory.total < 30 * MIB)
        time.sleep(2)
        with pytest.raises(grpc.RpcError):
            list(responses)
        code, text = responses.code(), responses.details()
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "The reader took nothing for 1 s" in text
    assert "Limits.unread_timeout_s" in text
