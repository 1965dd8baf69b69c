# SPDX-License-Identifier: Apache-2.0
"""Limits of memory: of a table, of a server, of a writer; and what `status` tells about them."""

import re
import threading
import time

import grpc
import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb._checks import byte_sizes
from reverb._server.table import arguments_of
from reverb.core import native
from reverb.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from support.hosts import on_both_hosts
from support.waiting import DEADLINE_S
from support.waiting import wait_until as until
from support.wire import messages
from support.wire.messages import insert, item
from support.wire.wire_client import WireClient
from support.writer_kinds import batched, each_of, legacy, sequence, structured, trajectory

KIB = 2**10
MIB = 2**20
RNG = np.random.default_rng(0)


def noise(size):
    """A step that does not compress."""
    return {"data": RNG.integers(0, 256, size, dtype=np.uint8)}


def numbers(client, table, count):
    """The first columns of sampled items."""
    samples = client.sample(table, count, emit_timesteps=False)
    return [int(np.squeeze(sample.data[-1])) for sample in samples]


@pytest.fixture
def serve():
    """Starts a server; gives it and a client."""
    running = []

    def start(host, *tables, **options):
        server = reverb.Server(list(tables), host="127.0.0.1", **options)
        running.append(server)
        return server, reverb.Client(f"{host}:{server.port}")

    yield start
    for server in running:
        server.stop()


class TestSizes:
    @pytest.mark.parametrize(
        ("value", "size"),
        [
            (None, None),
            (1, 1),
            (np.int64(7), 7),
            ("4096", 4096),
            ("12GiB", 12 * 2**30),
            ("1.5 MB", 1_500_000),
            (" 3kB ", 3000),
            ("2TiB", 2 * 2**40),
        ],
    )
    def test_numbers_and_units(self, value, size):
        assert byte_sizes.parse_byte_size("max_bytes", value) == size
        assert byte_sizes.parse_byte_size_or_share("max_bytes", value) == size

    def test_a_share_is_one_of_what_the_process_may_use(self):
        memory = native.process_memory()
        assert memory is not None
        assert byte_sizes.parse_byte_size_or_share("max_bytes", "50%") == memory // 2
        server = reverb.Server([testing.table()], max_bytes="80%")
        assert server.status().memory.limit == int(memory * 80 / 100)
        server.stop()

    def test_a_share_of_what_the_system_does_not_tell(self, monkeypatch):
        monkeypatch.setattr(native, "process_memory", lambda: None)
        with pytest.raises(FailedPreconditionError) as error:
            reverb.Server([testing.table()], max_bytes="80%")
        assert str(error.value) == (
            "max_bytes='80%' cannot be used here: this system does not say how much memory the "
            "process may use. Give a number of bytes."
        )

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "max_bytes must be at least 1 or None, got 0"),
            ("0GiB", "max_bytes must be at least 1 or None, got 0GiB"),
            (-5, "max_bytes must be at least 1 or None, got -5"),
            (2**63, f"max_bytes must be below 8 EiB, got {2**63}"),
            (
                "12 gigs",
                'max_bytes must be a number of bytes or a size such as "12GiB", got "12 gigs"',
            ),
            (
                "80%",
                "max_bytes of a table cannot be a share; give bytes, or max_bytes='80%' of the "
                "Server",
            ),
        ],
    )
    def test_a_table_refuses_what_is_no_size(self, value, text):
        with pytest.raises(InvalidArgumentError) as error:
            testing.table(max_bytes=value)
        assert str(error.value) == text

    @pytest.mark.parametrize("value", ["0%", "101%", "eighty", 0])
    def test_a_server_refuses_what_is_no_size(self, value):
        with pytest.raises(InvalidArgumentError, match=r"^max_bytes must be"):
            reverb.Server([testing.table()], max_bytes=value)

    def test_a_server_refuses_too_little(self):
        with pytest.raises(
            InvalidArgumentError,
            match=r"^max_bytes of a server must be at least 16\.0 MiB, got 15728640",
        ):
            reverb.Server([testing.table()], max_bytes="15MiB")

    def test_other_types_are_refused(self):
        with pytest.raises(TypeError):
            testing.table(max_bytes=1.5)
        with pytest.raises(InvalidArgumentError) as error:
            testing.table(when_full="evict")
        assert str(error.value) == 'when_full must be "remove" or "wait", got "evict"'


class TestTable:
    @on_both_hosts
    @pytest.mark.parametrize("selector", ["Fifo", "Uniform", "MaxHeap"])
    def test_the_remover_keeps_it_within_its_bytes(self, serve, host, selector):
        remover = getattr(reverb.selectors, selector)()
        server, client = serve(host, testing.table(max_bytes=64 * KIB, remover=remover))
        for i in range(100):
            client.insert(noise(4000), {"table": float(i)})
            status = server.status().tables["table"]
            assert status.bytes <= 64 * KIB
        info = client.server_info()["table"]
        assert 12 <= info.current_size <= 16
        limiter = info.rate_limiter_info
        assert limiter.insert_stats.completed == 100
        assert status.items == info.current_size

    def test_an_item_that_shares_its_chunks_costs_little(self, serve):
        server, client = serve("localhost", testing.table(max_bytes=64 * KIB))
        with client.trajectory_writer(10) as writer:
            for _ in range(10):
                writer.append(noise(4000))
            for _ in range(50):
                writer.create_item("table", 1.0, {"all": writer.history["data"][:]})
        status = server.status().tables["table"]
        assert (status.items, status.chunks) == (50, 10)
        assert 40_000 < status.bytes <= 64 * KIB

    @on_both_hosts
    def test_an_item_that_could_never_be_stored_is_refused(self, serve, host):
        _, client = serve(host, testing.table(max_bytes=10_000))
        client.insert(noise(5000), {"table": 1.0})
        with pytest.raises(
            InvalidArgumentError,
            match=r"Item \d+ takes 20,\d\d\d bytes, more than max_bytes 10,000 of table table; it "
            r"could never be stored\. Insert shorter items or raise max_bytes\.",
        ):
            client.insert(noise(20_000), {"table": 1.0})
        assert client.server_info()["table"].current_size == 1

    @on_both_hosts
    def test_inserts_wait_where_nothing_may_be_removed(self, serve, host):
        server, client = serve(host, reverb.Table.queue("queue", 100, max_bytes=20_000))
        with client.trajectory_writer(1) as writer:
            for i in range(10):
                writer.append({"i": np.int64(i)} | noise(4000))
                history = writer.history
                writer.create_item("queue", 1.0, {name: history[name][-1] for name in history})
            with pytest.raises(
                DeadlineExceededError,
                match=r" Table queue: Inserts wait for memory: the table holds 1\d\.\d KiB of "
                r'19\.5 KiB \(max_bytes, when_full="wait"\)\. Items leave by sampling',
            ):
                writer.flush(timeout_ms=200)
            status = server.status()
            assert status.tables["queue"].items == 4
            assert status.tables["queue"].when_full == "wait"
            # A tenth of the limit may wait, and what one message brings beside it.
            assert 4000 <= status.memory.queued <= 7 * 4300
            seen = numbers(client, "queue", 10)
            writer.flush()
        assert seen == list(range(10))

    @on_both_hosts
    def test_a_reset_and_a_delete_make_room_for_those_who_wait(self, serve, host):
        table = testing.table(max_bytes=10_000, when_full="wait")
        server, client = serve(host, table)
        inserted = threading.Semaphore(0)

        def insert():
            for _ in range(6):
                client.insert(noise(4000), {"table": 1.0})
                inserted.release()

        thread = threading.Thread(target=insert, daemon=True)
        thread.start()
        until(lambda: server.status().memory.queued > 0)
        assert server.status().tables["table"].items == 2
        (key,) = [sample.info.key for [sample] in client.sample("table", 1)]
        client.mutate_priorities("table", deletes=[key])
        until(lambda: inserted.acquire(blocking=False))
        client.reset("table")
        until(lambda: server.status().tables["table"].items == 2)
        client.reset("table")
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


class TestServer:
    @on_both_hosts
    def test_the_table_over_its_share_gives_up_items(self, serve, host):
        tables = [testing.table("small", max_bytes=MIB), testing.table("large", max_size=10**6)]
        server, client = serve(host, *tables, max_bytes=16 * MIB)
        for _ in range(100):
            client.insert(noise(8000), {"small": 1.0})
        for _ in range(1000):
            client.insert(noise(32_000), {"large": 1.0})
            assert server.status().memory.total < 16.4 * MIB
        status = server.status()
        assert status.memory.limit == 16 * MIB
        assert status.tables["small"].items == 100
        assert 250 < status.tables["large"].items < 500
        assert client.server_info()["large"].current_size == status.tables["large"].items

    @on_both_hosts
    def test_writers_wait_where_nothing_may_be_removed(self, serve, host):
        server, client = serve(host, reverb.Table.queue("queue", 10**6), max_bytes=16 * MIB)
        done = threading.Event()

        def insert():
            for i in range(300):
                client.insert({"i": np.int64(i)} | noise(100_000), {"queue": 1.0})
            done.set()

        thread = threading.Thread(target=insert, daemon=True)
        thread.start()
        until(lambda: server.status().memory.total > 0.97 * 16 * MIB)
        time.sleep(0.2)
        assert server.status().memory.total < 1.1 * 16 * MIB
        assert not done.is_set()
        seen = numbers(client, "queue", 300)
        thread.join(DEADLINE_S)
        assert done.is_set()
        assert seen == list(range(300))

    def test_a_new_stream_is_refused_while_nothing_is_left(self, serve):
        # Items from the network are not read while they do not fit; a step of this process is.
        server, client = serve("localhost", reverb.Table.queue("queue", 10**6), max_bytes=16 * MIB)
        while server.status().memory.total < 0.92 * 16 * MIB:
            client.insert(noise(100_000), {"queue": 1.0})
        client.insert(noise(3 * MIB), {"queue": 1.0})
        assert server.status().memory.total > 16 * MIB
        with WireClient(f"127.0.0.1:{server.port}") as wire:
            code, text = wire.insert_stream().status()
            assert code == grpc.StatusCode.UNAVAILABLE
            assert re.match(
                r"A new insert stream is refused: the memory of the server is used up "
                r"\(1[78],\d{3},\d{3} of 16,777,216 bytes, max_bytes\)\. Sample from",
                text,
            ), text
            assert len(list(client.sample("queue", 100))) == 100
            stream = wire.insert_stream()
            stream.send(insert([messages.numbers(1)], [item(1, "queue", (1, 0, 3, 0))]))
            stream.confirmed(1)

    def test_the_numbers_add_up(self, serve):
        server, client = serve("127.1", testing.table(), testing.table("other"))
        writer = client.trajectory_writer(3)
        for _ in range(5):
            writer.append(noise(4000))
            for table in ("table", "other"):
                writer.create_item(table, 1.0, {"d": writer.history["data"][-1:]})
        writer.flush()
        status = client.status()
        memory = status.memory
        kinds = (memory.tables, memory.queued, memory.streams, memory.other, memory.readers)
        assert memory.total == sum(kinds)
        for table in ("table", "other"):
            assert status.tables[table].chunks == 5
            assert 20_000 < status.tables[table].bytes < 25_000
        # Both tables have the chunks, which count once.
        assert memory.total < 1.1 * status.tables["table"].bytes
        for table in ("table", "other"):
            client.reset(table)
        # The writer may still refer to its last three steps.
        memory = client.status().memory
        assert memory.streams == memory.total > 12_000
        writer.close()
        until(lambda: client.status().memory.total == 0)
        assert server.status().memory == client.status().memory

    def test_a_forecast_comes_from_the_signature_then_from_the_items(self, serve):
        signature = {"data": reverb.specs.TensorSpec((5000,), np.uint8)}
        table = testing.table("known", max_size=10_000, signature=signature)
        capped = testing.table("capped", max_size=10_000, signature=signature, max_bytes="1MB")
        unknown = testing.table("unknown", max_size=10_000)
        server, client = serve("localhost", table, capped, unknown)
        first = server.status().tables
        assert 50_000_000 < first["known"].forecast_bytes < 56_000_000
        assert first["capped"].forecast_bytes == 1_000_000
        assert first["unknown"].forecast_bytes is None
        for _ in range(100):
            client.insert({"data": np.zeros(5000, np.uint8)}, {"known": 1.0, "unknown": 1.0})
        then = server.status().tables
        assert 1_000_000 < then["known"].forecast_bytes < 10_000_000
        assert 1_000_000 < then["unknown"].forecast_bytes < 10_000_000

    @pytest.mark.parametrize("of", ["the server", "the table"])
    def test_a_forecast_knows_what_max_bytes_leaves_to_a_table(
        self, of, reported_waits, caplog, capsys
    ):
        in_table = {"max_bytes": "16MiB"} if of == "the table" else {}
        tables = [testing.table("replay", max_size=10_000, **in_table), testing.table("other")]
        in_server = {"max_bytes": "24MiB"} if of == "the server" else {}
        with reverb.Server(tables, **in_server) as server:
            client = server.localhost_client()
            client.insert(noise(8 * MIB), {"other": 1.0})
            for _ in range(100):
                client.insert(noise(5000), {"replay": 1.0})
            assert server.status().tables["replay"].forecast_bytes <= 16 * MIB
            until(lambda: "would take" in caplog.text)
            assert command.main(["top", "--once", f"localhost:{server.port}"]) == 0
        assert re.search(r"when it is full +1\d\.\d MiB, [23]\d{3} items", capsys.readouterr().out)
        expected = (
            rf"10,000 items \(max_size\) would take about .* and max_bytes of {of} leaves 1\d\.\d "
            r"MiB for them: the table will hold about ([\d,]+)\. Raise max_bytes"
        )
        number = re.search(expected, caplog.text)
        assert 2_000 < int(number[1].replace(",", "")) < 3_500

    def test_a_server_that_restarts_counts_what_it_loads(self, serve, tmp_path):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        options = {"max_bytes": 200_000, "when_full": "wait"}
        server, client = serve("localhost", testing.table(**options), checkpointer=checkpointer)
        for _ in range(20):
            client.insert(noise(4000), {"table": 1.0})
        client.checkpoint()
        before = server.status()
        server.stop()
        server, _ = serve("localhost", testing.table(**options), checkpointer=checkpointer)
        now, then = server.status().tables["table"], before.tables["table"]
        assert (now.items, now.bytes, now.chunks) == (then.items, then.bytes, then.chunks)
        assert server.status().memory.tables == before.memory.tables
        server.stop()
        # A smaller table takes what fits.
        server, _ = serve("localhost", testing.table(max_bytes=50_000), checkpointer=checkpointer)
        assert 10 <= server.status().tables["table"].items <= 12
        server.stop()
        restoring = reverb.checkpointers.DefaultCheckpointer(str(tmp_path), restore_settings=True)
        table = testing.table()
        server, _ = serve("localhost", table, checkpointer=restoring)
        assert server.status().tables["table"].max_bytes == 200_000
        assert arguments_of(table.replace(name="copy").internal_settings)["when_full"] == "wait"


def trajectory_in_chunks(client, table, step, **options):
    writer = client.trajectory_writer(10, **options)
    writer.configure((0,), num_keep_alive_refs=10, max_chunk_length=10)

    def add():
        writer.append(step)
        writer.create_item(table, 1.0, [writer.history[0][-1:]])

    return writer, add


def legacy_in_chunks(client, table, step, **options):
    writer = client.writer(10, chunk_length=10, **options)

    def add():
        writer.append(step)
        writer.create_item(table, 1, 1.0)

    return writer, add


class TestWriter:
    @each_of(
        trajectory, trajectory_in_chunks, batched, legacy, legacy_in_chunks, sequence, structured
    )
    def test_it_waits_with_too_many_unconfirmed_bytes(self, serve, make):
        _, client = serve("localhost", reverb.Table.queue("queue", 2))
        step = list(noise(4000).values())
        options = {"max_in_flight_items": None} if make in (legacy, legacy_in_chunks) else {}
        writer, insert = make(client, "queue", step, max_pending_bytes="20kB", **options)

        count = 0
        done = threading.Event()

        def insert_all():
            nonlocal count
            for _ in range(30):
                insert()
                count += 1
            writer.flush()
            done.set()

        thread = threading.Thread(target=insert_all, daemon=True)
        thread.start()
        until(lambda: count >= 2)
        time.sleep(0.3)
        # Two are in the queue, some five wait, and one is being made.
        assert 5 <= count <= 9
        samples = client.sample("queue", 30, emit_timesteps=False)
        seen = [sample.data[0].reshape(-1) for sample in samples]
        assert [data.tolist() for data in seen] == [step[0].tolist()] * 30
        thread.join(DEADLINE_S)
        assert done.is_set()

    def test_a_limit_out_of_its_range_is_refused(self, serve):
        _, client = serve("localhost", testing.table())
        with pytest.raises(InvalidArgumentError, match="max_pending_bytes must be at least 1"):
            client.trajectory_writer(1, max_pending_bytes=0)
