# SPDX-License-Identifier: Apache-2.0
"""The two ways to reach a server: in its own process without a socket, and through the network."""

import pytest

# A server of the same process is found by its loopback address and reached without a socket. This
# other spelling of 127.0.0.1 is not recognised as one, so it leads through the network.
IN_PROCESS, REMOTE = "127.0.0.1", "127.1"
HOSTS = {"in_process": IN_PROCESS, "remote": REMOTE}

# For tests that take the fixture `path` neither themselves nor by another fixture.
on_both_hosts = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
