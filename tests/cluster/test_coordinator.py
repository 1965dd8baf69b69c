# SPDX-License-Identifier: Apache-2.0
"""One rate limiter over several shards, with a coordinator."""

import threading
import time

import numpy as np
import pytest

import reverb
import reverb.cluster
from reverb import testing
from support.waiting import Background

SPI, MIN_SIZE, ERROR = 8, 1_000, 2_000


def table(limiter=None):
    sampler = reverb.selectors.Prioritized(0.6)
    limiter = limiter or reverb.rate_limiters.SampleToInsertRatio(SPI, MIN_SIZE, ERROR)
    return testing.table("t", sampler=sampler, max_size=100_000, rate_limiter=limiter)


@pytest.fixture
def group(start):
    """Shards that know of each other and wait for a coordinator; returns servers and address."""

    def group(make_table, num_shards=4):
        servers = [
            start(
                make_table(),
                shard=reverb.cluster.Shard(i, num_shards, "test", is_coordinated=True),
            )
            for i in range(num_shards)
        ]
        return servers, "shards:///" + ",".join(f"127.1:{server.port}" for server in servers)

    return group


def at_rest(client):
    """The shards when nobody inserts or samples: then the sums are of one moment."""
    return [shard.tables["t"] for shard in client.shard_info()]


def test_the_ratio_of_the_group_holds_while_coordinators_die(group):
    _, address = group(table)
    end = time.monotonic() + 6
    counts = {"inserts": 0, "samples": 0}
    lock = threading.Lock()

    def write(scale):
        client = reverb.Client(address)
        while time.monotonic() < end:
            client.insert_batch([np.zeros(16)], {"t": np.random.rand(16) * scale + 0.01})
            with lock:
                counts["inserts"] += 16

    def learn():
        client = reverb.Client(address)
        while time.monotonic() < end:
            try:
                info = client.sample_batch("t", 256, timeout_ms=500).info
            except reverb.errors.DeadlineExceededError:
                continue
            with lock:
                counts["samples"] += len(info.key)

    coordinator = reverb.cluster.Coordinator(address)
    workers = [Background(lambda scale=scale: write(scale)) for scale in (1, 3, 9)]
    workers += [Background(learn) for _ in range(2)]
    while time.monotonic() < end:
        time.sleep(0.7)
        # Without its farewell, as if its process had died.
        successor = reverb.cluster.Coordinator(address)
        coordinator.stop()
        coordinator = successor
    # Writers may wait for samples that nobody takes any more.
    client = reverb.Client(address)
    drained = 0
    while any(worker.running for worker in workers) and drained < 200:
        drained += 1
        try:
            info = client.sample_batch("t", 64, timeout_ms=100).info
            counts["samples"] += len(info.key)
        except reverb.errors.DeadlineExceededError:
            pass
    for worker in workers:
        worker.result()
    coordinator.stop()
    tables = at_rest(client)
    cursor = sum(it.cursor for it in tables)
    assert SPI * MIN_SIZE - ERROR <= cursor <= SPI * MIN_SIZE + ERROR
    assert sum(it.min_diff for it in tables) >= SPI * MIN_SIZE - ERROR - 1e-6
    assert sum(it.max_diff for it in tables) <= SPI * MIN_SIZE + ERROR + 1e-6
    assert cursor == counts["inserts"] * SPI - counts["samples"]
    assert counts["samples"] > 20_000


def test_a_queue_holds_its_capacity_in_all_shards_together(group):
    _, address = group(lambda: reverb.Table.queue("t", 10))
    client = reverb.Client(address)
    with reverb.cluster.Coordinator(address):
        writer = Background(lambda: client.insert_batch([np.arange(25)], {"t": 1.0}))
        values = [int(sample[0].data[0]) for sample in client.sample("t", 15)]
        writer.result()
        assert client.server_info()["t"].current_size == 10
        more = Background(lambda: client.insert([np.int64(25)], {"t": 1.0}))
        time.sleep(0.3)
        assert more.running
        values += [int(sample[0].data[0]) for sample in client.sample("t", 11)]
        more.result()
    assert sorted(values) == list(range(26))


def test_samples_wait_for_the_size_of_the_group(group):
    _, address = group(lambda: table(limiter=reverb.rate_limiters.MinSize(100)))
    client = reverb.Client(address)
    with reverb.cluster.Coordinator(address):
        client.insert_batch([np.arange(99)], {"t": 1.0})
        with pytest.raises(reverb.errors.DeadlineExceededError):
            client.sample_batch("t", 1, timeout_ms=300)
        reader = Background(lambda: client.sample_batch("t", 8).info.key)
        client.insert([np.int64(99)], {"t": 1.0})
        assert len(reader.result()) == 8


def test_without_a_coordinator_windows_stay_closed_and_say_so(group):
    _, address = group(table)
    client = reverb.Client(address)
    writer = client.trajectory_writer(1)
    writer.append([np.int64(0)])
    writer.create_item("t", 1.0, [writer.history[0][-1:]])
    with pytest.raises(reverb.errors.DeadlineExceededError) as caught:
        writer.flush(timeout_ms=2_500)
    assert "coordinator" in str(caught.value)
    with reverb.cluster.Coordinator(address):
        writer.flush(timeout_ms=20_000)
    writer.close()


def test_a_later_coordinator_takes_over(group):
    _, address = group(lambda: reverb.Table.queue("t", 4))
    first = reverb.cluster.Coordinator(address)
    client = reverb.Client(address)
    client.insert([np.int64(0)], {"t": 1.0})
    with reverb.cluster.Coordinator(address) as second:
        deadline = time.monotonic() + 20
        # Each of them moves windows for waiting calls, until the first one is refused.
        while first.is_running and time.monotonic() < deadline:
            client.insert_batch([np.arange(3)], {"t": 1.0})
            assert len(list(client.sample("t", 3))) == 3
        assert not first.is_running
        assert second.is_running


def test_settings_of_the_group_change_at_all_shards(group):
    servers, address = group(table)
    client = reverb.Client(address)
    with reverb.cluster.Coordinator(address):
        client.configure_table("t", max_size=1_000)
        assert client.server_info()["t"].max_size == 1_000
        assert [server.server_info()["t"].max_size for server in servers] == [250] * 4
        with pytest.raises(reverb.errors.InvalidArgumentError, match=r"shard \d"):
            client.configure_table("t", max_size=-5)
        assert client.server_info()["t"].max_size == 1_000


def infos(servers, name):
    return [server.server_info()[name] for server in servers]


def test_a_queue_keeps_its_size_in_each_shard_when_it_changes(group):
    servers, address = group(lambda: reverb.Table.queue("q", 4))
    assert [it.max_size for it in infos(servers, "q")] == [4] * 4
    limiter = reverb.rate_limiters.Queue(10)
    reverb.Client(address).configure_table("q", max_size=10, rate_limiter=limiter)
    assert [it.max_size for it in infos(servers, "q")] == [10] * 4


def test_a_change_is_told_in_the_numbers_of_the_group(group):
    servers, address = group(
        lambda: testing.table(
            "p",
            sampler=reverb.selectors.Prioritized(1.0),
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 100, 400.0),
        )
    )
    client = reverb.Client(address)
    change = reverb.TableChange(
        max_bytes="4MiB",
        max_times_sampled=7,
        priority_exponent=0.5,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 200, 500.0),
    )
    changed = client.configure_tables({"p": change})
    assert {it.setting: (it.before, it.after) for it in changed} == {
        "max_bytes": ("none", str(4 << 20)),
        "max_times_sampled": ("none", "7"),
        "min_size_to_sample": ("100", "200"),
        "min_diff": ("-200", "-100"),
        "max_diff": ("600", "900"),
        "priority_exponent": ("1", "0.5"),
    }
    assert not client.configure_tables({"p": change})
    with pytest.raises(reverb.errors.InvalidArgumentError, match="at least 4, a byte for each"):
        client.configure_table("p", max_bytes=3)
    for info in infos(servers, "p"):
        assert info.max_times_sampled == 7
        assert info.sampler_options.prioritized.priority_exponent == 0.5


def test_another_draw_of_the_group_is_told_and_stays_in_the_map(group):
    servers, address = group(lambda: testing.table("p", sampler=reverb.selectors.Prioritized(0.5)))
    client = reverb.Client(address)
    change = reverb.TableChange(sampler=reverb.selectors.Prioritized(0.7, draw="stratified"))
    changed = client.configure_tables({"p": change})
    assert {it.setting: (it.before, it.after) for it in changed} == {
        "priority_exponent": ("0.5", "0.7"),
        "draw": ("independent", "stratified"),
    }
    assert not client.configure_tables({"p": change})
    # The exponent alone leaves the draw.
    changed = client.configure_tables({"p": reverb.TableChange(priority_exponent=0.9)})
    assert [it.setting for it in changed] == ["priority_exponent"]
    for info in [client.server_info()["p"], *infos(servers, "p")]:
        assert info.sampler_options.prioritized.priority_exponent == 0.9
        assert info.sampler_options.extension.draw == info.sampler_options.extension.STRATIFIED


def test_an_address_of_one_server_is_refused():
    with pytest.raises(reverb.errors.InvalidArgumentError, match="shards:///host:port"):
        reverb.cluster.Coordinator("localhost:8000")
