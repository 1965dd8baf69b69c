# SPDX-License-Identifier: Apache-2.0
"""A row a step: fields with other rows, episodes in several files, and values that are equal."""

import itertools
import operator
import re

import numpy as np
import pytest

from reverb import datasets, errors, testing
from support import made_episodes

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

STEPS = 6
NAMES = {
    "observations": lambda it: it.observations[:-1],
    "next_observations": lambda it: it.observations[1:],
    "actions": lambda it: it.actions,
    "rewards": lambda it: it.rewards,
    "terminated": lambda it: it.terminated,
    "truncated": lambda it: it.truncated,
    "infos/qpos": lambda it: it.infos["qpos"],
}


def made(number=0, num_steps=STEPS):
    qpos = np.arange(2 * num_steps).reshape(num_steps, 2)
    return made_episodes.episode(num_steps, number, infos={"qpos": qpos})


def arrays_of(episodes):
    return {name: np.concatenate([part(it) for it in episodes]) for name, part in NAMES.items()}


def save_npz(directory, arrays):
    np.savez(directory / "f.npz", **arrays)
    return f"npz:{directory / 'f.npz'}"


def save_offsets(directory, arrays):
    offsets = {f"{name}/offsets": np.array([0, len(it)]) for name, it in arrays.items()}
    return save_npz(directory, arrays | offsets)


def save_list(directory, arrays):
    """An episode a row."""
    table = pa.table({name: pa.array([it.tolist()]) for name, it in arrays.items()})
    pq.write_table(table, directory / "f.parquet")
    return f"parquet:{directory / 'f.parquet'}"


def save_hf(directory, arrays):
    return f"hf:{save_list(directory, arrays).partition(':')[2].rpartition('/')[0]}"


SAVES = {"npz": save_npz, "npz offsets": save_offsets, "parquet": save_list, "hf": save_hf}


@pytest.mark.parametrize("num_rows", [STEPS - 1, STEPS + 1, 2 * STEPS])
@pytest.mark.parametrize("name", [it for it in NAMES if it != "rewards"])
@pytest.mark.parametrize("format_", SAVES)
def test_a_field_of_other_rows_is_named(tmp_path, format_, name, num_rows):
    arrays = arrays_of([made()])
    if name in ("observations", "infos/qpos") and num_rows == STEPS + 1 and format_ != "npz":
        return  # These have a row for the reset then.
    arrays[name] = np.resize(arrays[name], (num_rows, *arrays[name].shape[1:]))
    source = SAVES[format_](tmp_path, arrays)
    with pytest.raises(errors.ReverbError) as caught:
        list(datasets.episodes(source))
    text = str(caught.value)
    assert re.search(rf"f\.{source.partition(':')[0].replace('hf', 'parquet')}", text)
    assert re.search(rf"field {name}.*\b{num_rows}\b.*\b{STEPS}\b|{name}: must have shape", text)
    if name == "infos/qpos":
        assert "leave_out=('qpos',) leaves it out" in text
        (found,) = datasets.episodes(source, leave_out=("qpos",))
        assert found.rewards.tolist() == made().rewards.tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metadata/algorithm", np.array("SAC")),
        ("metadata/iteration", np.int64(3)),
        ("metadata/policy/weight", np.zeros((256, 17), np.float32)),
        ("infos/order", np.asfortranarray(np.zeros((STEPS, 2)))),
    ],
)
def test_a_field_without_a_row_for_each_step_is_left_out(tmp_path, name, value):
    source = save_npz(tmp_path, arrays_of([made()]) | {name: value})
    with pytest.raises(errors.InvalidArgumentError) as caught:
        list(datasets.episodes(source))
    advised = re.search(r"leave_out=\('(.*?)',\) leaves it out", str(caught.value))[1]
    assert f"f.npz: field {name}" in str(caught.value).replace(" episode 0,", "")
    for leave_out in (advised, advised.partition("/")[0]):
        made_episodes.assert_equal(datasets.episodes(source, leave_out=(leave_out,)), [made()])


def test_rewards_after_the_last_offset(tmp_path):
    arrays = arrays_of([made()])
    arrays["rewards"] = np.zeros(STEPS + 2, np.float32)
    arrays |= {f"{name}/offsets": np.array([0, STEPS]) for name in NAMES}
    with pytest.raises(errors.InvalidArgumentError, match="field rewards: has 8 rows for 6 steps"):
        list(datasets.episodes(save_npz(tmp_path, arrays)))


def save_steps(path, arrays):
    columns = {
        name: pa.array(list(it)) if it.ndim > 1 else pa.array(it) for name, it in arrays.items()
    }
    pq.write_table(pa.table(columns), path)


CUTS = {
    "npz": ("npz", "npz", lambda path, arrays: np.savez(path, **arrays)),
    "parquet": ("parquet", "parquet", save_steps),
    "hf": ("hf", "parquet", save_steps),
}


@pytest.mark.parametrize("cuts", [(7,), (6,), (3, 8), (1, 2, 3), (11, 17)])
@pytest.mark.parametrize("format_", CUTS)
def test_an_episode_in_several_files_is_one(tmp_path, format_, cuts):
    prefix, suffix, save = CUTS[format_]
    episodes = [made(number) for number in range(3)]
    arrays = arrays_of(episodes)
    arrays["episode_index"] = np.repeat([4, 9, 2], STEPS)
    bounds = [0, *cuts, 3 * STEPS]
    for number, (start, end) in enumerate(itertools.pairwise(bounds), start=8):
        part = {name: it[start:end] for name, it in arrays.items()}
        save(tmp_path / f"part_{number}.{suffix}", part)
    nothing = {name: it[:0] for name, it in arrays.items()}
    if format_ == "npz":
        save(tmp_path / "part_8_.npz", nothing)  # It comes after the first file.
    source = f"{prefix}:{tmp_path}"
    found = list(datasets.episodes(source))
    made_episodes.assert_equal(found, episodes)
    assert [it.key for it in found] == ["4", "9", "2"]
    for skip in range(4):
        after = datasets.episodes(source, skip=skip)
        made_episodes.assert_equal(after, episodes[skip:])


def test_episodes_a_row_are_known_by_their_index(tmp_path):
    arrays = arrays_of([made()])
    columns = {name: pa.array([it.tolist()] * 2) for name, it in arrays.items()}
    for index in ([7, 3], [[7] * STEPS, [3] * STEPS]):
        pq.write_table(pa.table({**columns, "episode_index": index}), tmp_path / "f.parquet")
        found = list(datasets.episodes(f"parquet:{tmp_path}"))
        assert [it.key for it in found] == ["7", "3"]


@pytest.mark.parametrize("format_", ["parquet", "hf"])
def test_files_of_episodes_and_of_steps_are_read(tmp_path, format_):
    episodes = [made(number) for number in range(3)]
    save_list(tmp_path, arrays_of(episodes[:1]))
    save_steps(tmp_path / "g.parquet", arrays_of(episodes[1:]))
    source = f"{format_}:{tmp_path}"
    assert operator.length_hint(datasets.episodes(source)) == 3
    actions = [it.actions.tolist() for it in episodes]
    for skip in range(4):
        found = datasets.episodes(source, skip=skip)
        assert [it.actions.tolist() for it in found] == actions[skip:]


@pytest.mark.parametrize("format_", ["parquet", "hf"])
def test_a_field_of_a_later_file_is_not_lost(tmp_path, format_):
    arrays = arrays_of([made()])
    save_steps(tmp_path / "a.parquet", arrays)
    save_steps(tmp_path / "b.parquet", arrays | {"infos/more": np.zeros(STEPS)})
    text = f"{tmp_path / 'b.parquet'}: episode 1, field infos/more: is a field that earlier"
    with testing.server([testing.table("t")]) as client:
        episodes = datasets.episodes(f"{format_}:{tmp_path}")
        with pytest.raises(errors.SignatureMismatchError, match=text):
            datasets.write(client, "t", episodes, datasets.Episodes(STEPS))


def test_a_shard_of_hugging_face_ends_in_an_episode(tmp_path):
    episodes = [made(number) for number in range(2)]
    arrays = arrays_of(episodes)
    for number, (start, end) in enumerate([(0, 3), (3, 8), (8, 12)]):
        part = {name: it[start:end] for name, it in arrays.items()}
        save_steps(tmp_path / f"train-0000{number}-of-00003.parquet", part)
    made_episodes.assert_equal(datasets.episodes(f"hf:{tmp_path}"), episodes)


def test_parts_of_an_episode_that_differ(tmp_path):
    arrays = arrays_of([made()]) | {"episode_index": np.zeros(STEPS, np.int64)}
    first = {name: it[:3] for name, it in arrays.items()}
    second = {name: it[3:] for name, it in arrays.items()}
    np.savez(tmp_path / "a.npz", **first)
    np.savez(tmp_path / "b.npz", **second | {"actions": second["actions"].astype(np.int8)})
    with pytest.raises(errors.InvalidArgumentError, match=r"b.npz: episode 0, .* actions: has dt"):
        list(datasets.episodes(f"npz:{tmp_path}"))
    np.savez(tmp_path / "b.npz", **second, more=np.zeros(3))
    with pytest.raises(errors.InvalidArgumentError, match=r"b.npz: .* fields \['more'\]"):
        list(datasets.episodes(f"npz:{tmp_path}"))


@pytest.mark.parametrize("name", [*NAMES, "all"])
def test_a_swapped_byte_order_is_converted(tmp_path, name):
    arrays = {
        field: it.astype(it.dtype.newbyteorder()) if name in (field, "all") else it
        for field, it in arrays_of([made()]).items()
    }
    source = save_npz(tmp_path, arrays)
    made_episodes.assert_equal(datasets.episodes(source), [made()])
    items = datasets.Transitions()
    with testing.server([made_episodes.table("t", made(), items)]) as client:
        assert datasets.write(client, "t", datasets.episodes(source), items).num_items == STEPS


def test_zeros_and_nans_are_equal(tmp_path):
    arrays = arrays_of([made()])
    before, after = arrays["observations"], arrays["next_observations"]
    before[1, :2], after[0, :2] = (0.0, -0.0), (-0.0, 0.0)
    before[2, 0] = np.nan
    after[1, :1] = np.array([0x7FC00001], np.uint32).view(np.float32)  # Another NaN.
    (found,) = datasets.episodes(save_npz(tmp_path, arrays))
    assert np.array_equal(found.observations[:-1], before, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_another_dtype_of_next_observations_is_said(tmp_path, dtype):
    arrays = arrays_of([made()])
    arrays["next_observations"] = arrays["next_observations"].astype(dtype)
    text = f"field next_observations: has dtype {np.dtype(dtype)} .*, and observations has float32"
    with pytest.raises(errors.InvalidArgumentError, match=text):
        list(datasets.episodes(save_npz(tmp_path, arrays)))


def test_next_observations_beside_whole_ones_are_compared(tmp_path):
    arrays = arrays_of([made()]) | {"observations": made().observations}
    made_episodes.assert_equal(datasets.episodes(save_offsets(tmp_path, arrays)), [made()])
    arrays["next_observations"] = arrays["next_observations"] + 1
    with pytest.raises(errors.InvalidArgumentError, match="next_observations: that of step 0 is"):
        list(datasets.episodes(save_offsets(tmp_path, arrays)))
