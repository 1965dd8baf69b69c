# SPDX-License-Identifier: Apache-2.0
"""Opens the source of a command: a checkpoint, the checkpoint of a group, or a running server."""

import pathlib
import re

from reverb.command.addresses import servers_of
from reverb.command.group_source import group_source
from reverb.command.server_arguments import new_client
from reverb.command.source import CheckpointSource, ServerSource, Source
from reverb.errors import InvalidArgumentError
from reverb.server import MAX_PORT

# A text with one of these prefixes is an address; the client checks the rest of it.
_SCHEMES = ("unix:", "dns:", "ipv4:", "ipv6:", "grpc://", "grpcs://", "shards:", "shards+")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d+)")


def open_source(text: str, timeout_s: float, *, partial: bool, **credentials: object) -> Source:
    """Opens the source of a command: a directory, else the address of a server or of a group.

    A directory is a checkpoint, has checkpoints (the latest complete one is read), or has those of
    a group. With `partial`, a running group may be without some of its shards.

    Raises:
      InvalidArgumentError: If `text` is neither a directory nor an address.
      DataLossError: If the checkpoint is damaged.
      UnavailableError: If no server answers, or a shard that must.
    """
    path = pathlib.Path(text)
    if path.is_dir():
        return group_source(path) or CheckpointSource(path)
    _check_address(text)
    return ServerSource(new_client(text, timeout_s, **credentials), partial=partial)


def sources_of(text: str) -> list[str]:
    """Splits a text that may lead to several servers into arguments for `open_source`."""
    if pathlib.Path(text).exists():
        return [text]
    _check_address(text)
    return servers_of(text)


def _check_address(text: str) -> None:
    if text.startswith(_SCHEMES):
        return
    for part in text.split(","):
        matched = _HOST_PORT.fullmatch(part.strip())
        if matched is None or pathlib.Path(text).exists():
            raise InvalidArgumentError(
                f"{text} is neither a directory nor the address of a server; give a checkpoint, a "
                "directory of checkpoints, host:port (grpcs://host:port if it speaks TLS), "
                "unix:///path/of/socket, or shards:///host:port,host:port for a group"
            )
        if not 1 <= int(matched["port"]) <= MAX_PORT:
            raise InvalidArgumentError(
                f"the port of {text} must be from 1 to {MAX_PORT}, got {matched['port']}"
            )
