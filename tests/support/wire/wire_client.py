# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that sends exactly the bytes it is given."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from reverb.core import protos

SERVICE = "/deepmind.reverb.ReverbService/"
_SECONDS = 10.0
# The end of what arrives on a stream, and of what is to be sent.
_END = object()


class WireClient:
    """A channel to a server."""

    def __init__(self, address: str) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(address, options=unlimited)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def unary(self, method: str, request: Any, answer: type | None = None) -> Any:
        """Calls a method with a message, or with bytes, and returns its answer."""
        call = self._channel.unary_unary(SERVICE + method)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        received = call(data, timeout=_SECONDS)
        return received if answer is None else answer.FromString(received)

    def insert_stream(self, compression: grpc.Compression | None = None) -> Stream:
        """Opens an insert stream."""
        return self._stream("InsertStream", protos.InsertStreamResponse, compression)

    def sample_stream(self) -> Stream:
        """Opens a sample stream."""
        return self._stream("SampleStream", protos.SampleStreamResponse)

    def connection_stream(self) -> Stream:
        """Opens the stream by which an old client looks for a server in its own process."""
        return self._stream("InitializeConnection", protos.InitializeConnectionResponse)

    def _stream(
        self, method: str, answer: Any, compression: grpc.Compression | None = None
    ) -> Stream:
        return Stream(self._channel.stream_stream(SERVICE + method), answer, compression)


class Stream:
    """One open stream."""

    def __init__(self, call: Any, answer: Any, compression: grpc.Compression | None) -> None:
        self._answer = answer
        self._ended = False
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = call(iter(self._requests.get, _END), compression=compression)
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, request: Any) -> None:
        """Sends a message, or bytes."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        self._requests.put(data)

    def half_close(self) -> None:
        """Says that nothing more will be sent."""
        self._requests.put(_END)

    def cancel(self) -> None:
        """Gives the stream up."""
        self._call.cancel()
        self._requests.put(_END)

    def receive(self) -> Any:
        """Returns the next message; fails when the stream ends instead."""
        response = self._responses.get(timeout=_SECONDS)
        assert response is not _END, f"the stream ended with {self._call.code()}: {self.details()}"
        return self._answer.FromString(response)

    def receive_all(self) -> list[Any]:
        """Returns every message up to the end of the stream."""
        return [self._answer.FromString(response) for response in self._until_end()]

    def status(self) -> tuple[grpc.StatusCode, str]:
        """Waits for the end of the stream and returns its code and text."""
        for _ in self._until_end():
            pass
        return self._call.code(), self.details()

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended the stream."""
        return self._call.done()

    def details(self) -> str:
        """Returns the text of the status."""
        return self._call.details() or ""

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing arrives for `seconds`."""
        try:
            response = self._responses.get(timeout=seconds)
        except queue.Empty:
            return True
        raise AssertionError(f"something arrived: {response!r}")

    def confirmed(self, count: int) -> list[int]:
        """Returns the next `count` confirmed keys, in any number of messages."""
        keys: list[int] = []
        while len(keys) < count:
            keys.extend(self.receive().keys)
        assert len(keys) == count
        return keys

    def samples(self, count: int) -> list[tuple[Any, list[Any]]]:
        """Returns the next `count` samples, each its info and its chunks."""
        done: list[tuple[Any, list[Any]]] = []
        info, chunks = None, []
        while len(done) < count:
            for entry in self.receive().entries:
                info = entry.info if info is None else info
                chunks.extend(entry.data)
                if entry.end_of_sequence:
                    done.append((info, chunks))
                    info, chunks = None, []
        assert len(done) == count
        assert not chunks
        return done

    def _until_end(self) -> Iterator[bytes]:
        while not self._ended:
            response = self._responses.get(timeout=_SECONDS)
            if response is _END:
                self._ended = True
            else:
                yield response

    def _receive(self) -> None:
        try:
            for response in self._call:
                self._responses.put(response)
        except grpc.RpcError:
            # `status` tells how it ended.
            pass
        self._responses.put(_END)
