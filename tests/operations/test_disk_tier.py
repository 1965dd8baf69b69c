# SPDX-License-Identifier: Apache-2.0
"""Tables larger than memory: what comes back from the disk is compared with what was made."""

import pathlib
import shutil

import numpy as np
import pytest

import reverb
from reverb.errors import DataLossError, InvalidArgumentError
from support.programs import Program
from support.waiting import wait_until

# Noise does not compress: some 42 MB, beside a server of 16 MiB.
FRAMES = 6000
MEMORY = "16MiB"
SHAPE = (84, 84)


def frame(number):
    return np.random.default_rng(int(number)).integers(0, 256, SHAPE, np.uint8)


def frames(numbers):
    return np.stack([frame(number) for number in numbers])


def uniform():
    limiter = reverb.rate_limiters.MinSize(1)
    selectors = reverb.selectors
    return reverb.Table("t", selectors.Uniform(), selectors.Fifo(), 10**6, limiter)


def serve(directory, *tables, max_bytes=MEMORY, **options):
    store = reverb.Store(directory, journal=False)
    return reverb.Server(tables or [uniform()], max_bytes=max_bytes, store=store, **options)


def client_of(server):
    return reverb.Client(f"localhost:{server.port}")


def fill(client, count=FRAMES, table="t"):
    for begin in range(0, count, 500):
        numbers = np.arange(begin, min(begin + 500, count))
        client.insert_batch(
            {"frame": frames(numbers), "number": numbers}, {table: np.ones(len(numbers))}
        )


def check(data):
    """Compares frames with those that belong to their numbers; returns the numbers."""
    number, image = np.asarray(data[1]).reshape(-1), np.asarray(data[0]).reshape(-1, *SHAPE)
    assert (image == frames(number)).all()
    return number.tolist()


@pytest.fixture(params=["this process", "another process"])
def filled(request, tmp_path):
    """A client of a filled server with a store."""
    if request.param == "this process":
        with serve(tmp_path / "store") as server:
            client = client_of(server)
            fill(client)
            yield client
        return
    program = Program(
        """
        import sys
        import reverb
        limiter = reverb.rate_limiters.MinSize(1)
        table = reverb.Table(
            "t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10**6, limiter
        )
        store = reverb.Store(sys.argv[1], journal=False)
        server = reverb.Server([table], max_bytes="16MiB", store=store)
        print(server.port, flush=True)
        sys.stdin.readline()
        server.stop()
        """,
        tmp_path / "store",
    )
    with program:
        client = reverb.Client(f"localhost:{program.line()}")
        fill(client)
        yield client


def test_all_items_stay_and_come_back_as_they_were(filled):
    status = filled.status()
    assert filled.server_info()["t"].current_size == FRAMES
    assert status.store.state == "ok"
    assert status.store.written_bytes > 20_000_000
    assert status.memory.total < 16 * 2**20
    for _ in range(4):
        check(filled.sample_batch("t", 64).data)
    assert filled.status().store.reads > 0
    numbers = [check(item.data)[0] for item in filled.scan("t")]
    assert sorted(numbers) == list(range(FRAMES))


def test_one_column_is_read_as_the_whole_item(filled):
    numbers = np.asarray(filled.sample_batch("t", 256, columns=[1]).data[0]).reshape(-1)
    assert ((numbers >= 0) & (numbers < FRAMES)).all()


def test_a_writer_of_steps_keeps_its_own_chunks(tmp_path):
    with serve(tmp_path / "one") as server, serve(tmp_path / "other") as other:
        for each in (server, other):
            client = client_of(each)
            with client.trajectory_writer(num_keep_alive_refs=4) as writer:
                for number in range(4000):
                    writer.append({"frame": frame(number), "number": np.int64(number)})
                    if number >= 3:
                        history = writer.history
                        stack = {name: history[name][-4:] for name in ("frame", "number")}
                        writer.create_item("t", 1.0, stack)
            check(client.sample_batch("t", 64).data)
            assert client.server_info()["t"].current_size == 3997


def test_a_queue_gives_each_item_once_and_frees_the_disk(tmp_path):
    with serve(tmp_path / "store", reverb.Table.queue("t", FRAMES)) as server:
        client = client_of(server)
        fill(client)
        assert server.status().store.live_bytes > 20_000_000
        numbers = []
        for _ in range(FRAMES // 100):
            numbers += check(client.sample_batch("t", 100).data)
        assert numbers == list(range(FRAMES))
        # The writer of this process may still hold its last 4 MiB.
        wait_until(lambda: server.status().store.live_bytes < 6 * 2**20)


def test_a_checkpoint_larger_than_memory_is_saved_and_loaded(tmp_path):
    saved = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "checkpoints"))
    with serve(tmp_path / "store", checkpointer=saved) as server:
        fill(client_of(server))
        client_of(server).checkpoint()
    loaded = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "checkpoints"))
    with serve(tmp_path / "store", checkpointer=loaded) as server:
        client = client_of(server)
        assert server.status().memory.total < 16 * 2**20
        assert sorted(check(item.data)[0] for item in client.scan("t")) == list(range(FRAMES))


def test_a_wrong_byte_costs_the_items_that_need_it(tmp_path):
    with serve(tmp_path / "store") as server:
        client = client_of(server)
        fill(client)
        file = min((tmp_path / "store").glob("data-*.seg"))
        bytes_ = bytearray(file.read_bytes())
        bytes_[4096 + 100] ^= 1
        file.write_bytes(bytes_)
        with pytest.raises(DataLossError, match=r"Item \d+ of table t cannot be read back: .*was"):
            list(client.scan("t"))
        assert server.status().tables["t"].removed.lost == 1
        numbers = [check(item.data)[0] for item in client.scan("t")]
        assert len(set(numbers)) == FRAMES - 1


def test_without_its_directory_items_leave_and_status_says_why(tmp_path):
    with serve(tmp_path / "store") as server:
        client = client_of(server)
        fill(client, 3000)
        shutil.rmtree(tmp_path / "store")
        for _ in range(3):
            fill(client)
        status = server.status()
        assert status.store.state == "failing"
        assert "cannot create" in status.store.error
        assert status.tables["t"].removed.bytes > 0
        check(client.sample_batch("t", 64).data)


def test_a_stop_leaves_no_data_files(tmp_path):
    server = serve(tmp_path / "store")
    fill(client_of(server))
    assert list((tmp_path / "store").glob("data-*.seg"))
    server.stop()
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["LOCK"]


def test_a_directory_in_use_and_a_file_are_refused(tmp_path):
    with serve(tmp_path / "store"), pytest.raises(reverb.errors.ReverbError, match="is in use by"):
        serve(tmp_path / "store")
    file = pathlib.Path(tmp_path / "file")
    file.write_text("mine")
    with pytest.raises(reverb.errors.ReverbError, match="must be a directory"):
        serve(file)
    assert file.read_text() == "mine"


def test_a_full_disk_budget_removes_the_oldest_items(tmp_path):
    store = reverb.Store(tmp_path / "store", journal=False, max_bytes="64MiB")
    with reverb.Server([uniform()], max_bytes=MEMORY, store=store) as server:
        client = client_of(server)
        for _ in range(4):
            fill(client)
        status = server.status()
        assert status.store.live_bytes + status.store.dead_bytes <= 64 * 2**20
        size = client.server_info()["t"].current_size
        assert 3000 < size < 4 * FRAMES
        for _ in range(4):
            check(client.sample_batch("t", 64).data)


def test_a_store_needs_a_limit_of_the_memory(tmp_path):
    with pytest.raises(InvalidArgumentError, match="needs max_bytes of the Server"):
        serve(tmp_path / "store", max_bytes=None)


def test_an_item_larger_than_memory_leaves_it_and_costs_no_other(tmp_path):
    selectors = [reverb.selectors.Fifo() for _ in range(2)]
    large = reverb.Table("large", *selectors, 1, reverb.rate_limiters.MinSize(1))
    with serve(tmp_path / "store", uniform(), large) as server:
        client = client_of(server)
        fill(client)
        noise = np.random.default_rng(1).integers(0, 256, (40, 2**20), np.uint8)
        client.insert_sequence([noise], {"large": 1.0})
        wait_until(lambda: server.status().memory.total < 16 * 2**20)
        fill(client, 500)
        tables = server.status().tables
        assert (tables["t"].removed.bytes, tables["t"].items) == (0, FRAMES + 500)
        assert (client.sample_batch("large", 1).data[0][0] == noise).all()
