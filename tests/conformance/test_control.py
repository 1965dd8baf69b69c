# SPDX-License-Identifier: Apache-2.0
"""Changing priorities, resetting, information, errors and timeouts between the two packages."""

import pytest

from support.compared_packages import PAIRS_WITH_OURS
from support.package_workers import WorkerError

_PAIRS = [
    *PAIRS_WITH_OURS,
    pytest.param("peer", "peer", marks=pytest.mark.conformance),
]
both_ways = pytest.mark.parametrize(("client", "server"), _PAIRS)

_SIGNATURE = {
    "dict": {
        "b": {"spec": [[None, 3], "int32", "bb"]},
        "a": {"spec": [[], "float32", "aa", -1.0, 1.0]},
        "nested": {
            "tuple": [
                {"list": [{"spec": [None, "float64"]}, {"spec": [[2, 2], "uint8"]}]},
                {"named": {"z": {"spec": [[1], "bool"]}, "y": {"spec": [[1], "object"]}}},
            ]
        },
    }
}
_TABLES = [
    {"name": "heap", "sampler": "MaxHeap", "remover": "MinHeap", "max_size": 7},
    {"name": "prio", "sampler": "Prioritized 0.8", "limiter": ["SampleToInsertRatio", 2.0, 3, 4.0]},
    {"name": "queue", "limiter": ["Queue", 5], "max_times_sampled": 1, "max_size": 5},
    {"name": "stack", "sampler": "Lifo", "remover": "Lifo", "limiter": ["Stack", 5]},
    {"name": "uniform", "sampler": "Uniform", "signature": _SIGNATURE},
]


@pytest.fixture
def caller(client, worker_of):
    """The process of the client."""
    return worker_of(client, "client")


def _read(caller, address, count):
    return caller.call("read", address=address, count=count, how="sample")


@both_ways
def test_server_info_says_the_same_to_both_clients(client, server, caller, serve, worker_of):
    address = serve(server, *_TABLES)
    caller.call("insert", address=address, values=[1, 2], priorities={"heap": 1.0, "queue": 2.0})
    info = caller.call("server_info", address=address)
    assert sorted(info) == ["heap", "prio", "queue", "stack", "uniform"]
    assert (info["heap"]["current_size"], info["heap"]["num_episodes"]) == (2, 2)
    assert info["heap"]["signature"] is None
    assert [leaf[:2] for leaf in info["uniform"]["signature"]] == [
        [["a"], []],
        [["b"], [None, 3]],
        [["nested", "0", "0"], None],
        [["nested", "0", "1"], [2, 2]],
        # The fields of a named tuple keep their order; the paths name them or count them.
        [info["uniform"]["signature"][4][0], [1]],
        [info["uniform"]["signature"][5][0], [1]],
    ]
    assert info["uniform"]["signature"][0][2:] == ["float32", "aa", [-1.0, 1.0]]
    assert info == worker_of(server, "client").call("server_info", address=address)


@pytest.mark.conformance
def test_both_servers_say_the_same(serve, worker_of):
    caller = worker_of("peer", "client")
    infos = []
    for server in ("ours", "peer"):
        address = serve(server, *_TABLES)
        caller.call("insert", address=address, values=[1, 2, 3], priorities={"prio": 1.0})
        infos.append(caller.call("server_info", address=address))
    assert infos[0] == infos[1]


@both_ways
def test_priorities_change_and_deletes_come_first(client, server, caller, serve):
    address = serve(server, {"sampler": "MaxHeap"})
    caller.call("insert", address=address, values=[0, 1, 2], priorities={"table": 1.0})
    (first,) = _read(caller, address, 1)
    key = first["info"]["key"]
    caller.call("mutate", address=address, table="table", updates=[[key, 0.5]], deletes=[])
    (second,) = _read(caller, address, 1)
    assert second["info"]["key"] != key
    # A key in both lists is deleted, and the update of what is gone is ignored.
    key = second["info"]["key"]
    caller.call("mutate", address=address, table="table", updates=[[key, 9.0]], deletes=[key])
    (third,) = _read(caller, address, 1)
    assert third["info"]["key"] not in (first["info"]["key"], key)
    assert third["info"]["table_size"] == 2
    # Unknown keys and empty lists are fine.
    caller.call("mutate", address=address, table="table", updates=[[123, 1.0]], deletes=[456])
    caller.call("mutate", address=address, table="table", updates=[], deletes=[])


@both_ways
def test_reset_empties_a_table(client, server, caller, serve):
    address = serve(server)
    caller.call("insert", address=address, values=[0, 1], priorities={"table": 1.0})
    caller.call("reset", address=address, table="table")
    info = caller.call("server_info", address=address)["table"]
    assert (info["current_size"], info["num_episodes"], info["num_deleted_episodes"]) == (0, 0, 0)
    caller.call("insert", address=address, values=[7], priorities={"table": 1.0})
    assert _read(caller, address, 1)[0]["info"]["table_size"] == 1


@both_ways
@pytest.mark.parametrize(
    ("call", "arguments", "parent"),
    [
        ("reset", {"table": "nope"}, "RuntimeError"),
        ("mutate", {"table": "nope", "updates": [], "deletes": []}, "RuntimeError"),
        ("insert", {"values": [1], "priorities": {"nope": 1.0}}, "ValueError"),
    ],
    ids=["reset", "mutate", "insert"],
)
def test_an_unknown_table_has_the_error_that_programs_catch(
    client, server, caller, serve, call, arguments, parent
):
    address = serve(server)
    with pytest.raises(WorkerError) as caught:
        caller.call(call, address=address, **arguments)
    assert parent in caught.value.types


@both_ways
@pytest.mark.parametrize("priority", [float("nan"), -1.0])
def test_a_prioritized_table_refuses_a_bad_priority(client, server, caller, serve, priority):
    address = serve(server, {"sampler": "Prioritized 1"})
    caller.call("insert", address=address, values=[1], priorities={"table": 1.0})
    (before,) = _read(caller, address, 1)
    key = before["info"]["key"]
    with pytest.raises(WorkerError) as caught:
        caller.call("mutate", address=address, table="table", updates=[[key, priority]], deletes=[])
    assert "ValueError" in caught.value.types
    # The table goes on.
    caller.call("insert", address=address, values=[2], priorities={"table": 1.0})
    assert _read(caller, address, 1)[0]["info"]["table_size"] == 2


@both_ways
def test_items_unpack_in_the_structure_of_the_signature(client, server, caller, serve):
    signature = {"dict": {"value": {"list": [{"spec": [[None], "int64", None]}]}}}
    address = serve(server, {"signature": signature})
    caller.call("insert", address=address, values=[5], priorities={"table": 1.0})
    ((path, value),) = caller.call("sample_nested", address=address)
    assert path == ["value", "0"]
    assert (value["dtype"], value["shape"]) == ("int64", [1])


@both_ways
def test_wrong_items_are_refused_by_the_signature(client, server, caller, serve):
    signature = {"list": [{"spec": [[None], "float32", None]}]}
    address = serve(server, {"signature": signature})
    with pytest.raises(WorkerError) as caught:
        caller.call("insert", address=address, values=[5], priorities={"table": 1.0})
    assert "ValueError" in caught.value.types
