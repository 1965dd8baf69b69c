# SPDX-License-Identifier: Apache-2.0
"""A dataset whose files come, go, change and get other names is imported again and again."""

import collections
import dataclasses
import random

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from reverb.datasets.table_columns import TableColumns
from support import made_episodes

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

ITEMS = datasets.Episodes(100)


def made(value):
    """An episode that is known by its first observation."""
    observations = np.full((4, 1), value, np.float32)
    return made_episodes.episode(3, observations=observations)


TYPES = {
    "observation": pa.list_(pa.float32()),
    "next_observation": pa.list_(pa.float32()),
    "action": pa.int64(),
    "reward": pa.float32(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
}


def columns_of(values):
    episodes = [made(it) for it in values]
    parts = {
        "observation": [it.observations[:-1] for it in episodes],
        "next_observation": [it.observations[1:] for it in episodes],
        "action": [it.actions for it in episodes],
        "reward": [it.rewards for it in episodes],
        "terminated": [it.terminated for it in episodes],
        "truncated": [it.truncated for it in episodes],
    }
    return {name: [it.tolist() for it in own] for name, own in parts.items()}


def save_npz(path, values):
    made_episodes.write_npz(path, [made(it) for it in values])


def save_rows(path, values):
    """An episode a row."""
    schema = pa.schema([(name, pa.list_(it)) for name, it in TYPES.items()])
    pq.write_table(pa.table(columns_of(values), schema), path)


def save_steps(path, values):
    """A step a row."""
    rows = {name: [row for own in it for row in own] for name, it in columns_of(values).items()}
    pq.write_table(pa.table(rows, pa.schema(list(TYPES.items()))), path)


FORMATS = {
    "npz": ("npz", "npz", save_npz),
    "parquet of episodes": ("parquet", "parquet", save_rows),
    "parquet of steps": ("parquet", "parquet", save_steps),
    "hf of episodes": ("hf", "parquet", save_rows),
    "hf of steps": ("hf", "parquet", save_steps),
}


class Dataset:
    """A directory of files by their names, each with the values of its episodes."""

    def __init__(self, directory, format_):
        self._directory = directory
        self._prefix, self._suffix, self._save = FORMATS[format_]
        self.files = {}

    @property
    def source(self):
        return f"{self._prefix}:{self._directory}"

    def path(self, name):
        return self._directory / f"{name}.{self._suffix}"

    def write(self, name, values):
        self.files[name] = values
        self._save(self.path(name), values)

    def remove(self, name):
        self.path(name).unlink()
        return self.files.pop(name)

    def rename(self, before, after):
        self.path(before).rename(self.path(after))
        self.files[after] = self.files.pop(before)

    def pairs(self):
        """The id and the value of each episode, in natural order."""
        source = next(datasets.episodes(self.source)).source
        names = sorted(self.files, key=lambda it: int(it.partition("_")[2]))
        return [
            (datasets.Episode(*[None] * 5, key=f"{self.path(name).name}#{n}", source=source).id, it)
            for name in names
            for n, it in enumerate(self.files[name])
        ]


def dataset_of(directory, format_, count):
    """A dataset of so many files, each with an episode of its number."""
    dataset = Dataset(directory, format_)
    for number in range(count):
        dataset.write(f"e_{number}", [number])
    return dataset


def writer_of(client, dataset):
    """A function that imports the files as they are then."""
    return lambda **options: datasets.write(
        client, "t", datasets.episodes(dataset.source), ITEMS, **options
    )


def table(**options):
    return made_episodes.table("t", made(0), ITEMS, **options)


def values_of(client):
    samples = client.scan("t", columns=["observation"])
    return collections.Counter(int(it.data[0][0, 0]) for it in samples)


class Model:
    """The content that the table should have: a value for each id."""

    def __init__(self):
        self.table = {}

    def write(self, pairs, everything):
        for key, value in pairs:
            if self.table.get(key) == value:
                continue
            self.table.pop(key, None)
            gone = [
                it
                for it, other in self.table.items()
                if other == value and (it, other) not in everything
            ]
            if gone:
                ids = {it for it, _ in everything}
                del self.table[min(gone, key=lambda it: (it in ids, it))]
            self.table[key] = value

    @property
    def values(self):
        return collections.Counter(self.table.values())


def change(dataset, rng, values):
    """Changes some files at random; several episodes may have the same values."""
    names = sorted(dataset.files)
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(["add", "add", "remove", "rename", "longer", "other"])
        free = [it for it in (f"e_{n}" for n in range(13)) if it not in dataset.files]
        if kind == "add" or len(dataset.files) < 2:
            dataset.write(rng.choice(free), [next(values) for _ in range(rng.randint(1, 2))])
        elif kind == "remove":
            dataset.remove(rng.choice(names))
        elif kind == "rename":
            dataset.rename(rng.choice(names), rng.choice(free))
        elif kind == "longer":
            name = rng.choice(names)
            dataset.write(name, [*dataset.files[name], next(values)])
        else:
            name = rng.choice(names)
            dataset.write(name, [next(values), *dataset.files[name][1:]])
        names = sorted(dataset.files)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(it, marks=pytest.mark.slow) for it in (2, 3))])
def test_imports_between_changes_of_files(tmp_path, format_, seed):
    rng = random.Random(seed)
    values = (rng.choice([number, number - 1]) for number in range(1, 1000))
    dataset, model = Dataset(tmp_path, format_), Model()
    dataset.write("e_5", [0])
    with testing.server([table()]) as client:
        for _ in range(10):
            change(dataset, rng, values)
            skip, limit = rng.choice([(0, None), (0, None), (2, None), (0, 3)])
            read = datasets.episodes(dataset.source, skip=skip, limit=limit)
            datasets.write(client, "t", read, ITEMS, changed="replace")
            pairs = dataset.pairs()
            model.write(pairs[skip:][:limit], pairs)
            assert values_of(client) == model.values


@pytest.mark.parametrize("format_", FORMATS)
def test_numbers_in_names_are_in_natural_order(tmp_path, format_):
    dataset = dataset_of(tmp_path, format_, 12)
    found = list(datasets.episodes(dataset.source))
    assert [int(it.observations[0, 0]) for it in found] == list(range(12))
    assert [it.key for it in found] == [f"{dataset.path(f'e_{it}').name}#0" for it in range(12)]
    after = datasets.episodes(dataset.source, skip=3, limit=2)
    assert [int(it.observations[0, 0]) for it in after] == [3, 4]


@pytest.mark.parametrize("format_", ["npz", "parquet of episodes", "parquet of steps"])
def test_a_single_file_is_known_by_its_numbers(tmp_path, format_):
    dataset = Dataset(tmp_path, format_)
    dataset.write("e_0", [5, 6, 7])
    path = dataset.path("e_0")
    source = f"{dataset.source.partition(':')[0]}:{path}"
    found = list(datasets.episodes(source))
    assert [it.id for it in found] == [
        made_episodes.episode(1, number, source=source).id for number in range(3)
    ]


def test_the_values_of_an_episode_are_summed_once(monkeypatch):
    summed = []
    new_digest = TableColumns._new_digest
    monkeypatch.setattr(
        TableColumns, "_new_digest", lambda *args: summed.append(args[1]) or new_digest(*args)
    )
    episodes = [dataclasses.replace(made(it), number=it) for it in range(3)]
    with testing.server([table()]) as client:
        datasets.write(client, "t", episodes[:1], ITEMS)
        summed.clear()
        datasets.write(client, "t", episodes, ITEMS)
    assert [it.number for it in summed] == [0, 1, 2]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_that_changed_is_reported(tmp_path, format_):
    dataset = dataset_of(tmp_path, format_, 3)
    with testing.server([table()]) as client:
        write = writer_of(client, dataset)
        write()
        dataset.write("e_1", [8])
        with pytest.raises(errors.FailedPreconditionError, match=r"e_1.*: the table has other va"):
            write()
        assert write(changed="keep").num_changed == 1
        assert values_of(client) == collections.Counter([0, 1, 2])
        assert write(changed="replace", dry_run=True).num_changed == 1
        assert write(changed="replace").num_changed == 1
        assert values_of(client) == collections.Counter([0, 8, 2])
        assert write().num_present == 3


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_that_was_renamed_is_reported(tmp_path, format_):
    dataset = dataset_of(tmp_path, format_, 3)
    with testing.server([table()]) as client:
        write = writer_of(client, dataset)
        write()
        dataset.rename("e_1", "e_10")
        with pytest.raises(errors.FailedPreconditionError, match=r"e_10.*: its file was renamed"):
            write()
        for changed in ("keep", "replace"):
            counts = write(changed=changed)
            assert (counts.num_changed, counts.num_episodes) == (1, int(changed == "replace"))
            assert values_of(client) == collections.Counter([0, 1, 2])
        assert write().num_present == 3
        dataset.write("e_2", [2])
        dataset.write("e_11", [2])  # A copy is an episode of its own.
        assert write().num_episodes == 1
        assert values_of(client) == collections.Counter([0, 1, 2, 2])


@pytest.mark.parametrize("format_", FORMATS)
def test_files_that_rotate_are_not_doubled(tmp_path, format_):
    dataset = Dataset(tmp_path, format_)
    for number in (1, 2):
        dataset.write(f"log_{number}", [number])
    with testing.server([table()]) as client:
        write = writer_of(client, dataset)
        write()
        dataset.rename("log_2", "log_3")
        dataset.rename("log_1", "log_2")
        dataset.write("log_1", [5])
        # Under the name of the new file the table has the values of another one, and keeps them.
        assert write(changed="keep").num_changed == 3
        assert values_of(client) == collections.Counter([1, 2])
        write(changed="replace")
        assert values_of(client) == collections.Counter([5, 1, 2])
        assert write().num_present == 3


# Number of files. With more than ten, the order of texts is another one than the natural one.
@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("leave_out", [(), ("values_digest",)])
def test_a_table_of_an_older_import_continues_if_asked(tmp_path, format_, count, leave_out):
    dataset = Dataset(tmp_path, format_)
    order = sorted(range(count), key=str)
    for number in range(count):
        dataset.write(f"e_{number}", [number])
    source = next(datasets.episodes(dataset.source)).source
    old = [
        made_episodes.episode(
            3, place, source=source, observations=made(number).observations, actions=made(0).actions
        )
        for place, number in enumerate(order)
    ]
    with testing.server([table(leave_out=leave_out)]) as client:
        datasets.write(client, "t", old[: count // 2 + 1], ITEMS)
        for skip in (0, 1):
            read = datasets.episodes(dataset.source, skip=skip)
            with pytest.raises(errors.FailedPreconditionError, match='known_by="number" continues'):
                datasets.write(client, "t", read, ITEMS)
        options = {"known_by": "number", "changed": "replace"}
        read = datasets.episodes(dataset.source)
        counts = datasets.write(client, "t", read, ITEMS, **options)
        assert counts.num_present + counts.num_changed > 0
        assert values_of(client) == collections.Counter(range(count))
        options |= {"known_by": "key"}
        datasets.write(client, "t", datasets.episodes(dataset.source), ITEMS, **options)
        # By digests the table gets keys instead of numbers; without, it gets the episodes again.
        expected = [*range(count)] * (1 + len(leave_out))
        assert values_of(client) == collections.Counter(expected)


# Without digests, numbers that are other indices look like those.
@pytest.mark.parametrize(
    ("indices", "leave_out"),
    [
        *((it, ()) for it in ((5, 6, 7), (0, 2, 3), (1, 0, 2))),
        *((it, ("values_digest",)) for it in ((5, 6, 7), (0, 2, 3))),
    ],
)
def test_old_numbers_beside_indices_are_reported(tmp_path, indices, leave_out):
    path = tmp_path / "f.npz"
    index = np.repeat(indices, 3)
    source = made_episodes.write_npz(path, [made(it) for it in range(3)], episode_index=index)
    with testing.server([table(leave_out=leave_out)]) as client:
        datasets.write(client, "t", datasets.episodes(source), ITEMS, known_by="number")
        with pytest.raises(errors.FailedPreconditionError, match=r"known_by=|other values"):
            datasets.write(client, "t", datasets.episodes(source), ITEMS)
        assert values_of(client) == collections.Counter([0, 1, 2])
        rules = {"known_by": "key", "changed": "replace"}
        if not leave_out:
            datasets.write(client, "t", datasets.episodes(source), ITEMS, **rules)
            assert values_of(client) == collections.Counter([0, 1, 2])
            assert datasets.write(client, "t", datasets.episodes(source), ITEMS).num_present == 3


def test_the_command_names_its_options(tmp_path, capsys):
    dataset = Dataset(tmp_path, "npz")
    for number in range(2):
        dataset.write(f"e_{number}", [number])
    with testing.server([table()]) as client:

        def run(*options):
            where = ["import", dataset.source, client.server_address, "--table=t"]
            code = command.main([*where, "--items=episodes", *options])
            captured = capsys.readouterr()
            return code, captured.out + captured.err

        assert run("--known-by=number")[0] == 0
        code, text = run()
        assert code == 1
        assert "--known-by number continues" in text
        assert "--known-by key writes" in text
        dataset.write("e_1", [8])
        code, text = run("--known-by=number")
        assert code == 1
        assert "--changed keep leaves" in text
        code, text = run("--known-by=number", "--changed=replace")
        assert code == 0
        assert "1 had changed or moved, and the old ones were replaced" in text
        assert values_of(client) == collections.Counter([0, 8])


def test_a_rule_that_is_none(tmp_path):
    with testing.server([table()]) as client:
        for name in ("known_by", "changed"):
            with pytest.raises(errors.InvalidArgumentError, match=f'{name} must be "'):
                datasets.write(client, "t", [], ITEMS, **{name: "x"})


def test_an_index_that_is_there_twice(tmp_path):
    for number in range(2):
        more = {"episode_index": np.repeat([0, 1], 3)}
        made_episodes.write_npz(tmp_path / f"e_{number}.npz", [made(1), made(2)], **more)
    source, text = f"npz:{tmp_path}", "field key: 0 is also that of an earlier episode"
    with testing.server([table()]) as client:
        with pytest.raises(errors.InvalidArgumentError, match=text):
            datasets.write(client, "t", datasets.episodes(source), ITEMS)
        client.reset("t")
        read = datasets.episodes(source, leave_out=("episode_index",))
        datasets.write(client, "t", read, ITEMS)
        assert values_of(client) == collections.Counter([1, 2, 1, 2])
