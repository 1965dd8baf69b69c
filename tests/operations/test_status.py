# SPDX-License-Identifier: Apache-2.0
"""`status` in scripted runs: every number is known."""

import math
import pathlib
import re
import shutil
import subprocess
import time

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson

import reverb
from reverb import testing
from reverb.command.top.picture import BLOCKS
from reverb.command.top.snapshot import as_text
from reverb.command.why import Report
from reverb.core import protos
from reverb.server_status import Histogram, ServerStatus
from support.hosts import REMOTE, on_both_hosts
from support.wire.wire_client import WireClient

SELECTORS = reverb.selectors
NODE = shutil.which("node")

# A status of a server whose clock was set back by three days since its last checkpoint.
SET_BACK = protos.StatusResponse(
    started_at_ns=1_700_259_179 * 10**9,
    now_ns=1_700_000_000 * 10**9,
    checkpoints=protos.CheckpointStatusResponse(
        latest_saved_at_ns=1_700_259_179 * 10**9, restored_saved_at_ns=1_700_259_179 * 10**9
    ),
    tables=[protos.TableStatus(name="t", diagnosis=protos.Diagnosis(state="idle"))],
)


def insert(client, priorities, table="table"):
    """Items with these priorities, in one call; returns their keys, oldest first."""
    column = np.arange(len(priorities), dtype=np.int64)
    before = {sample.info.key for sample in client.scan(table)}
    client.insert_batch({"x": column}, {table: np.array(priorities, float)})
    keys = [sample.info.key for sample in client.scan(table)]
    return [key for key in keys if key not in before]


@pytest.mark.parametrize("name", ["latest_path", "restored_from"])
def test_no_age_is_negative_after_the_clock_was_set_back(name):
    message = protos.StatusResponse.FromString(SET_BACK.SerializeToString())
    setattr(message.checkpoints, name, "/saved")
    status = ServerStatus.from_serialized_proto(message.SerializeToString())
    report = Report("server", status)
    for shown in (report.as_text(), as_text(status, "server", BLOCKS, 100)):
        assert re.search(r"saved 0 \S+ ago", shown)
        assert not re.search(r"-\d", shown)
    ages = [report.as_dict()[f"{of}_checkpoint_s"] for of in ("last", "loaded")]
    assert set(ages) <= {0, None}
    if NODE is not None:
        page = pathlib.Path(reverb.__file__).parent / "core/server/src/observe/page/page.html"
        script = page.read_text("utf-8").split("<script>")[1].split("let last = null;")[0]
        shown = f"checkpoints({MessageToJson(message.checkpoints)}, {message.now_ns})"
        shown += f"+ age({message.started_at_ns}, {message.now_ns})"
        done = subprocess.run(
            [NODE, "-e", f"{script}; console.log({shown})"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.search(r"saved 0 \S+ ago", done.stdout)
        assert not re.search(r"-\d", done.stdout)


@on_both_hosts
def test_a_scripted_run_gives_these_numbers(host):
    replay = testing.table(
        "replay",
        sampler=SELECTORS.Prioritized(2.0),
        max_size=10,
        max_times_sampled=4,
        rate_limiter=reverb.rate_limiters.RateLimiter(2.0, 3, -4.0, 100.0),
    )
    started = time.time()
    with reverb.Server([replay, testing.table("other")], host="127.0.0.1") as server:
        client = reverb.Client(f"{host}:{server.port}")
        keys = insert(client, [1.0] * 6 + [2.0] * 6, "replay")  # 2 too many.
        client.update_priorities(
            "replay", np.array([keys[0], keys[1], 12345], np.uint64), np.ones(3)
        )
        client.mutate_priorities("replay", {keys[2]: 3.0}, deletes=[keys[3]])
        client.sample_batch("replay", 8)
        status = client.status()
        table = status.tables["replay"]

        assert (table.inserts, table.samples, table.priority_updates) == (12, 8, 3)
        removed = table.removed
        assert (removed.full, removed.deleted, removed.reset, removed.bytes) == (2, 1, 0, 0)
        assert table.items == 12 - removed.total
        assert (table.max_items, table.episodes, table.chunks) == (10, 1, table.items)
        assert table.cursor == 12 * 2.0 - 8
        limiter = table.limiter
        assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (2.0, 3)
        assert (limiter.min_diff, limiter.max_diff) == (-4.0, 100.0)
        weights = [sample.info.priority**2 for sample in client.scan("replay")]
        assert table.mass == sum(weights)
        assert table.inserting.waiting == table.sampling.waiting == 0
        assert table.inserting.oldest_wait_s is table.sampling.oldest_wait_s is None
        assert table.inserting.wait_s.count == 12
        assert table.sampling.wait_s.count >= 1
        assert table.sample_age_s.count == 8
        assert started <= table.inserting.last_at <= table.sampling.last_at <= status.now

        client.reset("replay")
        after = client.status().tables["replay"]
        assert after.removed.reset == table.items
        assert (after.items, after.inserts, after.samples) == (0, 12, 8)
        assert after.removed.total == 12
        assert after.removed.unsampled + after.removed.times_sampled.count == 12
        assert after.removed.times_sampled.sum == 8
        assert (after.cursor, after.mass) == (0.0, 0.0)

        other = status.tables["other"]
        assert (other.inserts, other.samples, other.sampling.last_at) == (0, 0, None)
        assert other.mass is None
        assert (other.limiter.min_diff, other.limiter.max_diff) == (-math.inf, math.inf)
        assert status.version == reverb.__version__
        assert started <= status.started_at <= status.now <= time.time()


def test_calls_streams_and_connections_are_counted():
    with reverb.Server([testing.table()], host="127.0.0.1") as server:
        client = reverb.Client(f"{REMOTE}:{server.port}")
        client.server_info()
        client.insert(np.zeros(2), {"table": 1.0})
        client.sample_batch("table", 1)
        with pytest.raises(reverb.errors.ReverbError):
            client.reset("missing")
        traffic = client.status().traffic
        assert traffic.calls["Reset", "NOT_FOUND"] == 1
        assert traffic.calls["ServerInfo", "OK"] >= 1
        assert ("Status", "OK") not in traffic.calls, "it has not ended yet"
        assert client.status().traffic.calls["Status", "OK"] == 1
        assert traffic.connections == 1
        assert traffic.streams == {"insert": 1, "sample": 1, "scan": 0}
        assert traffic.received_bytes > 100
        assert traffic.sent_bytes > 100
        before = traffic.received_bytes
        client.insert(np.zeros(10_000), {"table": 1.0})
        assert client.status().traffic.received_bytes - before < 5_000, "zeros are compressed"


def test_unknown_calls_are_counted_together():
    with reverb.Server([testing.table()]) as server, WireClient(f"localhost:{server.port}") as wire:
        for name in ("Nothing", "Nowhere"):
            with pytest.raises(grpc.RpcError):
                wire.unary(name, b"")
        assert server.status().traffic.calls["unknown", "UNIMPLEMENTED"] == 2


def test_refusals_are_counted_by_the_limit():
    limits = reverb.Limits(call_bytes=1000)
    with reverb.Server([testing.table()], limits=limits, host="127.0.0.1") as server:
        client = reverb.Client(f"{REMOTE}:{server.port}")
        keys = np.arange(1, 1000, dtype=np.uint64)
        with pytest.raises(reverb.errors.ReverbError, match="call_bytes"):
            client.update_priorities("table", keys, np.ones(len(keys)))
        refused = server.status().traffic.refused
        assert refused["call_bytes"] == 1
        assert sum(refused.values()) == 1


def test_the_process_is_told():
    with reverb.Server([testing.table()]) as server:
        process = server.status().process
        assert process.resident_bytes > 2**20
        assert 0 < process.open_fds < process.max_fds
        assert process.cpu_s > 0
        assert process.started_at < time.time()
        own = len(list(pathlib.Path("/proc/self/fd").iterdir()))
        assert process.open_fds == pytest.approx(own, abs=3)


def test_inserts_and_samples_go_on_after_a_checkpoint_was_loaded(tmp_path):
    def start():
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        return reverb.Server([testing.table(max_size=5)], checkpointer=checkpointer)

    with start() as server:
        client = server.localhost_client()
        insert(client, [1.0] * 7)
        client.sample_batch("table", 3)
        client.checkpoint()
    with start() as server:
        client = server.localhost_client()
        table = client.status().tables["table"]
        assert (table.items, table.inserts, table.samples) == (5, 7, 3)
        # Everything else is of this server.
        assert (table.removed.total, table.sample_age_s.count) == (0, 0)
        assert table.inserting.last_at is None
        insert(client, [1.0] * 2)
        client.sample_batch("table", 1)
        client.reset("table")
        insert(client, [1.0])
        client.checkpoint()
        table = client.status().tables["table"]
        assert (table.items, table.inserts, table.samples) == (1, 10, 4)
    with start() as server:
        for client in (server.localhost_client(), reverb.Client(f"127.1:{server.port}")):
            table = client.status().tables["table"]
            assert (table.items, table.inserts, table.samples) == (1, 10, 4)
        # The rate limiter counts from the reset on.
        assert client.server_info()["table"].rate_limiter_info.insert_stats.completed == 1


def test_a_group_adds_what_its_shards_have_restored(tmp_path):
    def start(name):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path), name=name)
        return reverb.Server([testing.table()], checkpointer=checkpointer, host="127.0.0.1")

    for number in range(2):
        with start("a") as first, start("b") as second:
            address = f"shards:///127.0.0.1:{first.port},127.0.0.1:{second.port}"
            client = reverb.Client(address)
            assert client.status().tables["table"].inserts == 20 * number
            client.insert_batch([np.arange(20)], {"table": 1.0})
            assert client.status().tables["table"].inserts == 20 * number + 20
            first.localhost_client().checkpoint()
            second.localhost_client().checkpoint()


def test_a_server_of_an_older_release_tells_less():
    """Fields that it does not know have the value for nothing."""
    status = ServerStatus.from_serialized_proto(b"\x12\x03\x0a\x01t")
    table = status.tables["t"]
    assert (table.inserts, table.mass, table.sampling.oldest_wait_s) == (0, None, None)
    assert table.sample_age_s.count == 0


def test_quantiles_of_a_histogram():
    histogram = Histogram(bounds=(1.0, 2.0, 4.0), counts=(2, 0, 1, 1), sum=14.0)
    quantiles = [histogram.quantile(q) for q in (0.0, 0.5, 0.51, 0.75, 0.76, 1.0)]
    assert quantiles == [1.0, 1.0, 4.0, 4.0, math.inf, math.inf]
    empty = Histogram(bounds=(1.0,), counts=(0, 0), sum=0.0)
    assert math.isnan(empty.quantile(0.5))
    assert math.isnan(empty.mean)
    with pytest.raises(ValueError, match="q must be from 0 to 1, got 2"):
        empty.quantile(2)


def leaves(descriptor):
    """The paths of all values below a message; those of a shard are the same again."""
    for field in descriptor.fields:
        if field.message_type is None:
            yield (field.name,)
        elif field.name != "shards":
            yield from ((field.name, *rest) for rest in leaves(field.message_type))


def below(message, path):
    """The message that holds the last field of a path; makes those on the way."""
    for name in path[:-1]:
        value = getattr(message, name)
        if hasattr(value, "add"):
            message = value[0] if value else value.add()
        else:
            value.SetInParent()
            message = value
    return message


FIELDS = list(leaves(protos.StatusResponse.DESCRIPTOR))
# The limiter's own counters; those of the table go on over resets.
NOT_SHOWN = ("sample_count", "insert_count", "delete_count")


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_no_field_is_forgotten(path):
    """Fails for a field without an attribute; CONTRIBUTING.md has the recipe."""
    message = protos.StatusResponse()
    for other in FIELDS:
        if other[-1] in ("num_bounds", "latest_path"):
            parent = below(message, other)
            setattr(parent, other[-1], 3 if other[-1] == "num_bounds" else "here")
        below(message, other)
    before = ServerStatus.from_serialized_proto(message.SerializeToString())
    parent, field = below(message, path), path[-1]
    kind = parent.DESCRIPTOR.fields_by_name[field]
    if hasattr(getattr(parent, field), "append"):
        getattr(parent, field).append(5)
    elif kind.type in (kind.TYPE_STRING, kind.TYPE_BYTES):
        setattr(parent, field, "full" if kind.type == kind.TYPE_STRING else b"full")
    else:
        setattr(parent, field, 1 if kind.type in (kind.TYPE_BOOL, kind.TYPE_ENUM) else 5)
    after = ServerStatus.from_serialized_proto(message.SerializeToString())
    assert (before != after) == (field not in NOT_SHOWN)
