# SPDX-License-Identifier: Apache-2.0
"""Datasets of LeRobot: files of the layout 3.0, beside its own loader where it is installed."""

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from reverb import datasets, errors
from support import made_episodes

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")
image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra `lerobot`")

HAS_LEROBOT = importlib.util.find_spec("lerobot") is not None
REASON = "lerobot is not installed: its packages are large, and do not go with those of others"


def full():
    """Episodes with a state, an image, a matrix and a number."""
    made = []
    for number, length in enumerate(made_episodes.LENGTHS):
        rng = np.random.default_rng(number)
        rows = length + 1
        observations = {
            "state": rng.normal(size=(rows, 3)).astype(np.float32),
            "images": {"top": rng.integers(0, 256, (rows, 6, 8, 3)).astype(np.uint8)},
            "matrix": rng.normal(size=(rows, 2, 3)),
            "number": np.arange(rows).astype(np.int16),
        }
        made.append(
            made_episodes.episode(
                length,
                number,
                end=("terminated", "truncated", "both")[number % 3],
                observations=observations,
                actions=rng.normal(size=(length, 2)).astype(np.float32),
                infos={"value": np.arange(length), "state": {"x": np.ones((length, 2))}},
            )
        )
    return made


def test_a_round_trip_loses_nothing(tmp_path):
    episodes = full()
    source = f"lerobot:{tmp_path / 'out'}"
    assert datasets.save(episodes, source, fps=10, task="stand") == len(episodes)
    found = list(datasets.episodes(source))
    made_episodes.assert_equal(found, episodes)
    assert {it.metadata["tasks"] for it in found} == {("stand",)}
    made_episodes.assert_equal(datasets.episodes(source, skip=1, limit=3), episodes[1:4])


def test_plain_observations_and_discrete_actions_come_back(tmp_path):
    episodes = made_episodes.episodes()
    datasets.save(episodes, f"lerobot:{tmp_path / 'out'}", fps=10)
    made_episodes.assert_equal(datasets.episodes(f"lerobot:{tmp_path / 'out'}"), episodes)


def test_a_dataset_is_found_by_its_id(tmp_path):
    episodes = made_episodes.episodes()
    datasets.save(episodes, f"lerobot:{tmp_path / 'lerobot' / 'me' / 'a'}", fps=10)
    made_episodes.assert_equal(datasets.episodes("lerobot:me/a"), episodes)


def without(tmp_path, *names):
    """A dataset as others write it: without some of the columns."""
    episodes = made_episodes.episodes()
    root = tmp_path / "out"
    datasets.save(episodes, f"lerobot:{root}", fps=10)
    info = json.loads((root / "meta/info.json").read_text())
    for name in names:
        del info["features"][name]
    for feature in info["features"].values():
        feature.pop("reverb_shape", None)
    (root / "meta/info.json").write_text(json.dumps(info))
    for path in root.glob("data/*/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(list(names)), path)
    for path in root.glob("meta/episodes/*/*.parquet"):
        table = pq.read_table(path)
        final = [it for it in table.column_names if it.startswith("final/")]
        pq.write_table(table.drop_columns(final), path)
    return f"lerobot:{root}", episodes


def test_a_dataset_of_others_has_its_last_observation_twice(tmp_path):
    flags = ("next.terminated", "next.truncated")
    source, episodes = without(tmp_path, *flags)
    for found, made in zip(datasets.episodes(source), episodes, strict=True):
        assert np.array_equal(found.observations[:-1], made.observations[:-1])
        assert np.array_equal(found.observations[-1], found.observations[-2])
        # `next.done` is a termination.
        assert found.terminated[-1]
        assert not found.truncated[-1]
        assert found.actions.shape == (len(made), 1)


def test_a_dataset_without_rewards_and_flags_is_truncated(tmp_path):
    names = ("next.terminated", "next.truncated", "next.done", "next.reward")
    source, episodes = without(tmp_path, *names)
    for found, made in zip(datasets.episodes(source), episodes, strict=True):
        assert len(found) == len(made)
        assert not found.rewards.any()
        assert (found.terminated[-1], found.truncated[-1]) == (False, True)


@pytest.mark.parametrize("name", ["observation/images/top", "observation.images.top"])
def test_a_video_is_left_out(tmp_path, name):
    root = tmp_path / "out"
    datasets.save(full(), f"lerobot:{root}", fps=10)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.top"]["dtype"] = "video"
    (root / "meta/info.json").write_text(json.dumps(info))
    names = [name, "observation/matrix", "observation/number", "infos/value"]
    found = list(datasets.episodes(f"lerobot:{root}", leave_out=names))
    # The state alone keeps its name.
    assert [list(it.observations) for it in found] == [["state"]] * 5
    assert [list(it.infos) for it in found] == [["state"]] * 5
    assert found[0].left_out == tuple(names)
    with pytest.raises(errors.InvalidArgumentError, match="leave_out names 'action/x', which is"):
        datasets.episodes(f"lerobot:{root}", leave_out=[*names, "action/x"])


def test_an_episode_is_known_by_its_index(tmp_path):
    root = tmp_path / "out"
    datasets.save(made_episodes.episodes(), f"lerobot:{root}", fps=10)
    (path,) = root.glob("data/*/*.parquet")
    table = pq.read_table(path)
    at = table.schema.get_field_index("episode_index")
    moved = table.column(at).combine_chunks().to_numpy() + 3
    pq.write_table(table.set_column(at, "episode_index", [moved]), path)
    found = list(datasets.episodes(f"lerobot:{root}"))
    assert [it.key for it in found] == ["3", "4", "5", "6", "7"]
    assert [it.number for it in found] == [0, 1, 2, 3, 4]


class TestErrors:
    @pytest.mark.parametrize("version", ["v1.6", "v2.1"])
    def test_another_version_of_the_format(self, tmp_path, version):
        root = tmp_path / "out"
        datasets.save(made_episodes.episodes(), f"lerobot:{root}", fps=10)
        info = json.loads((root / "meta/info.json").read_text())
        (root / "meta/info.json").write_text(json.dumps(info | {"codebase_version": version}))
        with pytest.raises(errors.InvalidArgumentError) as caught:
            datasets.episodes(f"lerobot:{root}")
        assert f"{root}: is of version {version} of LeRobot's format, and v3.0 is read" in str(
            caught.value
        )

    def test_a_video(self, tmp_path):
        root = tmp_path / "out"
        datasets.save(full(), f"lerobot:{root}", fps=10)
        info = json.loads((root / "meta/info.json").read_text())
        info["features"]["observation.images.top"]["dtype"] = "video"
        (root / "meta/info.json").write_text(json.dumps(info))
        with pytest.raises(errors.InvalidArgumentError, match=r"field observation.images.top: is"):
            datasets.episodes(f"lerobot:{root}")

    def test_damaged_files(self, tmp_path):
        root = tmp_path / "out"
        datasets.save(made_episodes.episodes(), f"lerobot:{root}", fps=10)
        (data,) = root.glob("data/*/*.parquet")
        whole = data.read_bytes()
        data.write_bytes(whole[:-30])
        with pytest.raises(errors.DataLossError, match=f"^{data}: cannot be read"):
            list(datasets.episodes(f"lerobot:{root}"))
        pq.write_table(pq.read_table(_written(data, whole)).slice(0, 50), data)
        with pytest.raises(errors.DataLossError, match="episode 4, field frame_index: has 2 fra"):
            list(datasets.episodes(f"lerobot:{root}"))
        (root / "meta/info.json").write_text("{")
        with pytest.raises(errors.DataLossError, match=r"info.json: is damaged"):
            datasets.episodes(f"lerobot:{root}")

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(errors.InvalidArgumentError, match="there is no dataset of LeRobot in"):
            datasets.episodes(f"lerobot:{tmp_path}")

    def test_no_frames_a_second(self, tmp_path):
        with pytest.raises(errors.InvalidArgumentError, match="fps must be at least 1, got 0"):
            datasets.save(made_episodes.episodes(), f"lerobot:{tmp_path / 'o'}", fps=0)
        with pytest.raises(errors.InvalidArgumentError, match="fps must be given for the format"):
            datasets.save(made_episodes.episodes(), f"lerobot:{tmp_path / 'o'}")

    def test_an_episode_that_differs(self, tmp_path):
        bad = dataclasses.replace(made_episodes.episode(3, 5), infos={"x": np.zeros(3)})
        with pytest.raises(errors.InvalidArgumentError, match=r"episode 5, field infos.x: has ano"):
            datasets.save([*made_episodes.episodes(), bad], f"lerobot:{tmp_path / 'o'}", fps=5)
        assert list(tmp_path.iterdir()) == []


def _written(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.skipif(not HAS_LEROBOT, reason=REASON)
class TestItsOwnLoader:
    def test_it_reads_ours(self, tmp_path):
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        episodes = full()
        datasets.save(episodes, f"lerobot:{tmp_path / 'out'}", fps=10, task="stand")
        found = LeRobotDataset("me/out", root=tmp_path / "out")
        assert (found.num_episodes, len(found)) == (5, sum(made_episodes.LENGTHS))
        row = found[7]  # Step 2 of episode 1.
        state = episodes[1].observations["state"][2]
        assert np.array_equal(row["observation.state"].numpy(), state)
        picture = episodes[1].observations["images"]["top"][2].transpose(2, 0, 1) / 255
        assert np.allclose(row["observation.images.top"].numpy(), picture)
        assert row["task"] == "stand"
        assert found.meta.stats["action"]["mean"].shape == (2,)

    def test_ours_reads_its(self, tmp_path):
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        features = {
            "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
            "observation.images.top": {"dtype": "image", "shape": (6, 8, 3), "names": None},
            "action": {"dtype": "float32", "shape": (2,), "names": None},
        }
        root = tmp_path / "its"
        made = LeRobotDataset.create("me/its", 10, features, root=root, use_videos=False)
        pictures = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 8, 3)).astype(np.uint8)
        for number in range(2):
            for step in range(4):
                made.add_frame(
                    {
                        "observation.state": np.full(3, step, np.float32),
                        "observation.images.top": pictures[number, step],
                        "action": np.full(2, number, np.float32),
                        "task": "stand",
                    }
                )
            made.save_episode()
        made.finalize()
        found = list(datasets.episodes(f"lerobot:{root}"))
        assert [len(it) for it in found] == [4, 4]
        for number, episode in enumerate(found):
            assert np.array_equal(episode.observations["images"]["top"][:4], pictures[number])
            assert (episode.actions == number).all()
