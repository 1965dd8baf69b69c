# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/datasets.md.
"""Episodes of datasets into tables, and those of tables into datasets.

    from reverb import datasets

    demos = datasets.episodes("minari:mine/cartpole-v0")
    datasets.write(client, "demos", demos, datasets.Transitions(n_step=3))

The commands `reverb import` and `reverb export` do the same.
"""

from reverb._recording.items import Episodes, Sequences, Transitions
from reverb.datasets.episode import Episode
from reverb.datasets.missing import Written
from reverb.datasets.saving import save
from reverb.datasets.signatures import signature
from reverb.datasets.sources import episodes
from reverb.datasets.stored_episodes import stored
from reverb.datasets.writing import write

__all__ = [
    "Episode",
    "Episodes",
    "Sequences",
    "Transitions",
    "Written",
    "episodes",
    "save",
    "signature",
    "stored",
    "write",
]
