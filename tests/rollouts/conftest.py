# SPDX-License-Identifier: Apache-2.0
"""Tables whose items grow, on a server that clients reach by both ways."""

import pytest

from support import rollout_tables


@pytest.fixture
def served(serve):
    """Makes a client of a server with one such table: `client = served(2, max_staleness=1)`."""
    return lambda *args, **options: serve(rollout_tables.table(*args, **options))


@pytest.fixture
def two(start, connect):
    """Two clients of a server with one such table: `client, other = two(2)`."""

    def two(*args, lease_grace_s=10.0, **options):
        table = rollout_tables.table(*args, **options)
        server = start(table, lease_grace_s=lease_grace_s)
        return connect(server), connect(server)

    return two
