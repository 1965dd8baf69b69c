# SPDX-License-Identifier: Apache-2.0
"""Items of an import are those that a recorder writes of the same episodes, in tables alike."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from reverb import datasets, testing
from reverb.adapters.gymnasium import Episodes, Recorder, Sequences, Transitions, signature
from support import scalar_items
from support.coded_env import DISCOUNT, CodedEnv

KINDS = {
    "transitions": Transitions(discount=DISCOUNT),
    "3-step": Transitions(n_step=3, discount=DISCOUNT),
    "sequences": Sequences(length=4, stride=2, discount=DISCOUNT, short_episodes="keep"),
    "episodes": Episodes(max_length=1000, discount=DISCOUNT),
}
EPISODES = Episodes(max_length=1000, discount=DISCOUNT)


def test_kinds_of_items_are_the_same_classes():
    assert (datasets.Transitions, datasets.Sequences, datasets.Episodes) == (
        Transitions,
        Sequences,
        Episodes,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_writes_the_items_of_a_recorder(kind):
    items = KINDS[kind]
    envs = SyncVectorEnv(
        [lambda number=number: CodedEnv(number) for number in range(4)],
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )
    kinds = {"episodes": EPISODES, "recorded": items, "imported": items}
    tables = [
        testing.table(name, max_size=10_000, signature=signature(envs, it))
        for name, it in kinds.items()
    ]
    with testing.server(tables) as client:
        recorder = Recorder(envs, client, "episodes", EPISODES)
        recorder = Recorder(recorder, client, "recorded", items)
        recorder.reset(seed=0)
        for step in range(200):
            recorder.step(np.arange(4) + step)
        recorder.close()
        episodes = list(datasets.stored(client, "episodes"))
        assert len(episodes) > 20
        assert datasets.signature(episodes[0], items, episode_ids=False) == signature(envs, items)
        datasets.write(client, "imported", episodes, items)
        imported = scalar_items.multiset(scalar_items.stored(client, "imported"))
        recorded = scalar_items.multiset(scalar_items.stored(client, "recorded"))
    assert imported
    # The recorder has also items of the last episode of each environment, which has not ended.
    assert not imported - recorded
    assert sum((recorded - imported).values()) <= 800 - sum(map(len, episodes))
