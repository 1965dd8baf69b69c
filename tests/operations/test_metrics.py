# SPDX-License-Identifier: Apache-2.0
"""The HTTP port: metrics as foreign parsers read them, probes, and the status as JSON."""

import json
import math
import pathlib
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from google.protobuf import json_format
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

import reverb
from reverb import testing
from reverb.core import protos
from reverb.errors import InvalidArgumentError
from reverb.server_status import ServerStatus
from support.pages import get

WATCHING = (pathlib.Path(__file__).parents[2] / "docs/howto/watching.md").read_text()
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
# Names that break a careless encoder.
NAMES = ["replay", 'a"b\\c\nd', "<img src=x onerror=alert(1)>", "é\U0001f600", "x" * 10_000]


def series(families):
    """All series, by name and labels."""
    found = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return found


def series_of(server):
    return series(parse_prometheus(get(server, "/metrics").text))


@pytest.fixture
def server():
    tables = [
        testing.table(
            "replay", sampler=reverb.selectors.Prioritized(2.0), max_size=8, max_times_sampled=3
        ),
        *[testing.table(name) for name in NAMES[1:]],
        reverb.Table.queue("queue", 2, max_bytes="1MB"),
    ]
    with reverb.Server(tables, http_port=0, max_bytes="64MiB") as server:
        client = server.localhost_client()
        client.insert_batch({"x": np.arange(10)}, {"replay": np.full(10, 2.0)})
        client.sample_batch("replay", 12)
        client.insert(np.zeros(3), {NAMES[1]: 1.0})
        client.reset(NAMES[1])
        client.pause_table("queue", samples=False)
        yield server


REASONS = (
    *("full", "bytes", "sampled_out", "deleted", "reset", "shrunk", "lost", "failed", "stale"),
    "replaced",
)


def expected(name, table):
    """The series of a table by its status, without histograms."""
    label = ("table", name)
    limiter, removed = table.limiter, table.removed
    sides = {"insert": table.inserting, "sample": table.sampling}

    def key(series, **labels):
        return (f"reverb_table_{series}", *sorted([label, *labels.items()]))

    return {
        key("items"): table.items,
        key("max_items"): table.max_items,
        key("bytes"): table.bytes,
        key("max_bytes"): table.max_bytes or math.inf,
        key("forecast_bytes"): table.forecast_bytes or math.nan,
        key("chunks"): table.chunks,
        key("episodes"): table.episodes,
        key("mass"): math.nan if table.mass is None else table.mass,
        key("inserts_total"): table.inserts,
        key("samples_total"): table.samples,
        key("priority_updates_total"): table.priority_updates,
        **{key("removed_total", reason=reason): getattr(removed, reason) for reason in REASONS},
        key("removed_unsampled_total"): removed.unsampled,
        key("limiter_diff"): table.cursor,
        key("limiter_min_diff"): limiter.min_diff,
        key("limiter_max_diff"): limiter.max_diff,
        key("limiter_samples_per_insert"): limiter.samples_per_insert,
        key("limiter_min_size"): limiter.min_size_to_sample,
        **{key("waiting", side=side): it.waiting for side, it in sides.items()},
        **{
            key("oldest_wait_seconds", side=side): it.oldest_wait_s or 0
            for side, it in sides.items()
        },
        **{key("paused", side=side): int(it.paused is not None) for side, it in sides.items()},
        **{key("blocked_seconds_total", side=side): it.blocked_s for side, it in sides.items()},
        key("last_insert_timestamp_seconds"): table.inserting.last_at or 0,
        key("last_sample_timestamp_seconds"): table.sampling.last_at or 0,
        **{
            key("busy_seconds_total", activity=activity): seconds
            for activity, seconds in table.busy_s.items()
            if activity != "sleeping"
        },
    }


def expected_histogram(name, labels, histogram, zeros=None):
    """The series of a histogram; `zeros` are counted under the bound 0."""
    counts = list(histogram.counts)
    bounds = [*histogram.bounds, math.inf]
    if zeros is not None:
        counts, bounds = [zeros, *counts], [0.0, *bounds]
    cumulative = np.cumsum(counts)

    def key(suffix, **more):
        return (f"reverb_table_{name}_{suffix}", *sorted({**labels, **more}.items()))

    return {
        **{
            key("bucket", le="+Inf" if math.isinf(bound) else str(bound)): count
            for bound, count in zip(bounds, cumulative, strict=True)
        },
        key("sum"): histogram.sum,
        key("count"): cumulative[-1],
    }


def with_numeric_bounds(found):
    """Bounds may be written in several ways."""

    def bound(label, value):
        return (label, float(value)) if label == "le" else (label, value)

    return {(name, *(bound(*it) for it in labels)): v for (name, *labels), v in found.items()}


@pytest.mark.parametrize(
    ("accept", "parse"), [("*/*", parse_prometheus), (OPENMETRICS, parse_openmetrics)]
)
def test_foreign_parsers_read_what_status_says(server, accept, parse):
    page = get(server, "/metrics", Accept=accept)
    status = server.status()
    assert page.status == 200
    expected_type = accept.split(";")[0].replace("*/*", "text/plain; version=0.0.4")
    assert page.headers["Content-Type"].startswith(expected_type)
    found = with_numeric_bounds(series(parse(page.text)))
    assert set(status.tables) == {*NAMES, "queue"}
    for name, table in status.tables.items():
        label = {"table": name}
        all_of_table = {
            **expected(name, table),
            **expected_histogram("sample_age_seconds", label, table.sample_age_s),
            **expected_histogram(
                "times_sampled", label, table.removed.times_sampled, table.removed.unsampled
            ),
            **expected_histogram(
                "wait_seconds", {**label, "side": "insert"}, table.inserting.wait_s
            ),
            **expected_histogram(
                "wait_seconds", {**label, "side": "sample"}, table.sampling.wait_s
            ),
        }
        for key, value in with_numeric_bounds(all_of_table).items():
            assert found.pop(key) == pytest.approx(value, nan_ok=True), key
        sleeping = ("reverb_table_busy_seconds_total", ("activity", "sleeping"), ("table", name))
        assert found.pop(sleeping) <= table.busy_s["sleeping"]
    left = {name for name, *_ in found if name.startswith("reverb_table")}
    assert not left, "series that no test knows"


def test_the_series_of_the_server(server):
    found = series_of(server)
    status = server.status()
    protocol, version = ("protocol", "dm-reverb 0.14"), ("version", reverb.__version__)
    assert found["reverb_build_info", protocol, version] == 1
    for kind in ("tables", "streams", "queued", "other"):
        assert found["reverb_memory_bytes", ("kind", kind)] == getattr(status.memory, kind)
    assert found["reverb_memory_limit_bytes",] == 64 * 2**20
    for kind in ("insert", "sample", "scan"):
        assert found["reverb_streams", ("kind", kind)] == status.traffic.streams[kind]
    assert found["reverb_connections",] == status.traffic.connections == 0
    assert found["process_max_fds",] == status.process.max_fds
    assert found["process_resident_memory_bytes",] > 2**20
    assert found["process_start_time_seconds",] == pytest.approx(status.process.started_at)


def test_series_of_a_shard_have_its_number():
    shard = reverb.cluster.Shard(1, 3, "g")
    with reverb.Server([testing.table()], http_port=0, shard=shard) as server:
        found = series_of(server)
    assert all(("shard", "1") in labels for _, *labels in found)
    of_group = {
        dict(labels)["member"]: it
        for (name, *labels), it in found.items()
        if name == "reverb_shards"
    }
    assert of_group == {"0": 0, "1": 1, "2": 0}


def test_every_series_is_explained(server):
    """Fails for a series that was forgotten in the docs; CONTRIBUTING.md has the recipe."""
    names = {family.name for family in parse_prometheus(get(server, "/metrics").text)}
    assert len(names) > 40
    assert {name for name in names if not explained(name)} == set()


def explained(name):
    """Later names of a row are written without `reverb_table` or `reverb_checkpoint`."""
    short = [name.removeprefix(prefix) for prefix in ("", "reverb_table", "reverb_checkpoint")]
    written = rf"(`|\.\.\.)({'|'.join(short)})(_total)?[`{{]"
    return name.startswith("process_") or re.search(written, WATCHING)


def test_calls_and_checkpoints(server):
    client = reverb.Client(f"127.1:{server.port}")
    client.checkpoint()
    with pytest.raises(reverb.errors.ReverbError):
        client.reset("missing")
    status = server.status()
    found = series_of(server)
    call = ("reverb_calls_total", ("code", "NOT_FOUND"), ("method", "Reset"))
    assert found[call] == 1
    assert found["reverb_connections",] == 1
    assert found["reverb_received_bytes_total",] >= status.traffic.received_bytes > 0
    assert found["reverb_checkpoints_total", ("result", "saved")] == 1
    assert found["reverb_checkpoints_total", ("result", "failed")] == 0
    checkpoints = status.checkpoints
    assert checkpoints == client.checkpoint_status()
    assert found["reverb_checkpoint_last_bytes",] == checkpoints.latest_bytes > 100
    prefix = "reverb_checkpoint_last"
    assert found[f"{prefix}_success_timestamp_seconds",] == checkpoints.latest_saved_at
    assert found[f"{prefix}_duration_seconds",] == checkpoints.latest_duration_s
    assert found[f"{prefix}_pause_seconds",] == pytest.approx(checkpoints.latest_pause_ms / 1e3)
    assert found["reverb_checkpoint_saving",] == 0
    assert (found["reverb_checkpoint_interval_seconds",], checkpoints.interval_s) == (0, None)


def test_how_often_a_server_saves_is_told(tmp_path):
    with reverb.Server(
        [testing.table()],
        http_port=0,
        checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path)),
        checkpoint_interval_s=600.0,
    ) as server:
        assert series_of(server)["reverb_checkpoint_interval_seconds",] == 600
        assert server.status().checkpoints.interval_s == 600


def test_methods_of_the_same_name_are_one_series(server):
    """Prometheus refuses a scrape in which a series occurs twice."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for version in ("v1", "v1alpha"):
            path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            assert list(channel.stream_stream(path)(iter([]), timeout=10)) == []
    call = ("reverb_calls_total", ("code", "OK"), ("method", "ServerReflectionInfo"))
    assert series_of(server)[call] == 2
    assert server.status().traffic.calls["ServerReflectionInfo", "OK"] == 2


def test_counters_never_go_down(server):
    client = server.localhost_client()
    before = series_of(server)
    client.reset("replay")
    client.insert(np.zeros(3), {"replay": 1.0})
    after = series_of(server)
    counters = [key for key in before if key[0].endswith(("_total", "_count", "_bucket", "_sum"))]
    assert len(counters) > 100
    assert all(after[key] >= before[key] for key in counters)
    inserts = ("reverb_table_inserts_total", ("table", "replay"))
    assert after[inserts] == before[inserts] + 1


def test_json_is_the_json_of_the_message(server):
    code, headers, text = get(server, "/api/status")
    assert (code, headers["Content-Type"]) == (200, "application/json")
    message = json_format.Parse(text, protos.StatusResponse())
    parsed = ServerStatus.from_serialized_proto(message.SerializeToString())
    status = server.status()
    assert parsed.memory == status.memory
    assert list(parsed.tables) == list(status.tables)
    assert parsed.tables["replay"].sample_age_s == status.tables["replay"].sample_age_s
    assert json.loads(text)["tables"][0]["numItems"] == str(status.tables["replay"].items)


def test_probes_and_unknown_pages(server):
    assert get(server, "/livez")[::2] == (200, "alive\n")
    assert get(server, "/readyz")[::2] == (200, "ready\n")
    code, _, text = get(server, "/metric")
    assert code == 404
    assert "/metrics" in text


def test_a_host_of_the_web_is_refused(server):
    """A page of the web can make its own name point to this machine, and let the browser ask."""
    assert get(server, "/api/status", Host="evil.example").status == 403
    for host in ("localhost", f"localhost:{server.http_port}", "127.0.0.1"):
        assert get(server, "/readyz", Host=host).status == 200


def test_a_hundred_tables_fit_into_two_megabytes():
    tables = [testing.table(f"table_{i}") for i in range(100)]
    with reverb.Server(tables, http_port=0) as server:
        text = get(server, "/metrics").text
        assert len(text) <= 2_000_000
        assert len(list(parse_prometheus(text))) > 40


def test_the_other_port_tells_where_the_metrics_are(server):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10)
    assert error.value.code == 400
    assert f"Metrics and probes are on port {server.http_port}." in error.value.read().decode()


class TestPort:
    def test_it_closes_with_the_server(self):
        server = reverb.Server([testing.table()], http_port=0)
        port = server.http_port
        server.stop()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
        assert server.http_port == port

    def test_there_is_none_unless_it_is_asked_for(self):
        with reverb.Server([testing.table()]) as server:
            assert server.http_port is None

    def test_a_port_that_is_taken_is_named(self):
        with reverb.Server([testing.table()], http_port=0) as server:
            taken = server.http_port
            with pytest.raises(InvalidArgumentError) as error:
                reverb.Server([testing.table()], http_port=taken)
            assert str(error.value).startswith(
                f"http_port: The server cannot listen on port {taken} of 127.0.0.1:"
            )

    def test_a_number_that_is_no_port_is_named(self):
        with pytest.raises(InvalidArgumentError, match="http_port must be from 0 to 65535, got -1"):
            reverb.Server([testing.table()], http_port=-1)

    def test_it_closes_if_the_server_cannot_start(self, tmp_path):
        with reverb.Server([testing.table()]) as running, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
            probe.close()
            with pytest.raises(InvalidArgumentError):
                reverb.Server([testing.table()], port=running.port, http_port=free)
            reverb.Server([testing.table()], http_port=free).stop()


@pytest.mark.debian
@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool of Debian's package prometheus is missing"
)
def test_promtool_finds_nothing_to_say(server):
    text = get(server, "/metrics").text
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr, checked.stdout) == (0, "", "")
