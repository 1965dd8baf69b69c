# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that refuses calls with one status, as a proxy before a server may."""

import concurrent.futures

import grpc

from support.wire.scripted_server import one_table


class RefusingServer(grpc.GenericRpcHandler):
    """Ends every call with a status; `with RefusingServer(code, text) as address`.

    Args:
      code: A `grpc.StatusCode`.
      text: Its message.
      allowed: Whether it tells of its one table, `table`, nevertheless.
    """

    def __init__(self, code, text, *, allowed=False):
        self._code = code
        self._text = text
        self._allowed = allowed
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        self._server.start()
        return f"127.0.0.1:{self._port}"

    def __exit__(self, *_):
        self._server.stop(None).wait()

    def service(self, handler_call_details):
        """The handler of a method; part of gRPC's interface."""
        if self._allowed and handler_call_details.method.endswith("/ServerInfo"):
            return grpc.unary_unary_rpc_method_handler(
                lambda *_: one_table("table").SerializeToString()
            )
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    def _refuse(self, _, context):
        context.abort(self._code, self._text)
        yield  # An answer would be a stream.
