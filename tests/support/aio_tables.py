# SPDX-License-Identifier: Apache-2.0
"""The tables of tests that await their calls."""

import reverb


def tables():
    """A table that anybody may sample, and a queue."""
    return [
        reverb.Table(
            "table",
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=20,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        ),
        reverb.Table.queue("queue", max_size=2000),
    ]
