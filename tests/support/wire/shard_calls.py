# SPDX-License-Identifier: Apache-2.0
"""The calls of a shard of a group, without a client of this package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from reverb.core import protos

_SERVICE = "/reverb.ReplayService/"
_SECONDS = 10.0


class ShardCalls:
    """A channel to a server that is a shard, or may become one."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"localhost:{port}")

    def __enter__(self) -> ShardCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def directory(self) -> Any:
        """Asks for the map."""
        return self._unary("Directory", protos.DirectoryRequest(), protos.DirectoryResponse)

    def set_rate_limiter(self, table: str, **given: Any) -> Any:
        """Moves the bounds of a rate limiter; returns the table."""
        request = protos.SetRateLimiterRequest(table=table, **given)
        return self._unary("SetRateLimiter", request, protos.SetRateLimiterResponse).table

    def update_priorities(self, table: str, updates: dict[int, float]) -> Any:
        """Updates priorities; returns the answer."""
        request = protos.UpdatePrioritiesRequest(
            table=table,
            updates=[protos.KeyWithPriority(key=k, priority=p) for k, p in updates.items()],
        )
        return self._unary("UpdatePriorities", request, protos.UpdatePrioritiesResponse)

    def watch(self, *tables: str) -> Iterator[Any]:
        """Returns what changes."""
        call = self._channel.unary_stream(_SERVICE + "Watch")
        request = protos.WatchRequest(tables=tables).SerializeToString()
        return map(protos.WatchResponse.FromString, call(request, timeout=_SECONDS))

    def _unary(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(_SERVICE + method)
        return answer.FromString(call(request.SerializeToString(), timeout=_SECONDS))
