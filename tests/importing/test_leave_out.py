# SPDX-License-Identifier: Apache-2.0
"""Fields that are left out by the names that errors advise."""

import re

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from support import made_episodes

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

STEPS = 8
KINDS = {
    "transitions": datasets.Transitions(n_step=2),
    "sequences": datasets.Sequences(length=4),
    "episodes": datasets.Episodes(100),
}


def whole(**more):
    """An episode with more than a learner wants."""
    rows = STEPS + 1
    observations = {
        "state": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        "image": np.zeros((rows, 4, 4), np.uint8),
        "pair": (np.arange(rows), {"a": np.ones(rows), "b": np.zeros(rows, np.int8)}),
    }
    actions = {"arm": np.ones((STEPS, 3), np.float32), "base": np.arange(STEPS)}
    infos = {"action": np.zeros(STEPS), "deep/er": {"x": np.zeros(STEPS), "y": np.ones(STEPS)}}
    parts = {"observations": observations, "actions": actions, "infos": infos | more}
    return made_episodes.episode(STEPS, **parts)


def small():
    """The part of it that the learner wants."""
    observations = {"state": whole().observations["state"], "pair": {"1": {"b": np.zeros(9, "i1")}}}
    actions = {"base": np.arange(STEPS)}
    infos = {"deep/er": {"y": np.ones(STEPS)}}
    return made_episodes.episode(STEPS, observations=observations, actions=actions, infos=infos)


def save_npz(directory, episode):
    arrays = {"reward": episode.rewards, "terminated": episode.terminated}
    arrays |= {f"{it}/offsets": np.array([0, STEPS]) for it in list(arrays)}
    leaves = datasets.episode.leaves
    for field in ("observations", "actions", "infos"):
        for path, leaf in leaves(field, getattr(episode, field)):
            arrays |= {path: leaf, f"{path}/offsets": np.array([0, len(leaf)])}
    np.savez(directory / "f.npz", **arrays)
    return f"npz:{directory / 'f.npz'}"


def save_parquet(directory, episode):
    with np.load(save_npz(directory, episode).partition(":")[2]) as file:
        columns = {it: pa.array([file[it].tolist()]) for it in file if "/offsets" not in it}
        types = {it: file[it].dtype for it in columns}
    for name, dtype in types.items():
        type_ = columns[name].type
        inner = pa.from_numpy_dtype(dtype)
        while pa.types.is_list(type_):
            type_, inner = type_.value_type, pa.list_(inner)
        columns[name] = columns[name].cast(inner)
    pq.write_table(pa.table(columns), directory / "f.parquet")
    return f"parquet:{directory / 'f.parquet'}"


READ = {
    "npz": lambda path: datasets.episodes(save_npz(path, whole())),
    "parquet": lambda path: datasets.episodes(save_parquet(path, whole())),
    "program": lambda path: [whole()],
}


def advised(call):
    """The names that errors advise to leave out, until there is no error."""
    names = []
    while text := error_of(call, tuple(names)):
        found = re.search(r"leave_out=\('(.*?)',\)", text)
        assert found, text
        assert found[1] not in names, text
        names.append(found[1])
    return names


def error_of(call, names):
    try:
        call(names)
    except errors.ReverbError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["npz", "parquet", "program"])
def test_what_errors_advise_leads_to_an_import(tmp_path, kind, source):
    items = KINDS[kind]
    made = {"npz": save_npz, "parquet": save_parquet}.get(source)
    name = made and made(tmp_path, whole())
    with testing.server([made_episodes.table("t", small(), items)]) as client:

        def write(leave_out):
            read = [whole()] if name is None else datasets.episodes(name, leave_out=leave_out)
            datasets.write(client, "t", read, items, leave_out=leave_out)

        names = advised(write)
        assert "observation/image" in names
        assert "infos/action" in names
        (first, *_) = client.scan("t", unpack_as_table_signature=True)
        assert sorted(first.data["observation"]) == ["pair", "state"]
        signature = datasets.signature(whole(), items, leave_out=names)
        assert sorted(signature["observation"]) == ["pair", "state"]
        assert signature == datasets.signature(small(), items)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_next_observations_alone(kind):
    items = KINDS[kind]
    leave_out = ("next_observation/image", "next_observation/pair/0", "infos/action")
    example = datasets.signature(whole(), items, leave_out=leave_out)
    assert sorted(example["next_observation"]) == ["pair", "state"]
    assert list(example["next_observation"]["pair"]) == ["1"]
    assert sorted(example["observation"]) == ["image", "pair", "state"]
    with testing.server([testing.table("t", signature=example, max_size=100)]) as client:
        counts = datasets.write(client, "t", [whole()], items, leave_out=leave_out)
        assert client.server_info()["t"].current_size == counts.num_items > 0


@pytest.mark.parametrize("spelling", ["observation/image", "observations/image", "obs/image"])
def test_a_part_is_named_by_its_column_or_its_field(tmp_path, spelling):
    (found,) = datasets.episodes(save_npz(tmp_path, whole()), leave_out=(spelling,))
    assert sorted(found.observations) == ["pair", "state"]
    assert found.left_out == (spelling,)


def test_texts_are_left_out(tmp_path):
    made = whole()
    made.observations["text"] = np.array(["a"] * (STEPS + 1))
    made.infos["note"] = np.array(["b"] * STEPS)
    source = save_npz(tmp_path, made)
    names = advised(lambda names: list(datasets.episodes(source, leave_out=names)))
    assert sorted(names) == ["note", "observation/text"]
    items = datasets.Transitions()
    with testing.server([testing.table("t")]) as client:
        leave_out = (*names, "infos/action")
        assert datasets.write(client, "t", [made], items, leave_out=leave_out).num_items == STEPS


class TestUnknownNames:
    @pytest.mark.parametrize("source", READ)
    @pytest.mark.parametrize("name", ["imge", "observation/imge", "infos/deeper", "pair", "state"])
    def test_a_name_that_is_not_there(self, tmp_path, source, name):
        leave_out = (name, "infos/action")
        read, items = READ[source](tmp_path), datasets.Transitions()
        with testing.server([testing.table("t")]) as client:
            text = error_of(
                lambda names: datasets.write(client, "t", read, items, leave_out=names), leave_out
            )
        assert f"leave_out names {name!r}, which is not there; there are ['action/arm'" in text
        assert "'observation/image'" in text

    @pytest.mark.parametrize("save", [save_npz, save_parquet])
    def test_a_part_that_the_file_has_not(self, tmp_path, save):
        source = save(tmp_path, whole())
        with pytest.raises(errors.InvalidArgumentError, match="names 'action/leg', which is not"):
            datasets.episodes(source, leave_out=("action/leg",))
        # Columns of items, and infos that other datasets have, are no faults.
        list(datasets.episodes(source, leave_out=("next_observation", "infos", "discount", "x")))

    def test_the_command_refuses_it(self, tmp_path, capsys):
        source = save_npz(tmp_path, whole())
        with testing.server([testing.table("t")]) as client:
            where = ["import", source, client.server_address, "--table=t", "--items=transitions"]
            left_out = ["--leave-out=infos/action", "--leave-out=observations/image"]
            assert command.main([*where, *left_out, "--leave-out=imge"]) == 1
            assert "names 'imge', which is not there" in capsys.readouterr().err
            assert command.main([*where, *left_out]) == 0

    def test_nothing_is_left(self, tmp_path):
        leave_out = ("action/arm", "action/base")
        text = r"leaves nothing of the actions; keep a part, or leave out the column 'action'"
        with pytest.raises(errors.InvalidArgumentError, match=text):
            datasets.episodes(save_npz(tmp_path, whole()), leave_out=leave_out)
        with pytest.raises(errors.InvalidArgumentError, match=text):
            datasets.signature(whole(), datasets.Transitions(), leave_out=leave_out)


def test_a_field_that_only_a_later_file_has(tmp_path):
    for number, more in enumerate([{}, {"more": np.zeros(STEPS)}]):
        path = tmp_path / f"{number}"
        path.mkdir()
        save_parquet(path, whole(**more))
    items = datasets.Transitions()
    with testing.server([testing.table("t")]) as client:
        leave_out = ("more", "infos/action")
        read = datasets.episodes(f"parquet:{tmp_path}", leave_out=leave_out)
        counts = datasets.write(client, "t", read, items, leave_out=leave_out)
        assert counts.num_items == 2 * STEPS
