# SPDX-License-Identifier: Apache-2.0
"""Bad input: the error names file, episode and field, and no second run doubles anything."""

import dataclasses
import re

import numpy as np
import pytest

from reverb import datasets, errors, testing
from reverb.datasets.formats import FORMATS, SAVED
from support import made_episodes

NUM_STEPS = sum(made_episodes.LENGTHS)


def fails(text, call, kind=errors.InvalidArgumentError):
    with pytest.raises(kind) as caught:
        call()
    assert re.search(text, str(caught.value)), str(caught.value)


def read(source, **options):
    return lambda: list(datasets.episodes(source, **options))


def flat(tmp_path, **more):
    return made_episodes.write_npz(tmp_path / "f.npz", made_episodes.episodes(), **more)


class TestSources:
    @pytest.mark.parametrize("source", ["f.npz", "zip:f", "npz:", "", ":x"])
    def test_a_source_begins_with_a_format(self, source):
        names = ", ".join(f"{it}:" for it in FORMATS)
        text = f"^source must begin with a format, one of {names}, got {source!r}$"
        fails(text, read(source))

    @pytest.mark.parametrize("name", [it for it, own in FORMATS.items() if not own.has_splits])
    def test_a_split_of_a_format_that_has_none(self, name):
        text = f"^split must be None for {name}:, whose datasets have no splits, got 'test'$"
        fails(text, read(f"{name}:x", split="test"))

    @pytest.mark.parametrize("format_", ["npz", "parquet"])
    def test_a_file_that_is_not_there(self, tmp_path, format_):
        path = tmp_path / "none"
        fails(f"{format_}:{path}: there is no file or directory {path}", read(f"{format_}:{path}"))
        fails(f"the directory {tmp_path} has no .{format_} files", read(f"{format_}:{tmp_path}"))

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"skip": -1}, "skip must be at least 0, got -1"),
            ({"limit": -1}, "limit must be at least 0, got -1"),
            ({"unfinished": "keep"}, 'unfinished must be "error" or "truncate" or "drop"'),
            ({"leave_out": "infos"}, r"leave_out must be a tuple of names, got 'infos'"),
        ],
    )
    def test_arguments_out_of_range(self, tmp_path, options, text):
        fails(text, read(flat(tmp_path), **options))


class TestNpzFiles:
    def test_a_truncated_file(self, tmp_path):
        source = flat(tmp_path)
        path = tmp_path / "f.npz"
        path.write_bytes(path.read_bytes()[:-200])
        fails(f"^{path}: is not a complete .npz file", read(source), errors.DataLossError)

    def test_a_damaged_member(self, tmp_path):
        source = flat(tmp_path)
        path = tmp_path / "f.npz"
        data = bytearray(path.read_bytes())
        at = data.index(b"actions.npy") + 200
        data[at : at + 8] = b"\xff" * 8
        path.write_bytes(data)
        fails(f"^{path}: (episode \\d, )?field actions: ", read(source), errors.DataLossError)

    def test_offsets_of_another_number_of_episodes(self, tmp_path):
        offsets = {"rewards/offsets": [0, 5, NUM_STEPS], "actions/offsets": [0, 5, 35, NUM_STEPS]}
        more = {name: np.array(it) for name, it in offsets.items()}
        fails(
            "f.npz: field actions/offsets: has 3 episodes, and the rewards have 2",
            read(flat(tmp_path, **more)),
            errors.DataLossError,
        )

    @pytest.mark.parametrize(
        ("values", "kind"),
        [(np.array(["a"] * NUM_STEPS), "text"), (np.array([{}] * NUM_STEPS), "objects")],
    )
    def test_text_where_numbers_belong(self, tmp_path, values, kind):
        fails(
            f"f.npz: episode 0, field rewards: must be numbers, got {kind}",
            read(flat(tmp_path, rewards=values)),
        )

    def test_a_field_that_is_missing(self, tmp_path):
        fails("f.npz: field rewards is missing; the file has ", read(flat(tmp_path, rewards=None)))

    def test_the_last_observation_is_missing(self, tmp_path):
        fails(
            "f.npz: episode 0, field observations: has 5 rows for 5 steps, and there is no next_",
            read(flat(tmp_path, next_observations=None)),
        )

    def test_steps_in_another_order(self, tmp_path):
        episodes = made_episodes.episodes()
        following = np.concatenate([it.observations[1:] for it in episodes])
        following[7] += 1
        fails(
            "f.npz: episode 1, field next_observations: that of step 2 is not the observation of "
            "step 3",
            read(flat(tmp_path, next_observations=following)),
        )

    def test_the_same_field_twice(self, tmp_path):
        fails(
            "f.npz: fields .*rewards? and .*rewards? are both rewards",
            read(flat(tmp_path, reward=np.zeros(NUM_STEPS))),
        )


class TestParquetFiles:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

    def table(self, **more):
        import pyarrow as pa

        episodes = made_episodes.episodes()
        columns = {
            "observations": [it.observations.tolist() for it in episodes],
            "actions": [it.actions.tolist() for it in episodes],
            "rewards": [it.rewards.tolist() for it in episodes],
            "terminated": [it.terminated.tolist() for it in episodes],
            "truncated": [it.truncated.tolist() for it in episodes],
        }
        return pa.table({**columns, **more})

    def write(self, path, **more):
        self.pq.write_table(self.table(**more), path)
        return f"parquet:{path}"

    def test_a_truncated_file(self, tmp_path):
        source = self.write(tmp_path / "f.parquet")
        path = tmp_path / "f.parquet"
        path.write_bytes(path.read_bytes()[:-10])
        fails(f"^{path}: is not a complete Parquet file", read(source), errors.DataLossError)

    @pytest.mark.parametrize(
        ("column", "text"),
        [
            ([["a"]] * 5, "must be numbers, got text"),
            ([1.0] * 5, "must be a list of rows, got double"),
            ([[1.0, None]] * 5, "1?5 values are missing|5 values are missing"),
            ([[[1.0], [1.0, 2.0]]] * 5, "has rows of different shapes, lists of 1 and of 2"),
            ([[1.0]] * 5, "has 1 rows for 5 steps, but a field needs one for each step"),
        ],
    )
    def test_a_column_of_another_kind(self, tmp_path, column, text):
        source = self.write(tmp_path / "f.parquet", actions=column)
        fails(f"f.parquet: episode 0, field actions: (?:{text})", read(source))


class TestEpisodes:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"rewards": np.zeros((5, 1))}, r"field rewards: must be numbers of shape \[T\]"),
            ({"rewards": np.array(["a"] * 5)}, "field rewards: must be numbers .*, got text"),
            ({"rewards": np.zeros(0)}, "field rewards: has no steps"),
            (
                {"actions": np.zeros(4)},
                "field actions: has 4 rows for 5 steps, but a field needs one for each step",
            ),
            (
                {"observations": np.zeros(5)},
                "field observations: has 5 rows for 5 steps, .*; observations have one more, 6",
            ),
            ({"observations": {"a": [1] * 6}}, "field observations/a: .* numbers, got a list"),
            ({"infos": {"x": np.array(["a"] * 5)}}, "field infos/x: .* got text"),
            (
                {"infos": {"x": np.zeros(4)}},
                "field infos/x: has 4 rows for 5 steps, .*; leave_out=.'x',. leaves it out",
            ),
            ({"terminated": np.ones(5)}, "field terminated: is true at step 0 of 5"),
            ({"terminated": np.full(5, 2)}, "field terminated: must be bools, or numbers 0 and 1"),
            ({"truncated": np.zeros(4, np.bool_)}, r"field truncated: must have shape \[5\]"),
            (
                {"terminated": np.zeros(5, np.bool_)},
                "field truncated: the episode has no end: its last step, 4, is neither terminated",
            ),
        ],
    )
    def test_what_is_no_whole_episode(self, change, text):
        good = made_episodes.episodes([5, 5])
        bad = dataclasses.replace(good[0], number=2, **change)
        with testing.server([testing.table("t")]) as client:
            fails(
                f"^made: episode 2, {text}",
                lambda: datasets.write(client, "t", [*good, bad], datasets.Episodes(9)),
            )
            assert client.server_info()["t"].current_size == 2

    @pytest.mark.parametrize(("unfinished", "expected"), [("truncate", 5), ("drop", 4)])
    def test_an_episode_without_an_end(self, tmp_path, unfinished, expected):
        ends = np.concatenate([it.terminated for it in made_episodes.episodes()])
        cut = np.concatenate([it.truncated for it in made_episodes.episodes()])
        ends[-1] = cut[-1] = False
        source = flat(tmp_path, terminals=ends, timeouts=cut)
        fails("f.npz: episode 4, field truncated: ", read(source))
        found = list(datasets.episodes(source, unfinished=unfinished))
        assert len(found) == expected
        if unfinished == "truncate":
            assert (found[-1].terminated[-1], found[-1].truncated[-1]) == (False, True)


class TestTables:
    ITEMS = datasets.Transitions()

    def refused(self, episodes, text, *, kind=errors.SignatureMismatchError, **options):
        example = made_episodes.episode(5)
        table = made_episodes.table("t", example, self.ITEMS)
        with testing.server([table]) as client:
            fails(text, lambda: datasets.write(client, "t", episodes, self.ITEMS, **options), kind)
            return client.server_info()["t"].current_size

    def test_a_dtype_that_the_table_has_not(self):
        episode = made_episodes.episode(5, observations=np.zeros((6, 4)))
        text = (
            "^made: episode 0, field observations: has dtype float64, and column observation of "
            "table t has float32"
        )
        assert self.refused([episode], text) == 0

    def test_a_shape_that_the_table_has_not(self):
        episode = made_episodes.episode(5, observations=np.zeros((6, 3), np.float32))
        text = r"field observations: makes a column of shape \[3\], and column .* has \[4\]"
        assert self.refused([episode], text) == 0

    def test_a_field_too_many(self):
        episode = made_episodes.episode(5, infos={"extra": np.zeros(5)})
        text = (
            r"^made: episode 0, field infos/extra: table t has no column extra; it has \[.*\]\. "
            r"leave_out=\('extra',\) leaves the field out"
        )
        assert self.refused([episode], text) == 0

    @pytest.mark.parametrize("leave_out", [("extra",), ("infos",)])
    def test_a_field_too_many_is_left_out(self, leave_out):
        episode = made_episodes.episode(5, infos={"extra": np.zeros(5)})
        with testing.server([made_episodes.table("t", made_episodes.episode(5), self.ITEMS)]) as it:
            counts = datasets.write(it, "t", [episode], self.ITEMS, leave_out=leave_out)
            assert counts.num_items == 5

    def test_a_field_that_is_missing(self):
        example = made_episodes.episode(5, infos={"extra": np.zeros(5)})
        table = made_episodes.table("t", example, self.ITEMS)
        with testing.server([table]) as client:
            fails(
                "made: episode 1, field extra: table t has the column extra, and the episode has",
                lambda: datasets.write(client, "t", [made_episodes.episode(5, 1)], self.ITEMS),
                errors.SignatureMismatchError,
            )

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"actions": np.zeros(5, np.int32)}, "field actions: has dtype int32 and rows of"),
            ({"infos": {"x": np.zeros(5)}}, "field infos/x: is a field that earlier episodes"),
        ],
    )
    def test_episodes_that_differ(self, change, text):
        good = made_episodes.episodes([5, 6])
        bad = dataclasses.replace(made_episodes.episode(5, 2), **change)
        assert self.refused([*good, bad], f"^made: episode 2, {text}") == 11

    def test_two_episodes_with_one_number(self):
        episodes = [made_episodes.episode(5, 3), made_episodes.episode(6, 3)]
        text = "^made: episode 3, field number: 3 is also that of an earlier episode of the same so"
        assert self.refused(episodes, text, kind=errors.InvalidArgumentError) == 5
        others = [made_episodes.episode(5, 0, source=name) for name in "abc"]
        table = made_episodes.table("t", others[0], self.ITEMS)
        with testing.server([table]) as client:
            assert datasets.write(client, "t", others, self.ITEMS).num_items == 15

    def test_a_second_run_after_an_error_doubles_nothing(self):
        good = made_episodes.episodes([5] * 100)
        bad = dataclasses.replace(good[70], actions=np.zeros(4, np.int64))
        with testing.server([made_episodes.table("t", good[0], self.ITEMS)]) as client:
            fails(
                "made: episode 70, field actions",
                lambda: datasets.write(client, "t", [*good[:70], bad], self.ITEMS),
            )
            assert client.server_info()["t"].current_size == 350
            datasets.write(client, "t", good, self.ITEMS)
            assert client.server_info()["t"].current_size == 500

    def test_an_episode_that_is_too_long(self):
        episodes = made_episodes.episodes([5, 6])
        items = datasets.Episodes(max_length=5)
        with testing.server([made_episodes.table("t", episodes[0], items)]) as client:
            fails(
                "made: episode 1, field rewards: has 6 steps, more than max_length = 5",
                lambda: datasets.write(client, "t", episodes, items),
            )
            items = datasets.Episodes(max_length=5, long_episodes="drop")
            counts = datasets.write(client, "t", episodes, items)
            assert (counts.num_present, counts.num_dropped) == (1, 1)

    def test_a_table_that_is_not_there(self):
        with testing.server([testing.table("t")]) as client:
            fails(
                r"the server has no table 'u'; it has \['t'\]",
                lambda: datasets.write(client, "u", [], self.ITEMS),
                errors.TableNotFoundError,
            )
            fails(
                r"the server has no table 'u'",
                lambda: list(datasets.stored(client, "u")),
                errors.TableNotFoundError,
            )

    def test_items_that_are_no_kind(self):
        with testing.server([testing.table("t")]) as client:
            fails(
                "items must be Transitions, Sequences or Episodes, got str",
                lambda: datasets.write(client, "t", [], "episodes"),
            )

    def test_items_that_are_no_episodes(self):
        episodes = made_episodes.episodes()
        tables = [
            made_episodes.table("t", episodes[0], self.ITEMS),
            testing.table("nameless"),
        ]
        with testing.server(tables) as client:
            datasets.write(client, "t", episodes, self.ITEMS)
            fails(
                "table t: item 0, field action: is a single step",
                lambda: list(datasets.stored(client, "t")),
            )
            fails(
                "table nameless: has no signature",
                lambda: list(datasets.stored(client, "nameless")),
            )


class TestTargets:
    def test_an_error_of_a_save_advises_no_other_argument(self, tmp_path):
        episode = made_episodes.episode(5, infos={"x": np.array(["a"] * 5)})
        with pytest.raises(errors.InvalidArgumentError, match=r"infos/x: .* got text .*\[5\]$"):
            datasets.save([episode], f"lerobot:{tmp_path / 'out'}", fps=1)

    def test_a_target_begins_with_a_format(self):
        names = ", ".join(f"{it}:" for it in SAVED)
        text = f"^target must begin with a format, one of {names}, got 'npz:x'$"
        fails(text, lambda: datasets.save([], "npz:x"))

    def test_an_option_of_another_format(self):
        fails(
            "the format hf has no option 'fps'", lambda: datasets.save([], "hf:x", fps=3), TypeError
        )

    def test_a_library_that_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "minari", None)
        fails(
            r"the format minari needs minari, which cannot be imported .*; pip install '",
            read("minari:a-v0"),
            errors.FailedPreconditionError,
        )
