# SPDX-License-Identifier: Apache-2.0
"""The tables of tests that await their calls."""

import reverb
from reverb import testing


def tables():
    """A table that anybody may sample, and a queue."""
    return [
        testing.table(max_size=20),
        reverb.Table.queue("queue", max_size=2000),
    ]
