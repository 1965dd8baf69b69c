# SPDX-License-Identifier: Apache-2.0
"""A bool is no count: `True` as an integer argument is a `TypeError`, not 1.

The arguments are found by their annotations, so that a new one is tried too. Arguments of dm-reverb
take a bool as they do there.
"""

import asyncio
import contextlib
import inspect
import re
import typing

import numpy as np
import pytest

import reverb
from reverb import aio, testing

# Values for arguments that are required, by name.
REQUIRED = {
    "table": "t",
    "tables": "t",
    "batch_size": 1,
    "num_keep_alive_refs": 2,
    "max_sequence_length": 2,
    "sequence_length": 1,
    "keys": [1],
    "configs": [],
    "name": "t",
    "sampler": reverb.selectors.Fifo,
    "remover": reverb.selectors.Fifo,
    "rate_limiter": lambda: reverb.rate_limiters.MinSize(1),
    "max_size": 1,
    "num_rollouts": 1,
    "signature": {
        "prompt": reverb.specs.TensorSpec([], "int32"),
        "x": reverb.specs.TensorSpec([], "int32"),
    },
    "num_items": 0,
}
# Arguments that have an effect only beside others.
BESIDE = {
    ("sequence_writer", "max_sequence_length"): {"sequence_length": None},
    ("fetch", "pad_to_multiple_of"): {"ragged": "pad"},
    ("sample_batch", "pad_to_multiple_of"): {"ragged": "pad"},
}
# Arguments that dm-reverb has, or accepts and ignores.
OF_DM_REVERB = {
    ("Table", "max_size"),
    ("Table", "max_times_sampled"),
    ("queue", "max_size"),
    ("stack", "max_size"),
    ("sample", "num_samples"),
    ("server_info", "timeout"),
    ("trajectory_writer", "num_keep_alive_refs"),
    ("trajectory_writer", "get_signature_timeout_ms"),
    ("writer", "max_sequence_length"),
    ("writer", "chunk_length"),
    ("writer", "max_in_flight_items"),
}


def integer_arguments(function):
    """The arguments that may be an int, but not a float."""
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
        if int in kinds and float not in kinds:
            yield name


def methods(cls):
    return {
        name: value
        for name, value in inspect.getmembers(cls, callable)
        if not name.startswith("_") and name != "replace"
    }


CALLS = {
    **{("Client", name): it for name, it in methods(reverb.Client).items()},
    **{("aio", name): it for name, it in methods(aio.Client).items()},
    ("function", "batches"): reverb.batches,
    ("function", "wait_for_items"): testing.wait_for_items,
    ("function", "Table"): reverb.Table,
    ("function", "queue"): reverb.Table.queue,
    ("function", "stack"): reverb.Table.stack,
    ("function", "rollouts"): reverb.Table.rollouts,
}
CASES = [
    (*call, argument)
    for call, function in CALLS.items()
    for argument in integer_arguments(function)
    if (call[1], argument) not in OF_DM_REVERB
]


@pytest.fixture(scope="module")
def server():
    with testing.server([testing.table("t")]) as made:
        yield made


def call(function, argument, value, client=None):
    given = dict(BESIDE.get((function.__name__, argument), ()))
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            known = client if name == "client" else REQUIRED.get(name)
            given.setdefault(name, known() if callable(known) else known)
    result = function(**(given | {argument: value}))
    if inspect.isgenerator(result) or hasattr(result, "__next__"):
        next(result)
    if isinstance(result, contextlib.AbstractContextManager):
        result.__enter__()
    return result


def tried(owner, name, argument, value, client):
    if owner == "aio":
        asyncio.run(awaited(client.server_address, name, argument, value))
    elif owner == "Client":
        call(getattr(client, name), argument, value)
    else:
        call(CALLS[owner, name], argument, value, client)


async def awaited(address, name, argument, value):
    async with aio.Client(address) as client:
        result = call(getattr(client, name), argument, value)
        if hasattr(result, "__anext__"):
            await anext(result)
        elif isinstance(result, contextlib.AbstractAsyncContextManager):
            await result.__aenter__()
        else:
            await result


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_bool_is_no_number(server, case, value):
    owner, name, argument = case
    # Each shows the value, or its type.
    text = re.escape(argument) + " must be .*, got (bool|True|False)"
    with reverb.Client(server.server_address) as client, pytest.raises(TypeError, match=text):
        tried(owner, name, argument, value, client)


def test_enough_arguments_were_found():
    found = {name: {case[2] for case in CASES if case[1] == name} for _, name, _ in CASES}
    assert found["batches"] >= {"batch_size", "prefetch", "epochs", "end_after_ms", "timeout_ms"}
    assert found["batch_sampler"] >= {"batch_size", "num_buffers", "epochs"}
    assert found["drain"] == {"timeout_ms"}


def test_arguments_that_are_passed_on_are_checked(server):
    with reverb.Client(server.server_address) as client:
        with pytest.raises(TypeError, match="epochs must be an integer, got bool"):
            client.batches("t", 1, epochs=True)
        writer = client.sequence_writer("t", 1)
        with pytest.raises(TypeError, match="timeout_ms must be an integer, got bool"):
            writer.flush(timeout_ms=True)
        writer.close()


@pytest.mark.parametrize(
    ("call_of", "argument"),
    [
        (lambda: reverb.TableChange(max_size=True).to_proto("t"), "max_size"),
        (lambda: reverb.TableChange(max_times_sampled=True).to_proto("t"), "max_times_sampled"),
        (lambda: reverb.Limits(connections=True), "Limits.connections"),
        (lambda: reverb.Where(times_sampled=(True, None)), "times_sampled"),
        (lambda: reverb.Server([testing.table("t")], http_port=True), "http_port"),
        (lambda: reverb.Server([testing.table("t")], max_bytes=True), "max_bytes"),
        (lambda: reverb.Ragged(np.zeros(1), np.array([0, 1])).padded(to_multiple_of=True), "to_"),
    ],
)
def test_a_bool_is_no_number_in_an_object(call_of, argument):
    with pytest.raises((TypeError, ValueError), match=f"{re.escape(argument)}.*got .*(bool|True)"):
        call_of()


def test_programs_of_dm_reverb_may_pass_a_bool(server):
    with reverb.Client(server.server_address) as client:
        client.insert([1.0], {"t": 1.0})
        assert len(list(client.sample("t", num_samples=True))) == 1
        client.trajectory_writer(num_keep_alive_refs=True).close()
        client.writer(max_sequence_length=True).close()
        client.server_info(timeout=True)
    assert testing.table("t", max_size=True).info.max_size == 1
