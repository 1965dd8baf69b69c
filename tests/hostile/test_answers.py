# SPDX-License-Identifier: Apache-2.0
"""Answers of servers that make no sense: whatever a client makes of them, its error is ours."""

import contextlib
import random
from concurrent import futures

import grpc
import pytest

import reverb
from reverb.core import protos
from reverb.errors import DataLossError, ReverbError
from support.waiting import DEADLINE_S
from support.wire.messages import varint


class AnsweringServer(grpc.GenericRpcHandler):
    """Answers each call with the bytes that are set for its method, or with none."""

    def __init__(self):
        self.answers = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)

    def service(self, handler_call_details):
        method = handler_call_details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(lambda *_: self.answers.get(method, b""))

    def stop(self):
        self._server.stop(None).wait()


@pytest.fixture
def server():
    server = AnsweringServer()
    yield server
    server.stop()


def test_a_change_of_no_table(server):
    with pytest.raises(DataLossError, match="The answer of the server cannot be read"):
        server.client.configure_table("a", max_size=5)


@pytest.mark.parametrize(
    ("num_bounds", "counts"),
    [(2**31 - 1, [2**63 - 1] * 3), (2, [1] * 9), (-1, []), (3, [-1, 1]), (1024, [1])],
)
def test_histograms_that_cannot_be(server, num_bounds, counts):
    answer = protos.StatusResponse()
    ages = answer.tables.add(name="a").sample_age_s
    ages.first_bound, ages.num_bounds = 1, num_bounds
    ages.counts.extend(counts)
    server.answers["Status"] = answer.SerializeToString()
    with pytest.raises(DataLossError, match="a histogram must have"):
        server.client.status()


@pytest.mark.parametrize("depth", [*range(45, 55), 20_000])
def test_a_signature_that_is_nested_too_deep(server, depth):
    signature = _field(33, protos.TensorSpecProto(shape={}, dtype=1).SerializeToString())
    for _ in range(depth):
        signature = _field(51, _field(1, signature))
    for kind, name in (protos.TableInfo, "signature"), (protos.ServerInfoResponse, "table_info"):
        signature = _field(kind.DESCRIPTOR.fields_by_name[name].number, signature)
    server.answers["ServerInfo"] = signature
    error = (
        contextlib.nullcontext() if depth < 49 else pytest.raises(ReverbError, match="is damaged")
    )
    with error:
        server.client.server_info()


def _field(number, message):
    return varint(number << 3 | 2) + varint(len(message)) + message


def test_any_bytes(server):
    """A status, table information and directories with some bytes changed."""
    status = protos.StatusResponse()
    status.tables.add(name="a").sample_age_s.counts.extend([1, 2])
    info = protos.ServerInfoResponse()
    info.table_info.add(name="a", max_size=3).signature.list_value.values.add(int64_value=4)
    change = protos.ConfigureTablesResponse()
    change.tables.add(name="a")
    good = {"Status": status, "ServerInfo": info, "ConfigureTables": change}
    client, rng = server.client, random.Random(3)
    calls = [
        client.status,
        client.server_info,
        client.checkpoint_status,
        lambda: client.configure_table("a", max_size=5),
    ]
    for _ in range(150):
        for method, message in good.items():
            data = bytearray(message.SerializeToString())
            for _ in range(rng.choice([0, 1, 2])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            server.answers[method] = bytes(data)
        for call in calls:
            try:
                call()
            except ReverbError:
                continue
