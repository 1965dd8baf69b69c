# SPDX-License-Identifier: Apache-2.0
"""A gRPC server whose every answer a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from reverb.core import protos

Behaviour = Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]


class ScriptedServer(grpc.GenericRpcHandler):
    """Answers `ServerInfo` with one table; the streams do what the test set.

    Attributes:
      on_sample: Behaviour of a sample stream: takes the requests, yields the responses.
      on_insert: Behaviour of an insert stream.
      received: Every message that arrived on insert streams, in order.
    """

    def __init__(self, table: str = "table") -> None:
        self._table = table
        self.on_sample: Behaviour | None = None
        self.on_insert: Behaviour = self.confirm_everything
        self.received: list[Any] = []
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("localhost:0")
        self._server.start()

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"localhost:{self.port}"

    def stop(self) -> None:
        """Ends the server and every open call."""
        self._server.stop(None).wait()

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        """Returns the handler of a method; part of gRPC's interface."""
        method = handler_call_details.method.rpartition("/")[2]
        if method == "ServerInfo":
            info = one_table(self._table).SerializeToString()
            return grpc.unary_unary_rpc_method_handler(lambda *_: info)
        if method == "SampleStream":
            return _stream_handler(protos.SampleStreamRequest, self._sample)
        if method == "InsertStream":
            return _stream_handler(protos.InsertStreamRequest, self._insert)
        # Old clients fall back to `SampleStream` when `InitializeConnection` is not there.
        return None

    def confirm_everything(
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Confirms each item as it arrives."""
        for request in requests:
            if request.items:
                yield protos.InsertStreamResponse(keys=[item.key for item in request.items])

    def _sample(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        assert self.on_sample is not None, "the test did not say what to sample"
        yield from self.on_sample(requests, context)

    def _insert(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        yield from self.on_insert(self._recorded(requests), context)

    def _recorded(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            with self._lock:
                self.received.append(request)
            yield request


def one_table(name: str) -> Any:
    """The answer to `ServerInfo` of a server with one table."""
    response = protos.ServerInfoResponse()
    response.tables_state_id.low = 1
    info = response.table_info.add(name=name, max_size=100)
    info.sampler_options.fifo = True
    info.remover_options.fifo = True
    info.rate_limiter_info.samples_per_insert = 1.0
    info.rate_limiter_info.min_size_to_sample = 1
    return response


def _stream_handler(request: Any, behaviour: Behaviour) -> grpc.RpcMethodHandler:
    return grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda message: (
            message if isinstance(message, bytes) else message.SerializeToString()
        ),
    )
