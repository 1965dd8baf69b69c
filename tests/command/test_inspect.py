# SPDX-License-Identifier: Apache-2.0
"""Reports of `reverb inspect` about servers and checkpoints."""

import json
import re
import time

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.errors import UnimplementedError
from reverb.specs import TensorSpec

PRIORITIES = [0.0, 1.0, 4.0, 5.0]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def client(root):
    """A server with a table of four items, one of which was sampled, and an empty one."""
    signature = {"a": TensorSpec([None, 2], np.float32), "b": (TensorSpec([None], object),)}
    tables = [
        testing.table(
            "replay",
            sampler=reverb.selectors.Prioritized(0.5),
            remover=reverb.selectors.MinHeap(),
            max_size=5000,
            max_times_sampled=7,
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(1.5, 2, 30.0),
            signature=signature,
        ),
        testing.table("empty", sampler=reverb.selectors.Uniform()),
    ]
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    with reverb.Server(tables, checkpointer=checkpointer) as server:
        client = reverb.Client(f"127.0.0.1:{server.port}")
        with client.trajectory_writer(5) as writer:
            for i, priority in enumerate(PRIORITIES):
                writer.append({"a": np.full(2, i, np.float32), "b": ("text",)})
                history = writer.history
                trajectory = {"a": history["a"][-i - 1 :], "b": (history["b"][0][-i - 1 :],)}
                writer.create_item("replay", priority, trajectory)
        next(client.sample("replay", emit_timesteps=False))
        client.checkpoint()
        yield client


@pytest.fixture(params=["server", "checkpoint"])
def source(request, client, root):
    return client.server_address if request.param == "server" else str(root)


def report(run, *arguments):
    code, out, err = run("inspect", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_settings_and_counters(run, source):
    table = report(run, source)["tables"]["replay"]
    assert (table["size"], table["max_size"], table["max_times_sampled"]) == (4, 5000, 7)
    assert table["sampler"] == {"kind": "prioritized", "priority_exponent": 0.5}
    assert table["remover"] == {"kind": "min_heap"}
    assert table["rate_limiter"] == {
        "min_size_to_sample": 2,
        "samples_per_insert": 1.5,
        "min_diff": -27.0,
        "max_diff": 33.0,
        "num_inserts": 4,
        "num_samples": 1,
    }
    assert (table["num_unique_samples"], table["num_deleted_episodes"]) == (1, 0)
    assert table["signature"] == [
        {"name": "a", "dtype": "float32", "shape": [None, 2]},
        {"name": "b/0", "dtype": "string", "shape": [None]},
    ]


def test_the_items_in_numbers(run, source):
    items = report(run, source)["tables"]["replay"]["items"]
    assert items["num_items"] == 4
    names = ("min", "median", "mean", "max")
    assert [items[f"priority_{name}"] for name in names] == [0.0, 2.5, 2.5, 5.0]
    assert items["priority_zeros"] == 1
    sampled = [items[f"times_sampled_{name}"] for name in ("min", "mean", "max")]
    assert sampled == [0, 0.25, 1]
    assert [items[f"length_{name}"] for name in names] == [1, 2.5, 2.5, 4]
    times = [items[f"{name}_inserted_at"] for name in ("oldest", "median", "newest")]
    assert times == sorted(times)
    assert time.time() - 3600 < times[0] <= times[-1] <= time.time() + 1


def test_bytes_are_those_of_chunks_or_of_items(run, client, root):
    items = report(run, str(root))["tables"]["replay"]["items"]
    assert items["num_chunks"] >= 1
    assert items["chunk_bytes"] > 0
    assert items["decoded_bytes"] >= 4 * (8 + 4)
    assert "item_bytes" not in items
    items = report(run, client.server_address)["tables"]["replay"]["items"]
    assert items["num_chunks"] is items["chunk_bytes"] is items["decoded_bytes"] is None
    assert items["item_bytes"] == (1 + 2 + 3 + 4) * (8 + 4)


def test_an_empty_table_has_no_spread(run, source):
    table = report(run, source)["tables"]["empty"]
    assert table["signature"] is None
    items = table["items"]
    assert items["num_items"] == items["priority_zeros"] == 0
    assert items["priority_min"] is items["length_mean"] is items["oldest_inserted_at"] is None


def test_a_single_table(run, source):
    assert list(report(run, source, "--table=empty")["tables"]) == ["empty"]


def test_without_items(run, source):
    found = report(run, source, "--no-items")
    assert found["tables"]["replay"]["items"] is None
    assert found["tables"]["replay"]["size"] == 4
    assert found["items_unread"] == "--no-items was given"


def test_where_it_comes_from(run, client, root):
    found = report(run, client.server_address)
    assert (found["kind"], found["source"]) == ("server", client.server_address)
    assert abs(found["read_at"] - time.time()) < 600
    (latest,) = (path for path in root.iterdir() if path.is_dir())
    for path in (root, latest):
        found = report(run, str(path))
        assert (found["kind"], found["source"]) == ("checkpoint", str(latest))


EXPECTED = """\
server {address}, 1 table

table replay
  size                  4 of 5,000 items
  sampler               prioritized, exponent 0.5
  remover               min_heap
  max_times_sampled     7
  min_size_to_sample    2
  samples_per_insert    1.5
  min_diff, max_diff    -27, 33
  inserts, samples      4, 1 (diff 5)
  items ever sampled    1
  episodes              1, 0 deleted
  bytes                 120 B decoded, steps counted for each item that has them
  oldest item           {moment}
  median item           {moment}
  newest item           {moment}
  priority              min 0, median 2.5, mean 2.5, max 5; 1 are 0
  times sampled         min 0, mean 0.25, max 1
  item length           min 1, median 2.5, mean 2.5, max 4
  signature
    a    float32 [?, 2]
    b/0  string [?]
"""
MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} \(\d+ (s|min)( \d+ s)? ago\)"


def test_the_text_for_people(run, client):
    code, out, err = run("inspect", client.server_address, "--table=replay")
    assert (code, err) == (0, "")
    pattern = re.escape(EXPECTED.format(address=client.server_address, moment="MOMENT"))
    assert re.fullmatch(pattern.replace("MOMENT", MOMENT), out), out


def test_the_text_of_a_checkpoint_has_its_chunks(run, root):
    code, out, _ = run("inspect", root)
    assert code == 0
    assert re.search(r"^  chunks +\d+$", out, re.MULTILINE)
    assert re.search(r"^  bytes +\d+ B as stored, \d+ B decoded$", out, re.MULTILINE)
    # A checkpoint does not have the number of episodes.
    assert "  episodes              0 deleted\n" in out
    assert out.endswith("  signature             none\n")


def test_infinite_priorities_are_strings_in_json(run):
    with testing.server() as client:
        for priority in (float("inf"), 1.0, -float("inf")):
            client.insert([1], {"table": priority})
        items = report(run, client.server_address)["tables"]["table"]["items"]
        assert [items[f"priority_{name}"] for name in ("min", "median", "mean", "max")] == [
            "-inf",
            1.0,
            "nan",
            "inf",
        ]
        code, out, _ = run("inspect", client.server_address)
        assert code == 0
        assert "priority              min -inf, median 1, mean nan, max inf\n" in out


def test_a_server_that_cannot_be_scanned_has_counters(run, client, monkeypatch):
    def refuse(self, table, **options):
        raise UnimplementedError("it is a server of dm-reverb")
        yield

    monkeypatch.setattr(reverb.Client, "scan", refuse)
    code, out, err = run("inspect", client.server_address)
    assert (code, err) == (0, "")
    assert "Items were not read: it is a dm-reverb server" in out
    assert "  size                  4 of 5,000 items\n" in out
    found = report(run, client.server_address)
    assert found["tables"]["replay"]["items"] is None
    assert "dm-reverb" in found["items_unread"]


def test_an_unknown_table_is_an_error_that_names_those_there_are(run, client, root):
    assert run("inspect", client.server_address, "--table=nope") == (
        1,
        "",
        f"reverb: error: server {client.server_address} does not contain any table named nope. "
        "Found: empty, replay.\n",
    )
    code, out, err = run("inspect", root, "--table=nope")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"reverb: error: checkpoint .* does not contain any table named .*\n", err)


def test_a_progress_bar_is_drawn_on_a_terminal(client, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    items = testing.table("items", max_size=10_000)
    with testing.server([items]) as other:
        other.insert_batch([np.zeros(5000)], {"items": 1.0})
        assert command.main(["inspect", other.server_address]) == 0
        out, err = capsys.readouterr()
        assert re.search(r"\rreading|reading \[", err)
        assert err.endswith("\r\x1b[K")
        assert "reading" not in out
        assert command.main(["inspect", other.server_address, "--no-progress"]) == 0
        assert capsys.readouterr().err == ""
