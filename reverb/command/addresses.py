# SPDX-License-Identifier: Apache-2.0
"""The servers that an address of a command names."""

import re
import socket

from reverb._client.connecting import is_group
from reverb.client import Client
from reverb.errors import InvalidArgumentError

HELP = (
    "a running server: HOST:PORT, dns:///NAME:PORT, ipv4:IP:PORT, grpcs://HOST:PORT if it speaks "
    "TLS, unix:///PATH for a Unix socket; or a group of servers that are used as one: "
    "shards:///HOST:PORT,..., shards+grpcs:///HOST:PORT,... with TLS"
)
SEVERAL_ARE_SHOWN = "; of several (A:PORT,B:PORT) each is shown under its name"

_PREFIX = re.compile(r"(?:grpcs?://)?(?:dns:(?://[^/]*/)?|ipv[46]:)?")
_HOST_PORT = re.compile(r"(?P<host>[A-Za-z0-9._-]+):(?P<port>\d+)")
_NUMBERS = re.compile(r"[0-9.]+")
_SCHEMES = {"shards:///": "", "shards+grpcs:///": "grpcs://", "shards+grpc:///": "grpc://"}


def servers_of(address: str) -> list[str]:
    """Returns an address for each server that an address leads to; a group counts as one.

    Several are written `a:1,b:2`, or are behind one name. Looks the name up, which may take
    seconds.
    """
    if is_group(address) or address.startswith("unix:"):
        return [address]
    matched = _PREFIX.match(address)
    prefix = matched[0] if matched else ""
    parts = [part.strip() for part in address[len(prefix) :].split(",")]
    if len(parts) > 1:
        return [prefix + part for part in parts]
    return _behind_name(address, prefix, parts[0])


def one_server(address: str, command: str) -> str:
    """Returns the address if it is that of one server or of a group.

    Raises:
      InvalidArgumentError: If it leads to several, of which the command would reach one.
    """
    servers = servers_of(address)
    if len(servers) == 1:
        return address
    raise InvalidArgumentError(
        f"{address} leads to {len(servers)} servers, and `reverb {command}` would reach one of "
        f"them: give it each by itself ({', '.join(servers)}). The servers of a group are written "
        "shards:///HOST:PORT,HOST:PORT"
    )


def shard_of(client: Client, index: int) -> str:
    """Returns the address of one shard of a group.

    Raises:
      InvalidArgumentError: If the client is not that of a group, or if there is no such shard.
      UnavailableError: If no shard answers.
    """
    address = client.server_address
    if not is_group(address):
        raise InvalidArgumentError(
            f"--shard {index} needs the address of a group, such as shards:///HOST:PORT,HOST:PORT, "
            f"got {address}"
        )
    shards = {shard.index: shard.address for shard in client.directory().shards}
    if index not in shards:
        known = ", ".join(map(str, sorted(shards)))
        raise InvalidArgumentError(f"{address} has no shard {index}; it has: {known}")
    found = shards[index]
    if found.startswith("unix:") or "://" in found:
        return found
    if not found:
        # The map has no addresses, so the group's address has those of all shards, in order.
        found = address.split(":///", 1)[1].split("?", 1)[0].split(",")[index].strip()
    scheme = next(it for prefix, it in _SCHEMES.items() if address.startswith(prefix))
    return found if found.startswith("unix:") else scheme + found


def _behind_name(address: str, prefix: str, host_port: str) -> list[str]:
    """The addresses of the servers behind one host name; only of IPv4 or only of IPv6."""
    matched = _HOST_PORT.fullmatch(host_port)
    if matched is None or matched["host"] == "localhost" or _NUMBERS.fullmatch(matched["host"]):
        return [address]
    host, port = matched["host"], matched["port"]
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, OverflowError):
        # The client will raise the error for this address.
        return [address]
    for family in (socket.AF_INET, socket.AF_INET6):
        hosts = sorted({str(it[4][0]) for it in found if it[0] == family})
        if len(hosts) > 1:
            scheme = prefix.split("://")[0] + "://" if prefix.startswith("grpc") else ""
            brackets = "[{}]" if family == socket.AF_INET6 else "{}"
            return [f"{scheme}{brackets.format(it)}:{port}" for it in hosts]
    return [address]
