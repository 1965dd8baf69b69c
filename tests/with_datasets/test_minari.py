# SPDX-License-Identifier: Apache-2.0
"""Datasets of Minari, both ways: what Minari reads of ours, and what we read of its."""

import dataclasses
import json
import shutil

import gymnasium
import minari
import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from support import made_episodes

DATA_FORMATS = ("hdf5", "arrow", "parquet")


def full(lengths=made_episodes.LENGTHS):
    """Episodes with nests, images that JPEG would change, infos and seeds."""
    return [
        dataclasses.replace(
            made_episodes.nested(
                length,
                number,
                end=("terminated", "truncated", "both")[number % 3],
                rewards=np.arange(length) / 7,
                infos={
                    "value": np.linspace(0, 1, length + 1),
                    "state": {"position": np.arange(2 * length + 2).reshape(length + 1, 2)},
                },
            ),
            metadata={"seed": number, "options": {"level": 3}},
        )
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_a_round_trip_loses_nothing(data_format):
    episodes = full()
    assert datasets.save(episodes, "minari:mine/a-v0", data_format=data_format) == len(episodes)
    found = list(datasets.episodes("minari:mine/a-v0"))
    made_episodes.assert_equal(found, episodes)
    assert [dict(it.metadata) for it in found] == [dict(it.metadata) for it in episodes]
    assert {it.source for it in found} == {"minari:mine/a-v0"}


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_every_dtype_comes_back(data_format):
    episodes = [made_episodes.every_dtype(5 + number, number) for number in range(2)]
    datasets.save(episodes, "minari:mine/a-v0", data_format=data_format)
    made_episodes.assert_equal(datasets.episodes("minari:mine/a-v0"), episodes)


def test_minari_reads_ours():
    episodes = full()
    datasets.save(episodes, "minari:mine/images-v0")
    dataset = minari.load_dataset("mine/images-v0")
    assert dataset.total_episodes == len(episodes)
    assert dataset.total_steps == sum(made_episodes.LENGTHS)
    for found, made in zip(dataset.iterate_episodes(), episodes, strict=True):
        assert np.array_equal(found.observations["pair"][0], made.observations["pair"][0])
        assert np.array_equal(found.actions, made.actions)
        assert np.array_equal(found.terminations, made.terminated)
        assert np.array_equal(found.truncations, made.truncated)
        assert found.observations["numbers"][0] in dataset.observation_space["numbers"]


def collected(name, num_episodes=4):
    """A dataset that Minari's own collector makes."""
    env = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=20))
    for seed in range(num_episodes):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(
                seed % 2 if seed < 2 else env.action_space.sample()
            )
            ended = terminated or truncated
    return env.create_dataset(dataset_id=name, author="somebody", description="", code_permalink="")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_collected_dataset_goes_through_a_table_and_back():
    made = collected("made/cartpole-v0")
    episodes = list(datasets.episodes("minari:made/cartpole-v0"))
    for found, own in zip(episodes, made.iterate_episodes(), strict=True):
        assert np.array_equal(found.observations, own.observations)
        assert np.array_equal(found.truncated, own.truncations)
    assert [it.metadata["seed"] for it in episodes] == [0, 1, 2, 3]
    items = datasets.Episodes(20)
    table = made_episodes.table("e", episodes[0], items, reward_dtype=np.float64)
    with testing.server([table]) as client:
        where = ["import", "minari:made/cartpole-v0", client.server_address, "--table=e"]
        assert command.main([*where, "--items=episodes"]) == 0
        out = ["export", client.server_address, "--table=e", "--format=minari"]
        assert command.main([*out, "--dataset-id=again/cartpole-v1", "--env=CartPole-v1"]) == 0
    again = minari.load_dataset("again/cartpole-v1")
    assert again.observation_space == made.observation_space
    assert again.env_spec.id == "CartPole-v1"
    made_episodes.assert_equal(datasets.episodes("minari:again/cartpole-v1"), episodes)


def test_a_dataset_is_found_by_its_path(tmp_path):
    episodes = made_episodes.episodes()
    datasets.save(episodes, "minari:mine/a-v0")
    path = (tmp_path / "minari" / "mine" / "a-v0").rename(tmp_path / "moved")
    for name in (path, path / "data"):
        found = list(datasets.episodes(f"minari:{name}", skip=1, limit=2))
        made_episodes.assert_equal(found, episodes[1:3])
        assert {it.source for it in found} == {"minari:mine/a-v0"}


class TestErrors:
    def test_a_dtype_that_has_no_space(self):
        episode = made_episodes.every_dtype(3, 0, ["complex64"])
        text = "made: episode 0, field observations/complex64: has dtype complex64, which has no"
        with pytest.raises(errors.InvalidArgumentError, match=text):
            datasets.save([episode], "minari:mine/a-v0")

    def test_a_dataset_that_is_not_there(self):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            datasets.episodes("minari:mine/none-v0")
        assert "Nothing is downloaded here: `minari download mine/none-v0` does it" in str(
            caught.value
        )

    def test_a_name_that_is_none(self):
        with pytest.raises(errors.InvalidArgumentError, match=r"^minari:a b c: .*"):
            datasets.episodes("minari:a b c")

    def test_another_version_of_the_format(self, tmp_path):
        datasets.save(made_episodes.episodes(), "minari:mine/a-v0")
        path = tmp_path / "minari" / "mine" / "a-v0" / "data" / "metadata.json"
        facts = json.loads(path.read_text())
        path.write_text(json.dumps(facts | {"minari_version": "99.0.0"}))
        with pytest.raises(errors.InvalidArgumentError, match=r"does not support .* 99.0.0"):
            datasets.episodes("minari:mine/a-v0")

    def test_a_truncated_file(self, tmp_path):
        datasets.save(made_episodes.episodes(), "minari:mine/a-v0")
        path = tmp_path / "minari" / "mine" / "a-v0" / "data" / "main_data.hdf5"
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(errors.DataLossError, match="data: episode 0 cannot be read: "):
            list(datasets.episodes("minari:mine/a-v0"))

    def test_an_episode_that_is_missing(self, tmp_path):
        h5py = pytest.importorskip("h5py", reason="h5py comes with the extra `minari`")
        datasets.save(made_episodes.episodes(), "minari:mine/a-v0")
        path = tmp_path / "minari" / "mine" / "a-v0" / "data" / "main_data.hdf5"
        with h5py.File(path, "a") as file:
            del file["episode_2"]
        found = datasets.episodes("minari:mine/a-v0")
        assert [next(found).number, next(found).number] == [0, 1]
        with pytest.raises(errors.DataLossError, match="data: episode 2 cannot be read: "):
            next(found)

    def test_a_dataset_that_exists_is_kept(self):
        episodes = made_episodes.episodes()
        datasets.save(episodes, "minari:mine/a-v0")
        with pytest.raises(errors.InvalidArgumentError, match="minari:mine/a-v0 exists in "):
            datasets.save(episodes[:1], "minari:mine/a-v0")
        made_episodes.assert_equal(datasets.episodes("minari:mine/a-v0"), episodes)

    def test_nothing_is_left_of_a_dataset_that_failed(self):
        good = made_episodes.episodes()
        bad = dataclasses.replace(made_episodes.episode(3, 5), infos={"x": np.zeros(3)})
        with pytest.raises(errors.InvalidArgumentError, match="made: episode 5, field infos: "):
            datasets.save([*good, bad], "minari:mine/a-v0")
        datasets.save(good, "minari:mine/a-v0")
        made_episodes.assert_equal(datasets.episodes("minari:mine/a-v0"), good)


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_images_that_minari_has_encoded_are_decoded(data_format, alike):
    rng = np.random.default_rng(0)
    shape = (4, 40, 48, 3)
    frames = rng.integers(0, 256, shape).astype(np.uint8)
    frames[1, :20] = 7  # Its code is shorter than that of the others.
    if alike:
        frames[:] = frames[:1]
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations={"top": frames, "state": np.zeros((4, 2))},
            actions=np.zeros(3, np.int64),
            rewards=np.ones(3),
            terminations=np.array([False, False, True]),
            truncations=np.zeros(3, np.bool_),
        )
        for _ in range(2)
    ]
    spaces = gymnasium.spaces
    made = minari.create_dataset_from_buffers(
        "made/images-v0",
        buffers,
        observation_space=spaces.Dict(
            {
                "top": spaces.Box(0, 255, shape[1:], np.uint8),
                "state": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            }
        ),
        action_space=spaces.Discrete(3),
        data_format=data_format,
    )
    assert made.storage.jpeg_encoding
    for found, own in zip(
        datasets.episodes("minari:made/images-v0"), made.iterate_episodes(), strict=True
    ):
        assert np.array_equal(found.observations["top"], own.observations["top"])
        assert np.array_equal(found.observations["state"], own.observations["state"])


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_texts_among_observations_are_left_out(data_format):
    spaces = gymnasium.spaces
    mission = ["go to the red ball"] * 4
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations={
                "pair": (np.full((4, 2), number), mission, np.arange(4)),
                "mission": mission,
                "state": np.full((4, 2), float(number)),
            },
            actions=np.zeros(3, np.int64),
            rewards=np.ones(3),
            terminations=np.array([False, False, True]),
            truncations=np.zeros(3, np.bool_),
        )
        for number in range(2)
    ]
    box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    integers = spaces.Box(0, 9, (2,), np.int64)
    pair = spaces.Tuple((integers, spaces.Text(64), spaces.Discrete(4)))
    minari.create_dataset_from_buffers(
        "made/missions-v0",
        buffers,
        observation_space=spaces.Dict({"pair": pair, "mission": spaces.Text(64), "state": box}),
        action_space=spaces.Discrete(3),
        data_format=data_format,
        jpeg_encoding=False,
    )
    names = []
    while len(names) < 2:
        with pytest.raises(errors.InvalidArgumentError, match="must be numbers, got text") as it:
            list(datasets.episodes("minari:made/missions-v0", leave_out=tuple(names)))
        names.append(str(it.value).partition("leave_out=('")[2].partition("'")[0])
    assert sorted(names) == ["observation/mission", "observation/pair/1"]
    found = list(datasets.episodes("minari:made/missions-v0", leave_out=tuple(names)))
    assert [int(it.observations["state"][0, 0]) for it in found] == [0, 1]
    assert sorted(found[0].observations["pair"]) == ["0", "2"]
    with pytest.raises(errors.InvalidArgumentError, match="leave_out names 'observation/x', which"):
        list(datasets.episodes("minari:made/missions-v0", leave_out=(*names, "observation/x")))


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_an_episode_has_the_number_that_minari_gives_it(tmp_path, data_format):
    episodes = made_episodes.episodes()
    datasets.save(episodes, "minari:mine/a-v0", data_format=data_format)
    data = tmp_path / "minari" / "mine" / "a-v0" / "data"
    if data_format == "hdf5":
        h5py = pytest.importorskip("h5py", reason="h5py comes with the extra `minari`")
        with h5py.File(data / "main_data.hdf5", "a") as file:
            del file["episode_2"]
    else:
        shutil.rmtree(data / "2")
    facts = json.loads((data / "metadata.json").read_text())
    (data / "metadata.json").write_text(json.dumps(facts | {"total_episodes": 4}))
    found = list(datasets.episodes("minari:mine/a-v0"))
    made_episodes.assert_equal(found, episodes[:2] + episodes[3:])
    assert [it.number for it in found] == [0, 1, 3, 4]
    assert [it.number for it in datasets.episodes("minari:mine/a-v0", skip=2)] == [3, 4]


@pytest.mark.parametrize("num_rows", [4, 6, 10])
@pytest.mark.parametrize("field", ["actions", "terminations", "observations", "infos/x"])
def test_a_field_of_other_rows_is_named(tmp_path, field, num_rows):
    h5py = pytest.importorskip("h5py", reason="h5py comes with the extra `minari`")
    infos = {"x": np.arange(6)}
    datasets.save([made_episodes.episode(5, infos=infos)], "minari:mine/a-v0")
    data = tmp_path / "minari" / "mine" / "a-v0" / "data"
    num_rows += num_rows == 6 and field in ("observations", "infos/x")
    with h5py.File(data / "main_data.hdf5", "a") as file:
        values = file[f"episode_0/{field}"][()]
        del file[f"episode_0/{field}"]
        file[f"episode_0/{field}"] = np.resize(values, (num_rows, *values.shape[1:]))
    with pytest.raises(errors.InvalidArgumentError) as caught:
        list(datasets.episodes("minari:mine/a-v0"))
    text = str(caught.value)
    assert f"{num_rows} rows for 5 steps" in text or f"shape [{num_rows}]" in text
    if field == "infos/x":
        assert "leave_out=('x',) leaves it out" in text
        assert len(list(datasets.episodes("minari:mine/a-v0", leave_out=("x",)))) == 1
