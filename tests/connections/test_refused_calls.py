# SPDX-License-Identifier: Apache-2.0
"""Calls that a proxy in front of a server refuses have an error class, and are not retried."""

import grpc
import pytest

import reverb
from reverb import errors
from support.client_calls import CALLS, INSERTS, OF_ITEMS, ROLLOUTS
from support.wire.refusing_server import RefusingServer
from support.writer_kinds import EVERY_WRITER

KINDS = {
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    # The kinds next to them stay what they were.
    grpc.StatusCode.FAILED_PRECONDITION: errors.FailedPreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhaustedError,
}


READS = {
    **CALLS,
    **ROLLOUTS,
    "open_item": lambda client: client.open_item("table").__enter__(),
    "rate_limiter_off": lambda client: client.rate_limiter_off("table").__enter__(),
    "shard_info": lambda client: reverb.Client(f"shards:///{client.server_address}").shard_info(),
    "sample": lambda client: next(client.sample("table")),
    "batch_sampler": lambda client: next(client.batch_sampler("table", 2)),
    "batches": lambda client: next(client.batches("table", 2)),
    "scan": lambda client: next(client.scan("table")),
}
WRITERS = {
    **INSERTS,
    **{
        name: (lambda client, write=write: write(client, "table"))
        for name, write in EVERY_WRITER.items()
    },
}


def test_every_call_of_a_client_is_tried():
    methods = {
        name
        for name in dir(reverb.Client)
        if name[0] != "_" and callable(getattr(reverb.Client, name))
    }
    assert methods - OF_ITEMS - {"close"} == {*READS, *WRITERS}


@pytest.mark.parametrize("code", KINDS, ids=lambda code: code.name)
@pytest.mark.parametrize("call", [*READS.values(), *WRITERS.values()], ids=[*READS, *WRITERS])
def test_a_refused_call_raises_its_class(code, call):
    with RefusingServer(code, "ask the owner of the proxy") as address:
        with pytest.raises(errors.ReverbError, match="ask the owner of the proxy") as caught:
            call(reverb.Client(address, connect_timeout_s=40))
        assert type(caught.value) is KINDS[code]


@pytest.mark.parametrize("code", KINDS, ids=lambda code: code.name)
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_refused_stream_of_items_raises_its_class(code, write):
    with RefusingServer(code, "ask the owner of the proxy", allowed=True) as address:
        with pytest.raises(errors.ReverbError, match="ask the owner of the proxy") as caught:
            write(reverb.Client(address, connect_timeout_s=40))
        assert type(caught.value) is KINDS[code]
