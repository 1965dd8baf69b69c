# SPDX-License-Identifier: Apache-2.0
"""Episodes of npz and Parquet files: those of an export, flat ones, and a step a row."""

import operator
import zipfile

import numpy as np
import pytest

from reverb import command, datasets, testing
from support import made_episodes
from support.command_items import BFLOAT16, NUMBERS

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

FORMATS = ("npz", "parquet")


def exported(tmp_path, format_, episodes, *options):
    """Writes episodes to a table, and exports it."""
    items = datasets.Episodes(max_length=1000)
    rewards = episodes[0].rewards.dtype
    table = made_episodes.table("t", episodes[0], items, reward_dtype=rewards)
    out = tmp_path / format_
    with testing.server([table]) as client:
        datasets.write(client, "t", episodes, items)
        arguments = ["export", client.server_address, "--table=t", f"--format={format_}"]
        assert command.main([*arguments, f"--output={out}", *options]) == 0
    return f"{format_}:{out}"


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_comes_back(tmp_path, format_):
    lengths = [*made_episodes.LENGTHS, 40]
    episodes = [
        made_episodes.nested(
            length,
            number,
            rewards=np.arange(length) / 7,
            infos={"a": np.arange(length), "b": {"c": np.ones((length, 2), np.float16)}},
            end=("terminated", "truncated")[number % 2],
        )
        for number, length in enumerate(lengths)
    ]
    source = exported(tmp_path, format_, episodes, "--shard-items=4")
    found = datasets.episodes(source)
    assert operator.length_hint(found) == len(lengths)
    made_episodes.assert_equal(found, episodes)
    made_episodes.assert_equal(datasets.episodes(source, skip=2, limit=3), episodes[2:5])
    assert [it.number for it in datasets.episodes(source, skip=5)] == [5]


@pytest.mark.parametrize("format_", FORMATS)
def test_every_dtype_comes_back(tmp_path, format_):
    dtypes = [*NUMBERS, BFLOAT16[0]]
    episodes = [made_episodes.every_dtype(4 + number, number, dtypes) for number in range(3)]
    found = datasets.episodes(exported(tmp_path, format_, episodes))
    made_episodes.assert_equal(found, episodes)


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_into_one_file_comes_back(tmp_path, format_):
    episodes = made_episodes.episodes()
    items = datasets.Episodes(max_length=1000)
    out = tmp_path / f"out.{format_}"
    with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
        datasets.write(client, "t", episodes, items)
        arguments = ["export", client.server_address, "--table=t", f"--format={format_}"]
        assert command.main([*arguments, f"--output={out}"]) == 0
    made_episodes.assert_equal(datasets.episodes(f"{format_}:{out}"), episodes)


def test_a_flat_npz_file_is_split_by_its_flags(tmp_path):
    episodes = made_episodes.episodes()
    source = made_episodes.write_npz(tmp_path / "flat.npz", episodes)
    found = datasets.episodes(source)
    assert operator.length_hint(found) == len(episodes)
    made_episodes.assert_equal(found, episodes)
    made_episodes.assert_equal(datasets.episodes(source, skip=3), episodes[3:])


def test_a_compressed_npz_file_is_read(tmp_path):
    episodes = made_episodes.episodes()
    made_episodes.write_npz(tmp_path / "flat.npz", episodes)
    with np.load(tmp_path / "flat.npz") as file:
        np.savez_compressed(tmp_path / "small.npz", **file)
    made_episodes.assert_equal(datasets.episodes(f"npz:{tmp_path / 'small.npz'}"), episodes)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_npy_files_are_read(tmp_path, version):
    episodes = made_episodes.episodes()
    made_episodes.write_npz(tmp_path / "flat.npz", episodes)
    path = tmp_path / "version.npz"
    with np.load(tmp_path / "flat.npz") as file, zipfile.ZipFile(path, "w") as archive:
        for name in file.files:
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, file[name], version=version)
    made_episodes.assert_equal(datasets.episodes(f"npz:{path}"), episodes)


def step_table(episodes, numbered=False):
    arrays = {
        "observation": np.concatenate([it.observations[:-1] for it in episodes]),
        "next_observation": np.concatenate([it.observations[1:] for it in episodes]),
        "action": np.concatenate([it.actions for it in episodes]),
        "reward": np.concatenate([it.rewards for it in episodes]),
        "terminated": np.concatenate([it.terminated for it in episodes]),
        "truncated": np.concatenate([it.truncated for it in episodes]),
    }
    if numbered:
        arrays["episode_index"] = np.concatenate([[it.number] * len(it) for it in episodes])
    columns = {
        name: pa.array(list(it)) if it.ndim > 1 else pa.array(it) for name, it in arrays.items()
    }
    return pa.table(columns)


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("group_rows", [1, 4, 1000])
def test_a_parquet_file_with_a_step_a_row_is_read(tmp_path, numbered, group_rows):
    episodes = made_episodes.episodes()
    path = tmp_path / "steps.parquet"
    pq.write_table(step_table(episodes, numbered), path, row_group_size=group_rows)
    found = datasets.episodes(f"parquet:{path}")
    assert operator.length_hint(found) == 0
    made_episodes.assert_equal(found, episodes)
    made_episodes.assert_equal(datasets.episodes(f"parquet:{path}", skip=2, limit=2), episodes[2:4])


def test_structs_are_nests(tmp_path):
    episodes = made_episodes.episodes()
    table = pa.table(
        {
            "observations": pa.array(
                [{"x": it.observations.tolist(), "t": list(range(len(it) + 1))} for it in episodes],
                pa.struct([("x", pa.list_(pa.list_(pa.float32()))), ("t", pa.list_(pa.int16()))]),
            ),
            "actions": pa.array([it.actions.tolist() for it in episodes]),
            "rewards": pa.array([it.rewards.tolist() for it in episodes], pa.list_(pa.float32())),
            "terminated": pa.array([it.terminated.tolist() for it in episodes]),
            "truncated": pa.array([it.truncated.tolist() for it in episodes]),
        }
    )
    pq.write_table(table, tmp_path / "nest.parquet")
    for found, made in zip(
        datasets.episodes(f"parquet:{tmp_path / 'nest.parquet'}"), episodes, strict=True
    ):
        assert found.observations["x"].tobytes() == made.observations.tobytes()
        assert found.observations["t"].tolist() == list(range(len(made) + 1))
        assert found.rewards.tobytes() == made.rewards.tobytes()
