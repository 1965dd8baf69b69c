# SPDX-License-Identifier: Apache-2.0
"""The two ways to reach a server: in its own process without a socket, and through the network."""

import os

import pytest

# With REVERB_TEST_GROUPS=1 the server is the only shard of a group, and all must be as without.
_SCHEME = "shards:///" if os.environ.get("REVERB_TEST_GROUPS") == "1" else ""

# A server of the same process is found by its loopback address and reached without a socket. This
# other spelling of 127.0.0.1 is not recognised as one, so it leads through the network.
IN_PROCESS, REMOTE = f"{_SCHEME}127.0.0.1", f"{_SCHEME}127.1"
HOSTS = {"in_process": IN_PROCESS, "remote": REMOTE}

# For tests that take the fixture `path` neither themselves nor by another fixture.
on_both_hosts = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
