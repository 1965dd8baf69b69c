# SPDX-License-Identifier: Apache-2.0
"""Calls of one request and one answer: the same in the server's process and over the network.

The answers, the errors, the lines of the log, and the author of a change.
"""

import re

import pytest

import reverb
from reverb.core import native, protos
from support import rollout_tables
from support.hosts import HOSTS

STREAMS = {
    *("InsertStream", "SampleStream", "Scan", "HoldRateLimiter", "HoldLeases", "Watch", "Transfer"),
    *("MutatePriorities", "UpdatePriorities", "InitializeConnection"),
    *("Health/Check", "Health/Watch", "ServerReflectionInfo"),
}
_MAP = protos.ShardMap(
    group="g",
    epoch=3,
    shards=[protos.Shard(index=0, weight=1.0)],
    slots=[protos.SlotRange(first=0, count=4096, owner=0)],
)
_LEASE = protos.Lease(holder=1, number=1)
_CHANGE = protos.TableChange(table="a", max_size=7)
_ITEM = {"table": "rollouts", "lease": _LEASE}
# Requests for a server that has a table with rollouts, too.
ROLLOUTS = {
    "Take": [
        {**_ITEM, "num_items": 1, "is_partial": True, "timeout_ms": 0},
        {**_ITEM, "num_items": 1, "timeout_ms": 0},
        {"table": "rollouts"},
        {"table": "a", "lease": _LEASE},
    ],
    "Settle": [_ITEM, {**_ITEM, "all": True, "ack": True}, {"table": "a"}],
    "FailRollout": [{**_ITEM, "key": 1, "rollout": protos.Rollout(failed="a test")}, _ITEM],
    "SetVersion": [{"table": "rollouts", "version": 1}, {"table": "a"}, {"table": "nothing"}],
}
# Requests of each call, good ones and bad ones, in the order in which they are made.
REQUESTS = {
    "Reset": [{"table": "a"}, {"table": "nothing"}],
    "ServerInfo": [{}],
    "Checkpoint": [{}],
    "CheckpointStatus": [{}],
    "Status": [{}, {"with_streams": True}],
    "WaitReason": [{"table": "a"}, {"table": "nothing"}, {}],
    "ConfigureTables": [
        {"changes": [_CHANGE]},
        {"changes": [_CHANGE, _CHANGE]},
        {"changes": [protos.TableChange(table="a", max_size=-1)]},
        {"changes": [protos.TableChange(table="nothing")]},
        {},
    ],
    "SetPaused": [
        {"table": "a", "inserts": True, "paused": True},
        {"table": "a", "inserts": True, "samples": True},
        {"table": "a"},
        {"table": "nothing", "samples": True},
    ],
    "DeleteItems": [
        {"table": "a", "keys": protos.ItemKeys(keys=[1])},
        {"table": "a", "condition": protos.ItemCondition(max_priority=1.0)},
        {"table": "a"},
        {"table": "a", "condition": protos.ItemCondition()},
        {"table": "nothing", "keys": protos.ItemKeys()},
    ],
    "Directory": [{}, {"tables": ["a", "nothing"]}],
    "SetDirectory": [{}, {"map": _MAP}, {"map": _MAP}],
    "SetRateLimiter": [
        {"table": "a", "min_diff": -1.0, "max_diff": 1.0, "min_size_to_sample": 1, "term": 1},
        {"table": "a", "restore": True},
        {"table": "nothing"},
    ],
    **ROLLOUTS,
    "Sync": [{}, {"note": b"n" * 65_537}],
    "Drain": [{"timeout_s": -1.0}, {"timeout_s": 0.0}],
}


def test_every_small_call_is_tried():
    names = {name for name, _ in native.call_rights()}
    assert {*REQUESTS, *STREAMS} == names


def test_the_name_of_a_table_is_a_text():
    with reverb.Server([reverb.Table.queue("a", 10)]) as server:
        client = reverb.Client(f"localhost:{server.port}")
        for call in (client.reset, client.pause_table, client.resume_table):
            with pytest.raises(
                TypeError, match="table must be a str, the name of a table, got int"
            ):
                call(5)


def _without_numbers(text):
    """Leaves out what differs between any two servers: numbers, ids, times, directories."""
    return re.sub(r"\S*/tmp\S*|0x\w+|\d+(\.\d+)?(e[-+]?\d+)?", "#", str(text))


# Fields that count what comes over the network, and how long the server runs.
_OF_THE_WAY = ("traffic", "process", "history", "memory", "streams")


def _outcome(client, name, request):
    message = getattr(protos, f"{name}Request")(**request).SerializeToString()
    try:
        answer = client._client.call(name, message)
    except reverb.errors.ReverbError as error:
        return type(error).__name__, _without_numbers(error)
    told = getattr(protos, f"{name}Response").FromString(answer)
    for field in _OF_THE_WAY:
        if field in told.DESCRIPTOR.fields_by_name:
            told.ClearField(field)
    # A time of 0 is left out, so all numbers are.
    return "answer", re.sub(r"\n? *\w+: #(?=\n)", "", _without_numbers(told))


def _life(host, name, root, log):
    """Makes the calls at a new server; returns what came back, what changed, and the log."""
    log.clear()
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    tables = [reverb.Table.queue("a", 10)]
    if name in ROLLOUTS:
        tables.append(rollout_tables.table(1, name="rollouts"))
    store = reverb.Store(root / "store") if name == "Sync" else None
    with reverb.Server(tables, checkpointer=checkpointer, store=store) as server:
        client = reverb.Client(f"{host}:{server.port}")
        outcomes = [_outcome(client, name, request) for request in REQUESTS[name]]
        paused = server.status().tables["a"].inserting.paused
        by = paused and paused.client
        lines = [
            (record.levelname, _without_numbers(record.getMessage()))
            for record in log.records
            # Writers that earlier tests have dropped end in threads of their own.
            if not re.search("writer was dropped|dropped writer", record.getMessage())
        ]
    return outcomes, by, lines


@pytest.mark.parametrize("name", REQUESTS)
def test_a_call_is_the_same_in_process_and_over_the_network(name, tmp_path, caplog):
    caplog.set_level("INFO")
    reverb.logging.to_python()
    try:
        local, remote = (_life(host, name, tmp_path / path, caplog) for path, host in HOSTS.items())
    finally:
        reverb.logging.to_stderr()
    assert local[0] == remote[0]
    assert local[1:] == remote[1:]
    # A take needs a stream that holds its lease: `tests/rollouts`.
    assert name == "Take" or any(kind == "answer" for kind, _ in local[0]), local[0]
