# SPDX-License-Identifier: Apache-2.0
"""What is told of a server's store: in its status, by `reverb why` and by `reverb top`."""

import json

import pytest

import reverb
from reverb import testing
from reverb.command.top import server_facts
from reverb.command.top.picture import BLOCKS
from reverb.command.why import Report
from reverb.core import protos
from reverb.server_status import ServerStatus

GIB = 2**30


def status(**fields):
    """A status with a store that has these fields."""
    message = protos.StatusResponse(store=protos.StoreStatus(state="ok", **fields))
    return ServerStatus.from_serialized_proto(message.SerializeToString())


def failing(error="write to /scratch/data-0000000001.seg: No space left on device"):
    message = protos.StatusResponse(
        store=protos.StoreStatus(
            path="/scratch", state="failing", error=error, failing_since_ns=5_000_000_000
        )
    )
    return ServerStatus.from_serialized_proto(message.SerializeToString())


def test_a_store_that_works_has_no_error():
    store = status(live_bytes=5).store
    assert (store.state, store.error, store.failing_since, store.path) == ("ok", None, None, None)
    assert store.live_bytes == 5


def test_a_store_that_fails_says_why_and_since_when():
    store = failing().store
    assert (store.state, store.path, store.failing_since) == ("failing", "/scratch", 5.0)
    assert store.error.endswith("No space left on device")


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (status(max_bytes=GIB), "0 B of 1.0 GiB, 0% of the data garbage; 0 reads, 0 errors"),
        (
            status(
                live_bytes=3 * GIB,
                dead_bytes=GIB,
                max_bytes=8 * GIB,
                reads=1000,
                read_seconds=2.5,
                read_errors=1,
            ),
            "4.0 GiB of 8.0 GiB, 25% of the data garbage; 1000 reads of 2 ms, 1 error",
        ),
        (
            status(
                is_journal=True, lag_seconds=0.5, log_bytes=GIB, base_bytes=GIB, max_bytes=8 * GIB
            ),
            "2.0 GiB of 8.0 GiB, 0% of the data garbage; journal: 500 ms behind, log 1.0 GiB, base "
            "1.0 GiB; 0 reads, 0 errors",
        ),
        (
            failing("bad\x1b[31m"),
            "failing (bad\\x1b[31m), 0 B of 0 B, 0% of the data garbage; 0 reads, 0 errors",
        ),
    ],
)
def test_the_disk_in_a_line(shown, text):
    assert server_facts.disk(shown) == text
    last = server_facts.memory(shown, BLOCKS, 200)[-1]
    assert last.plain == f"Disk: {text}"


def test_why_tells_of_the_disk():
    with reverb.Server([testing.table("t")]) as server:
        message = protos.StatusResponse.FromString(server._server.status(False))
    without = Report("a:1", ServerStatus.from_serialized_proto(message.SerializeToString()))
    assert "disk: " not in without.as_text()
    assert without.as_dict()["store"] is None
    message.store.state = "full"
    message.store.max_bytes = GIB
    report = Report("a:1", ServerStatus.from_serialized_proto(message.SerializeToString()))
    assert report.as_text().splitlines()[-1].startswith("disk: full, 0 B of 1.0 GiB, ")
    told = json.loads(json.dumps(report.as_dict()))["store"]
    assert (told["state"], told["max_bytes"], told["error"]) == ("full", GIB, None)
