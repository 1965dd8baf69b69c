# SPDX-License-Identifier: Apache-2.0
"""Datasets of Hugging Face, both ways."""

import operator

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from support import made_episodes

hugging_face = pytest.importorskip("datasets", reason="it comes with the extra `hf`")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


def test_our_files_are_parquet_files_like_any_others(tmp_path):
    episodes = made_episodes.full()
    datasets.save(episodes, f"hf:{tmp_path / 'out'}")
    made_episodes.assert_equal(datasets.episodes(f"parquet:{tmp_path / 'out'}"), episodes)


def test_the_library_reads_ours(tmp_path):
    episodes = made_episodes.full()
    datasets.save(episodes, f"hf:{tmp_path / 'out'}")
    found = hugging_face.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert found.features["rewards"].feature.dtype == "float64"
    for row, episode in zip(found, episodes, strict=True):
        assert row["actions"] == episode.actions.tolist()
        assert row["terminated"] == episode.terminated.tolist()
        assert row["observations/numbers"] == episode.observations["numbers"].tolist()
    # A dataset that the library has saved itself is read as well.
    found.save_to_disk(str(tmp_path / "saved"))
    saved = datasets.episodes(f"hf:{tmp_path / 'saved'}")
    assert operator.length_hint(saved) == len(episodes)
    made_episodes.assert_equal(saved, episodes)
    made_episodes.assert_equal(datasets.episodes(f"hf:{tmp_path / 'saved'}", skip=4), episodes[4:])


def rows_of_steps(episodes):
    for episode in episodes:
        for step in range(len(episode)):
            yield {
                "observation": episode.observations[step].tolist(),
                "next_observation": episode.observations[step + 1].tolist(),
                "action": int(episode.actions[step]),
                "reward": float(episode.rewards[step]),
                "terminated": bool(episode.terminated[step]),
                "truncated": bool(episode.truncated[step]),
                "episode_id": episode.number,
            }


def of_steps(tmp_path, episodes):
    features = hugging_face.Features(
        {
            "observation": hugging_face.Sequence(hugging_face.Value("float32")),
            "next_observation": hugging_face.Sequence(hugging_face.Value("float32")),
            "action": hugging_face.Value("int64"),
            "reward": hugging_face.Value("float32"),
            "terminated": hugging_face.Value("bool"),
            "truncated": hugging_face.Value("bool"),
            "episode_id": hugging_face.Value("int32"),
        }
    )
    rows = hugging_face.Dataset.from_list(list(rows_of_steps(episodes)), features=features)
    rows.save_to_disk(str(tmp_path / "steps"))
    return f"hf:{tmp_path / 'steps'}"


def test_a_dataset_with_a_step_a_row_is_imported(tmp_path):
    episodes = made_episodes.episodes()
    source = of_steps(tmp_path, episodes)
    made_episodes.assert_equal(datasets.episodes(source), episodes)
    items = datasets.Episodes(100)
    with testing.server([made_episodes.table("e", episodes[0], items)]) as client:
        where = ["import", source, client.server_address, "--table=e", "--items=episodes"]
        assert command.main(where) == 0
        made_episodes.assert_equal(datasets.stored(client, "e"), episodes)
        out = ["export", client.server_address, "--table=e", "--format=hf"]
        assert command.main([*out, f"--output={tmp_path / 'out'}"]) == 0
    made_episodes.assert_equal(datasets.episodes(f"hf:{tmp_path / 'out'}"), episodes)


def test_a_split_is_chosen(tmp_path):
    parts = {"first": made_episodes.episodes([3, 4]), "second": made_episodes.episodes([5])}
    made = {}
    for name, episodes in parts.items():
        of_steps(tmp_path / name, episodes)
        made[name] = hugging_face.load_from_disk(str(tmp_path / name / "steps"))
    hugging_face.DatasetDict(made).save_to_disk(str(tmp_path / "all"))
    source = f"hf:{tmp_path / 'all'}"
    for name, episodes in parts.items():
        made_episodes.assert_equal(datasets.episodes(source, split=name), episodes)
    with pytest.raises(errors.InvalidArgumentError, match="there is no split 'train'; there are"):
        datasets.episodes(source)


class TestErrors:
    def test_a_dataset_that_is_not_there(self, tmp_path):
        with pytest.raises(errors.InvalidArgumentError, match="Hugging Face cannot open the data"):
            datasets.episodes(f"hf:{tmp_path / 'none'}")

    def test_a_dtype_that_the_format_lacks(self, tmp_path):
        rows = np.zeros((6, 2), np.complex64)
        episode = made_episodes.episode(5, observations=rows)
        text = "made: episode 0, field observations: has dtype complex64, which this format lacks"
        with pytest.raises(errors.InvalidArgumentError, match=text):
            datasets.save([episode], f"hf:{tmp_path / 'out'}")
        assert list(tmp_path.iterdir()) == []

    def test_a_path_that_exists(self, tmp_path):
        with pytest.raises(errors.InvalidArgumentError, match=f"{tmp_path} exists"):
            datasets.save(made_episodes.episodes(), f"hf:{tmp_path}")

    def test_an_episode_that_differs(self, tmp_path):
        good = made_episodes.episodes()
        bad = made_episodes.episode(3, 5, actions=np.zeros(3, np.int8))
        with pytest.raises(errors.InvalidArgumentError, match="episode 5, field actions: has ano"):
            datasets.save([*good, bad], f"hf:{tmp_path / 'out'}")
        assert list(tmp_path.iterdir()) == []
