# SPDX-License-Identifier: Apache-2.0
"""Addresses of groups, and how long clients wait for a server, unless a program says otherwise."""

# A client waits for a server that has not started, because programs start in any order. The wait is
# bounded, because otherwise a mistyped address would look like a hang.
DEFAULT_CONNECT_TIMEOUT_S = 60.0

# A vanished peer is detected within the sum of both. A peer may freeze for less than the timeout.
DEFAULT_KEEPALIVE_S = 10.0
DEFAULT_KEEPALIVE_TIMEOUT_S = 5.0

# Arguments of the native client, for classes without options of their own.
DEFAULT_OPTIONS = {
    "connect_timeout_s": DEFAULT_CONNECT_TIMEOUT_S,
    "keepalive_s": DEFAULT_KEEPALIVE_S,
    "keepalive_timeout_s": DEFAULT_KEEPALIVE_TIMEOUT_S,
    "credentials": None,
    "compresses": True,
}


def is_group(address: str) -> bool:
    """Returns whether an address is that of a group, whose servers are used as one."""
    return address.startswith(("shards:", "shards+"))
