# SPDX-License-Identifier: Apache-2.0
"""Datasets of RLDS, both ways, by TensorFlow Datasets."""

import json

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from support import made_episodes

tfds = pytest.importorskip("tensorflow_datasets", reason="it comes with the extra `rlds`")
pytest.importorskip("tensorflow", reason="it comes with the extra `rlds`")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_tensorflow_datasets_reads_ours(tmp_path):
    episodes = made_episodes.full()
    datasets.save(episodes, f"rlds:{tmp_path / 'out'}", discount=0.5)
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    for example, made in zip(builder.as_dataset("train"), episodes, strict=True):
        steps = list(tfds.as_numpy(example["steps"]))
        assert len(steps) == len(made) + 1
        assert [bool(it["is_first"]) for it in steps] == [True] + [False] * len(made)
        assert [bool(it["is_last"]) for it in steps] == [False] * len(made) + [True]
        assert bool(steps[-1]["is_terminal"]) == made.terminated[-1]
        assert [float(it["reward"]) for it in steps[:-1]] == made.rewards.tolist()
        assert float(steps[-2]["discount"]) == (0.0 if made.terminated[-1] else 0.5)
        last = made.observations["numbers"][-1]
        assert np.array_equal(steps[-1]["observation"]["numbers"], last)


def foreign(tmp_path, **more):
    """A dataset with the fields of RLDS alone."""
    episodes = made_episodes.episodes()

    def steps(episode):
        last = np.arange(len(episode) + 1) == len(episode)
        return {
            "observation": episode.observations,
            "action": np.append(episode.actions, 0),
            "reward": np.append(episode.rewards, 0).astype(np.float32),
            "discount": np.ones(len(episode) + 1, np.float32),
            "is_first": np.arange(len(episode) + 1) == 0,
            "is_last": last,
            "is_terminal": last & episode.terminated[-1],
            **{name: value(len(episode) + 1) for name, (_, value) in more.items()},
        }

    scalar = tfds.features.Scalar
    features = {
        "observation": tfds.features.Tensor(shape=(4,), dtype=np.float32),
        "action": scalar(np.int64),
        "reward": scalar(np.float32),
        "discount": scalar(np.float32),
        **{name: scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
        **{name: feature for name, (feature, _) in more.items()},
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name="foreign",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(features)}),
        split_datasets={"train": [(it.number, {"steps": steps(it)}) for it in episodes]},
        data_dir=tmp_path,
        disable_shuffling=True,
    )
    return f"rlds:{tmp_path / 'foreign'}", episodes


def test_a_dataset_of_others_is_imported(tmp_path):
    source, episodes = foreign(tmp_path)
    items = datasets.Transitions()
    found = list(datasets.episodes(source))
    made_episodes.assert_equal(found, episodes, skip=("truncated",))
    # An episode that is not terminal is truncated.
    assert [it.truncated[-1] for it in found] == [not it.terminated[-1] for it in episodes]
    with testing.server([made_episodes.table("t", found[0], items)]) as client:
        where = ["import", source, client.server_address, "--table=t", "--items=transitions"]
        assert command.main(where) == 0
        assert client.server_info()["t"].current_size == sum(made_episodes.LENGTHS)


class TestErrors:
    def test_text_is_left_out(self, tmp_path):
        text = (tfds.features.Text(), lambda rows: ["do it"] * rows)
        source, episodes = foreign(tmp_path, language_instruction=text)
        with pytest.raises(errors.InvalidArgumentError, match="field language_instruction: must"):
            datasets.episodes(source)
        found = datasets.episodes(source, leave_out=("language_instruction",))
        made_episodes.assert_equal(found, episodes, skip=("truncated",))

    def test_text_among_observations_is_left_out(self, tmp_path):
        features = tfds.features.FeaturesDict(
            {"x": tfds.features.Scalar(np.int64), "text": tfds.features.Text()}
        )

        def observations(rows):
            return {"x": np.arange(rows), "text": ["do it"] * rows}

        source, _ = foreign(tmp_path, observation=(features, observations))
        text = r"field observation/text: .*; leave_out=\('observation/text',\) leaves it out"
        with pytest.raises(errors.InvalidArgumentError, match=text):
            datasets.episodes(source)
        found = list(datasets.episodes(source, leave_out=("observation/text",)))
        assert [list(it.observations) for it in found] == [["x"]] * 5
        with pytest.raises(errors.InvalidArgumentError, match="names 'observation/y', which is no"):
            datasets.episodes(source, leave_out=("observation/text", "observation/y"))

    def test_a_field_of_other_rows_is_named(self, tmp_path):
        datasets.save(made_episodes.full(), f"rlds:{tmp_path / 'out'}")
        path = tmp_path / "out" / "features.json"
        described = json.loads(path.read_text())
        steps = described["featuresDict"]["features"]["steps"]["sequence"]["feature"]
        infos = steps["featuresDict"]["features"]["infos"]["featuresDict"]["features"]
        infos["value"] = infos["state"]["featuresDict"]["features"]["x"]
        path.write_text(json.dumps(described))
        text = r"infos/value: .* in each of 6 rows; leave_out=\('value',\) lea|rows for 6 steps"
        with pytest.raises(errors.DataLossError, match=text):
            list(datasets.episodes(f"rlds:{tmp_path / 'out'}"))
        assert len(list(datasets.episodes(f"rlds:{tmp_path / 'out'}", leave_out=("value",)))) == 5

    def test_what_is_no_dataset_of_rlds(self, tmp_path):
        tfds.dataset_builders.store_as_tfds_dataset(
            name="other",
            version="1.0.0",
            features=tfds.features.FeaturesDict({"x": tfds.features.Scalar(np.int64)}),
            split_datasets={"train": [(0, {"x": 1})]},
            data_dir=tmp_path,
        )
        with pytest.raises(errors.InvalidArgumentError, match="field steps: is missing"):
            datasets.episodes(f"rlds:{tmp_path / 'other'}")

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(errors.InvalidArgumentError, match=r"0 directories below .* have a"):
            datasets.episodes(f"rlds:{tmp_path}")
        with pytest.raises(errors.InvalidArgumentError, match="TensorFlow Datasets cannot open"):
            datasets.episodes("rlds:none_of_this_name")

    def test_a_truncated_file(self, tmp_path):
        datasets.save(made_episodes.full(), f"rlds:{tmp_path / 'out'}")
        (path,) = (tmp_path / "out").glob("*.tfrecord*")
        path.write_bytes(path.read_bytes()[:-50])
        found = datasets.episodes(f"rlds:{tmp_path / 'out'}")
        assert [next(found).number for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(errors.DataLossError, match="out: episode 4 cannot be read"):
            next(found)

    def test_nothing_is_left_of_a_dataset_that_failed(self, tmp_path):
        bad = made_episodes.episode(3, 5, actions=np.zeros((3, 2)))
        with pytest.raises(errors.InvalidArgumentError, match="episode 5: TensorFlow Datasets can"):
            datasets.save([*made_episodes.episodes(), bad], f"rlds:{tmp_path / 'out'}")
        assert list(tmp_path.iterdir()) == []
