# SPDX-License-Identifier: Apache-2.0
"""Servers of this package that change, pause, drain and restart, for clients of both packages."""

import numpy as np
import pytest

import reverb
from support.compared_packages import PACKAGES
from support.rolling_restart import RestartedServer, free_ports
from support.waiting import Background, wait_until

# The peer's channels wait up to 30 s before they try again.
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.parametrize("client", PACKAGES),
]

_RESUME_SECONDS = 60
# How long a call that waits is watched.
_WATCHED_SECONDS = 0.3
_COUNT = 20_000
_CONFIG = """
tables: {
  table_name: "table"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 1000
  max_times_sampled: 1
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: 0 max_diff: 1000 }
}
"""


@pytest.fixture
def restarted(tmp_path):
    """A server with a queue `table` that drains and saves before each restart."""
    server = RestartedServer(tmp_path / "checkpoints", free_ports(1)[0], _CONFIG)
    yield server
    server.kill()


@pytest.fixture
def caller(client, worker_of):
    """The process of the client."""
    return worker_of(client, "client")


def _work_on(client, start_worker, address):
    """A writer and a reader of a queue that are at work."""
    writer, reader = start_worker(client), start_worker(client)
    writer.call("open_writer", address=address)
    writer.call("write_values", values=[0])
    reader.call("open_samples", address=address, count=_COUNT)
    assert reader.call("take", count=1) == [0]
    writer.submit("write_values", values=list(range(1, _COUNT)))
    reader.submit("take")
    return [writer, reader]


def _samples(server):
    return server.client().status().tables["table"].samples


def test_a_drained_restart_loses_nothing_and_repeats_nothing(client, start_worker, restarted):
    writer, reader = _work_on(client, start_worker, restarted.address)
    wait_until(lambda: _samples(restarted) > _COUNT // 20)
    restarted.restart()
    assert _samples(restarted) < _COUNT, "the restart came in the midst of the work"
    writer.result(_RESUME_SECONDS)
    writer.call("flush_writer", timeout_ms=_RESUME_SECONDS * 1000)
    values = reader.result(_RESUME_SECONDS)
    if client == "peer":  # It sends again in any order what was not confirmed.
        values.sort()
    assert values == list(range(1, _COUNT))
    assert restarted.client().server_info()["table"].current_size == 0


def test_who_waits_goes_on_after_a_drained_restart(client, start_worker, restarted):
    writer, reader = start_worker(client), start_worker(client)
    ours = restarted.client()
    reader.call("open_samples", address=restarted.address, count=2)
    reader.submit("take")
    wait_until(lambda: ours.status().tables["table"].sampling.waiting)
    restarted.restart()
    ours.insert_batch([np.arange(2)], {"table": 1.0})
    assert reader.result(_RESUME_SECONDS) == [0, 1]
    ours.insert_batch([np.arange(1000)], {"table": 1.0})
    writer.call("open_writer", address=restarted.address)
    writer.call("write_values", values=[1000])
    writer.submit("flush_writer")
    wait_until(lambda: ours.status().tables["table"].inserting.waiting)
    restarted.restart()
    assert ours.sample_batch("table", 1000).data[0].ravel().tolist() == list(range(1000))
    writer.result(_RESUME_SECONDS)
    writer.call("close_writer")
    assert restarted.values("table") == [1000]


def test_new_settings_are_the_only_change_in_the_table_info(client, caller, serve):
    address = serve("ours", {"sampler": "Prioritized 0.8"}, {"name": "other"})
    caller.call("insert", address=address, values=[1, 2, 3], priorities={"table": 1.0})
    caller.call("open_writer", address=address)
    caller.call("write_values", values=[4])
    caller.call("flush_writer")
    caller.call("open_samples", address=address, count=1000)
    assert set(caller.call("take", count=4)) <= {1, 2, 3, 4}
    before = caller.call("server_info", address=address)
    reverb.Client(address).configure_table(
        "table",
        max_size=5,
        max_bytes="1MiB",
        max_times_sampled=10**6,
        rate_limiter=reverb.rate_limiters.MinSize(2),
        priority_exponent=0.5,
    )
    after = caller.call("server_info", address=address)
    # Items that the reader fetches meanwhile change its counters.
    changes = _differences(before["table"], after["table"])
    assert changes - {"num_unique_samples"} == {
        "max_size",
        "max_times_sampled",
        "sampler_options",
        "rate_limiter_info",
    }
    assert after["other"] == before["other"]
    assert (after["table"]["max_size"], after["table"]["max_times_sampled"]) == (5, 10**6)
    caller.call("write_values", values=[5, 6])
    caller.call("flush_writer")
    assert set(caller.call("take", count=100)) <= set(range(1, 7))
    caller.call("close_writer")
    assert caller.call("server_info", address=address)["table"]["current_size"] == 5


def _differences(one, other):
    return {name for name in one if one[name] != other[name]}


def test_a_writer_and_a_reader_wait_while_the_table_is_paused(client, start_worker, serve):
    writer, reader = start_worker(client), start_worker(client)
    address = serve("ours", {"max_times_sampled": 1})
    ours = reverb.Client(address)
    writer.call("open_writer", address=address)
    writer.call("write_values", values=[1])
    writer.call("flush_writer")
    ours.pause_table("table")
    writer.call("write_values", values=[2])
    writer.submit("flush_writer")
    reader.call("open_samples", address=address, count=2)
    reader.submit("take")
    assert writer.busy(_WATCHED_SECONDS)
    assert reader.busy(_WATCHED_SECONDS)
    status = ours.status().tables["table"]
    assert (status.inserting.waiting, status.sampling.waiting) == (1, 1)
    ours.resume_table("table")
    writer.result()
    assert reader.result() == [1, 2]
    writer.call("close_writer")


def test_a_timeout_in_a_paused_table_ends_a_dataset(client, caller, serve):
    """As a closed rate limiter does: with what there was, and without an error."""
    if client == "ours":
        pytest.skip("this package has no TensorFlow here; only the peer's datasets are tried")
    address = serve("ours")
    ours = reverb.Client(address)
    caller.call("insert", address=address, values=[1], priorities={"table": 1.0})
    options = {"max_in_flight_samples_per_worker": 1, "rate_limiter_timeout_ms": 400}
    caller.call("open_dataset", address=address, **options)
    assert caller.call("take", count=2) == [1, 1]
    ours.pause_table("table", inserts=False)
    assert set(caller.call("take")) <= {1}
    ours.resume_table("table")
    caller.call("open_dataset", address=address, **options)
    assert caller.call("take", count=2) == [1, 1]


def test_a_preload_shows_in_the_counters_as_samples_only(client, caller, serve):
    address = serve("ours", {"limiter": ["SampleToInsertRatio", 2.0, 1, 2.0]})
    ours = reverb.Client(address)
    with ours.rate_limiter_off("table"):
        caller.call("insert", address=address, values=[*range(20)], priorities={"table": 1.0})
    info = ours.server_info()["table"].rate_limiter_info
    assert (info.insert_stats.completed, info.sample_stats.completed) == (20, 40)
    # As with an empty table: 2 more inserts are allowed, and the third one waits for samples.
    caller.call("insert", address=address, values=[20, 21], priorities={"table": 1.0})
    caller.submit("insert", address=address, values=[22], priorities={"table": 1.0})
    assert caller.busy(_WATCHED_SECONDS)
    ours.sample_batch("table", 4)
    caller.result()


def test_a_checkpoint_during_a_preload_is_loaded_by_both(client, start_worker, tmp_path):
    """The package of the parameter serves it: the preload has ended, its inserts are neutral."""
    table = reverb.Table(
        name="table",
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 1, 2.0),
    )
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    with reverb.Server([table], checkpointer=checkpointer) as server:
        ours = server.localhost_client()
        ours.insert([np.int64(0)], {"table": 1.0})
        with ours.rate_limiter_off("table"):
            ours.insert_batch([np.arange(1, 21)], {"table": 1.0})
            ours.checkpoint()
    worker = start_worker(client)
    limiter = ["SampleToInsertRatio", 2.0, 1, 2.0]
    checkpoints = {"path": str(tmp_path)}
    arguments = {"tables": [{"limiter": limiter}], "checkpoints": checkpoints}
    port = worker.call("start_server", **arguments)
    loaded = reverb.Client(f"127.0.0.1:{port}")
    assert _counts(loaded) == (21, 21, 40)
    # As after the first insert alone: one more is allowed.
    loaded.insert([np.int64(21)], {"table": 1.0})
    waiting = Background(loaded.insert, [np.int64(22)], {"table": 1.0})
    wait_until(lambda: loaded.server_info()["table"].current_size == 22)
    assert len(loaded.sample_batch("table", 2).info.key) == 2
    waiting.result()
    assert _counts(loaded) == (23, 23, 42)


def _counts(client):
    info = client.server_info()["table"]
    limiter = info.rate_limiter_info
    return info.current_size, limiter.insert_stats.completed, limiter.sample_stats.completed
