# SPDX-License-Identifier: Apache-2.0
"""A server with tables of several kinds, empty at the begin of each test."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.specs import TensorSpec
from support.error_texts import TABLES


@pytest.fixture(scope="module")
def client(reach):
    tables = [
        testing.table("table"),
        testing.table("signed", signature={"a": TensorSpec([2], np.int64)}),
        testing.table("prioritized", sampler=reverb.selectors.Prioritized(2.0)),
        reverb.Table.queue("queue", 1),
    ]
    assert ", ".join(sorted(table.name for table in tables)) == TABLES
    with testing.server(tables) as made:
        yield reach(made)


@pytest.fixture(autouse=True)
def _clean(client):
    # Twice, because what a limiter held back comes in after the first time.
    for table in 2 * list(client.server_info()):
        client.reset(table)
