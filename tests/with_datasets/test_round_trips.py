# SPDX-License-Identifier: Apache-2.0
"""Each format that is written comes back: from a program, and from a table by the commands."""

import operator

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from reverb.datasets.formats import SAVED
from support import made_episodes

for _library, _extra in (("datasets", "hf"), ("tensorflow_datasets", "rlds"), ("PIL", "lerobot")):
    pytest.importorskip(_library, reason=f"it comes with the extra `{_extra}`")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.parametrize("name", SAVED),
]

# Values of the options that a format needs.
VALUES = {"fps": 10}
# Formats that keep no row of infos for the reset.
WITHOUT_RESET = ("lerobot",)


@pytest.fixture
def target(name, tmp_path):
    return f"{name}:mine/a-v0" if SAVED[name].by_id else f"{name}:{tmp_path / 'out'}"


@pytest.fixture
def options(name):
    return {it: VALUES[it] for it, own in SAVED[name].options.items() if own.is_needed}


def test_a_save_loses_nothing(name, target, options):
    episodes = made_episodes.full()
    skip = ("infos",) if name in WITHOUT_RESET else ()
    counts = []
    assert datasets.save(episodes, target, progress=counts.append, **options) == len(episodes)
    assert counts == [1, 2, 3, 4, 5]
    found = datasets.episodes(target)
    assert operator.length_hint(found) == len(episodes)
    made_episodes.assert_equal(found, episodes, skip=skip)
    part = datasets.episodes(target, skip=2, limit=2)
    made_episodes.assert_equal(part, episodes[2:4], skip=skip)


def test_every_dtype_comes_back(target, options):
    episodes = [made_episodes.every_dtype(5 + number, number) for number in range(2)]
    datasets.save(episodes, target, **options)
    made_episodes.assert_equal(datasets.episodes(target), episodes)


def test_a_table_is_exported_and_imported(name, target, options, capsys):
    episodes = made_episodes.full()
    items = datasets.Episodes(100)
    tables = [
        made_episodes.table(it, episodes[0], items, reward_dtype=np.float64) for it in ("a", "b")
    ]
    with testing.server(tables) as client:
        datasets.write(client, "a", episodes, items)
        where = "--dataset-id" if SAVED[name].by_id else "--output"
        out = ["export", client.server_address, "--table=a", f"--format={name}"]
        out += [where, target.partition(":")[2]]
        out += [f"--{it}={value}" for it, value in options.items()]
        assert command.main(out) == 0
        assert capsys.readouterr().out == f"5 episodes of table a in {target}\n"
        into = ["import", target, client.server_address, "--table=b", "--items=episodes"]
        assert command.main(into) == 0
        exported = list(datasets.stored(client, "a"))
        made_episodes.assert_equal(datasets.stored(client, "b"), exported)
        made_episodes.assert_equal(exported, episodes, skip=("infos",))


def test_no_episodes(target, options):
    with pytest.raises(errors.InvalidArgumentError, match=f"^{target}: there are no episodes to "):
        datasets.save([], target, **options)
