# SPDX-License-Identifier: Apache-2.0
"""Queues over a table of a server, which are reached by both ways."""

import pytest

from reverb import Table
from reverb.adapters.queue import Queue


@pytest.fixture
def make(serve):
    """Makes a queue over a table of a server of its own: `queue = make(5, maxsize=3)`."""

    def make(max_size=100, **options):
        return Queue(serve(Table.queue("queue", max_size)), "queue", **options)

    return make
