# SPDX-License-Identifier: Apache-2.0
"""Changes by a reload of the config, and changes that it refuses."""

import pytest

import reverb
from reverb import item_selectors
from reverb.errors import InvalidArgumentError
from reverb.server_executable import reload, server_from_proto
from reverb.server_executable.settings import ConfigSource, Given, read_settings

TABLE = """\
tables: {
  table_name: "NAME"
  sampler: { prioritized { priority_exponent: 0.5 } }
  remover: { fifo: true }
  max_size: 100
  max_bytes: 5000
  max_times_sampled: 3
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 2 min_diff: -5 max_diff: 5 }
}
"""
A, B = TABLE.replace("NAME", "a"), TABLE.replace("NAME", "b")
UNIFORM = A.replace("prioritized { priority_exponent: 0.5 }", "uniform: true")


def given_values(change):
    """The settings of a `TableChange` that change."""
    unchanged = vars(reverb.TableChange())
    return {name: value for name, value in vars(change).items() if value != unchanged[name]}


class Changes:
    """Takes the place of the call that changes tables."""

    def __init__(self, monkeypatch):
        self.made = []
        self.tried = []
        self.refused = {}
        monkeypatch.setattr(reload, "configure_tables", self._call)

    def _call(self, server, changes, *, dry_run):
        assert isinstance(server, reverb.Server)
        given = {name: given_values(change) for name, change in changes.items()}
        (self.tried if dry_run else self.made).append(given)
        for name in changes:
            if name in self.refused:
                raise InvalidArgumentError(self.refused[name])


@pytest.fixture
def changes(monkeypatch):
    return Changes(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "server.textproto"


class Reloading:
    """A server of a config file, which is written and reloaded."""

    def __init__(self, path, start, text, flags):
        path.write_text(text)
        self._path = path
        self._given = Given(ConfigSource("--config-file", path), flags, {})
        self.settings = read_settings(self._given)
        assert self.settings.problems == []
        self.server = start(*server_from_proto.tables_from_proto(self.settings.tables))

    def reload(self, text=None):
        """Returns the lines of a reload, without the name of the file."""
        if text is not None:
            self._path.write_text(text)
        done = reload.reload_config(self.server, self._given, self.settings)
        self.settings = done.settings
        return [line.replace(str(self._path), "FILE") for line in done.lines]


@pytest.fixture
def running(path, start):
    return lambda text, **flags: Reloading(path, start, text, flags)


def refused(count=1):
    problems = "1 problem" if count == 1 else f"{count} problems"
    return f"not reloaded: FILE has {problems}; nothing has changed"


def test_an_equal_file_changes_nothing(changes, running):
    assert running(A).reload() == ["reloaded FILE: nothing is different"]
    assert (changes.tried, changes.made) == ([], [])


def test_comments_and_the_order_of_tables_are_no_difference(changes, running):
    assert running(A + B).reload(f"# new\n{B}{A}") == ["reloaded FILE: nothing is different"]
    assert changes.made == []


@pytest.mark.parametrize(
    ("old", "new", "change", "told"),
    [
        ("max_size: 100", "max_size: 50", {"max_size": 50}, "max_size 100 -> 50"),
        ("max_bytes: 5000", "max_bytes: 6000", {"max_bytes": 6000}, "max_bytes 5000 -> 6000"),
        ("max_bytes: 5000", "", {"max_bytes": None}, "max_bytes 5000 -> none"),
        ("max_times_sampled: 3", "", {"max_times_sampled": 0}, "max_times_sampled 3 -> 0"),
        (
            "priority_exponent: 0.5",
            "priority_exponent: 0.75",
            {"priority_exponent": 0.75},
            "priority_exponent 0.5 -> 0.75",
        ),
    ],
)
def test_a_field_that_can_change_does(changes, running, old, new, change, told):
    lines = running(A + B).reload(A + B.replace(old, new))
    assert lines == [f"reloaded FILE: table b: {told}"]
    assert changes.tried == changes.made == [{"b": change}]


ROLLOUTS = """\
tables: {
  table_name: "r"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 100
  max_times_sampled: 1
  rate_limiter: { min_size: 1 }
  columns: "prompt int32[?]"
  columns: "tokens int32[?]"
  rollouts: { settings: { item_columns: 0  num_rollouts: 8  max_staleness: 2 } }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("max_staleness: 2", "max_staleness: 1", "rollouts.max_staleness 2 -> 1"),
        ("max_staleness: 2", "", "rollouts.max_staleness 2 -> none"),
        (
            "num_rollouts: 8",
            "num_rollouts: 8  min_rollouts: 6  open_timeout_ms: 1500",
            "rollouts.min_rollouts 8 -> 6, rollouts.open_timeout_s none -> 1.5",
        ),
        (
            "max_staleness: 2",
            "max_staleness: 2  on_stale: KEEP  max_attempts: 3",
            "rollouts.on_stale again -> keep, rollouts.max_attempts 5 -> 3",
        ),
    ],
)
def test_settings_of_rollouts_change(running, old, new, told):
    server = running(A + ROLLOUTS)
    assert server.reload() == ["reloaded FILE: nothing is different"]
    lines = server.reload(A + ROLLOUTS.replace(old, new))
    assert lines == [f"reloaded FILE: table r: {told}"]
    assert server.reload() == ["reloaded FILE: nothing is different"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_rollouts: 8", "num_rollouts: 4"),
        ("item_columns: 0", "item_columns: 1"),
        ("  rollouts: { settings: { item_columns: 0  num_rollouts: 8  max_staleness: 2 } }\n", ""),
    ],
)
def test_the_kind_of_rollouts_needs_a_restart(changes, running, old, new):
    lines = running(A + ROLLOUTS).reload(A + ROLLOUTS.replace(old, new))
    assert len(lines) == 2
    assert "tables[1].rollouts is different: needs a restart" in lines[0]
    assert lines[1] == refused()
    assert changes.made == []


def test_settings_of_rollouts_that_cannot_be_are_refused(running):
    server = running(A + ROLLOUTS)
    lines = server.reload(A + ROLLOUTS.replace("num_rollouts: 8", "num_rollouts: 8  ahead: 1"))
    assert "ahead needs items_per_version" in lines[0]
    assert lines[-1] == refused()


@pytest.mark.parametrize(
    ("old", "new", "told", "selector"),
    [
        (
            "prioritized { priority_exponent: 0.5 }",
            "prioritized { priority_exponent: 0.5 } extension { draw: STRATIFIED }",
            "draw independent -> stratified",
            "PrioritizedSelector(priority_exponent=0.5, draw='stratified')",
        ),
        (
            "prioritized { priority_exponent: 0.5 } extension { draw: SYSTEMATIC }",
            "prioritized { priority_exponent: 0.75 }",
            "priority_exponent 0.5 -> 0.75, draw systematic -> independent",
            "PrioritizedSelector(priority_exponent=0.75)",
        ),
        (
            "uniform: true extension { recent { expected_age: 100 } }",
            "uniform: true extension { recent { expected_age: 50 } }",
            "expected_age 100 -> 50",
            "RecentSelector(expected_age=50)",
        ),
    ],
)
def test_a_sampler_of_the_same_kind_gets_its_parameters(path, start, old, new, told, selector):
    text = A.replace("prioritized { priority_exponent: 0.5 }", old)
    server = Reloading(path, start, text, {})
    changed = text.replace(old, new)
    assert server.reload(changed) == [f"reloaded FILE: table a: {told}"]
    options = server.server.server_info()["a"].sampler_options
    assert repr(item_selectors.from_options(options)) == selector
    assert server.reload() == ["reloaded FILE: nothing is different"]


def test_a_rate_limiter_changes_as_a_whole_and_tells_its_fields(changes, running):
    new = A.replace("max_diff: 5", "max_diff: 7.5").replace("insert: 2", "insert: 4")
    assert running(A).reload(new) == [
        "reloaded FILE: table a: rate_limiter.samples_per_insert 2 -> 4, "
        "rate_limiter.max_diff 5 -> 7.5"
    ]
    (change,) = changes.made
    assert set(change) == {"a"}
    assert set(change["a"]) == {"rate_limiter"}
    expected = reverb.rate_limiters.RateLimiter(4, 1, -5, 7.5)
    assert repr(change["a"]["rate_limiter"]) == repr(expected)


def test_the_outcome_of_many_changes_is_one_line(changes, running):
    new = (A + B).replace("max_size: 100", "max_size: 50").replace("max_bytes: 5000", "")
    assert running(A + B).reload(new) == [
        "reloaded FILE: table a: max_size 100 -> 50, max_bytes 5000 -> none; "
        "table b: max_size 100 -> 50, max_bytes 5000 -> none"
    ]
    # Each is checked alone first, so that its problem has its line.
    change = {"max_size": 50, "max_bytes": None}
    assert changes.tried == [{"a": change}, {"b": change}]
    assert changes.made == [{"a": change, "b": change}]


def test_a_refused_change_leaves_all_tables_unchanged(changes, running):
    changes.refused = {"a": "max_size 1 is too small", "b": "no"}
    server = running(A + B)
    assert server.reload((A + B).replace("max_size: 100", "max_size: 1")) == [
        "FILE, line 1: tables[0]: max_size 1 is too small",
        "FILE, line 10: tables[1]: no",
        refused(2),
    ]
    assert changes.made == []
    changes.refused = {}
    assert server.reload()[0].startswith("reloaded FILE: table a: max_size 100 -> 1; ")


def test_a_refusal_at_the_last_moment_is_told(monkeypatch, running):
    def fails(server, changes, *, dry_run):
        if not dry_run:
            raise InvalidArgumentError("somebody was faster")

    monkeypatch.setattr(reload, "configure_tables", fails)
    assert running(A).reload(A.replace("100", "10")) == ["FILE: somebody was faster", refused()]


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (f"port: 9\n{A}", "FILE, line 1: port 0 -> 9 needs a restart"),
        (
            f"{A}server {{\n  http: {{ port: 0 }} }}",
            "FILE, line 11: server.http.port none -> 0 needs a restart",
        ),
        (f'max_bytes: "1GiB" {A}', "FILE, line 1: max_bytes none -> '1GiB' needs a restart"),
        (
            f"{A}server {{ keepalive_s: 2.5 }}",
            "FILE, line 10: server.keepalive_s 10 -> 2.5 needs a restart",
        ),
        (
            f"{A}server {{ checkpoint {{ dir: '/d'\n on_stop: true }} }}",
            "FILE, line 10: server.checkpoint.dir none -> '/d' needs a restart",
        ),
        (A + B, "FILE, line 10: tables[1]: table b is new, which needs a restart"),
        (B, "FILE, line 1: tables[0]: table b is new, which needs a restart"),
        (UNIFORM, "FILE, line 3: tables[0].sampler is different: needs a restart"),
        (
            A.replace("fifo: true", "lifo: true"),
            "FILE, line 4: tables[0].remover is different: needs a restart",
        ),
        (
            A.replace("fifo: true", "prioritized {}"),
            "FILE, line 4: tables[0].remover is different: needs a restart",
        ),
        (
            A.replace("max_size: 100", "max_size: 50 when_full: WAIT"),
            "FILE, line 5: tables[0].when_full is different: needs a restart",
        ),
        (
            A.replace("max_size: 100", "max_size: 50 max_priority: EVER"),
            "FILE, line 5: tables[0].max_priority is different: needs a restart",
        ),
    ],
)
def test_any_other_difference_needs_a_restart(changes, running, new, problem):
    lines = running(A).reload(new)
    assert lines[0] == problem
    assert lines[-1].startswith("not reloaded: FILE has ")
    assert (changes.tried, changes.made) == ([], [])


def test_what_is_gone_needs_a_restart_too(changes, running):
    server = running(f"port: 9\n{A}{B.replace('100', '100 when_full: WAIT')}")
    assert server.reload(A) == [
        "FILE: port 9 -> 0 needs a restart",
        "FILE: table b is missing, and its removal needs a restart",
        refused(2),
    ]


def test_nothing_changes_if_only_a_part_could(changes, running):
    new = A.replace("max_size: 100", "max_size: 50").replace("fifo", "lifo")
    assert running(A).reload(f"port: 9 {new}server {{ drain_timeout_s: 0 }}") == [
        "FILE, line 1: port 0 -> 9 needs a restart",
        "FILE, line 10: server.drain_timeout_s 10 -> 0 needs a restart",
        "FILE, line 4: tables[0].remover is different: needs a restart",
        refused(3),
    ]
    assert (changes.tried, changes.made) == ([], [])


def test_a_store_needs_a_restart(changes, running):
    store = 'max_bytes: "1GiB" server { store { path: "/s" journal: false } }'
    lines = running(A).reload(f"{A}{store}")
    assert lines[1] == "FILE, line 10: server.store.path none -> '/s' needs a restart"
    assert lines[2] == "FILE, line 10: server.store.journal true -> false needs a restart"
    assert (changes.tried, changes.made) == ([], [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "FILE, line 1: tables must hold at least one table, got none"),
        (A[:-3], 'FILE, line 8: tables[0].rate_limiter.max_diff: Expected "}".'),
        (
            A.replace("100", "0"),
            "FILE, line 5: tables[0].max_size must be from 1 to 2147483647, got 0",
        ),
        (f"port: -1\n{A}", "FILE, line 1: port must be from 0 to 65535, got -1"),
    ],
)
def test_a_broken_file_changes_nothing(changes, running, text, problem):
    server = running(A)
    (first, *others, last) = server.reload(text)
    assert (first, others, last) == (problem, [], refused())
    assert (changes.tried, changes.made) == ([], [])
    assert server.reload(A) == ["reloaded FILE: nothing is different"]


def test_a_file_that_is_gone_or_not_text_changes_nothing(changes, running, path):
    server = running(A)
    path.unlink()
    first, last = server.reload()
    assert first.startswith("cannot read --config-file FILE: ")
    assert last == refused()
    path.write_bytes(b"\xff")
    first, last = server.reload()
    assert first.startswith("cannot read --config-file FILE: 'utf-8' codec can't decode")
    assert last == refused()


def test_what_a_flag_overrules_is_no_difference(changes, running):
    server = running(f"port: 1\n{A}", port="0")
    assert server.reload(f"port: 2\n{A}") == ["reloaded FILE: nothing is different"]


def test_what_has_no_effect_is_told_and_does_not_matter(changes, running):
    new = A.replace("max_size: 100", "max_size: 100 signature: {}")
    assert running(A).reload(new) == [
        "FILE, line 5: tables[0].signature has no effect here",
        "reloaded FILE: nothing is different",
    ]


def test_the_file_wins_over_what_the_table_has_from_elsewhere(changes, path, start, running):
    """A client may have changed it, or a checkpoint may have brought its own settings."""
    made = running(A)
    other = server_from_proto.tables_from_proto(made.settings.tables)[0].replace(max_size=77)
    made.server = start(other)
    assert made.reload() == ["reloaded FILE: table a: max_size 77 -> 100"]
    assert changes.made == [{"a": {"max_size": 100}}]


def test_the_tables_of_a_shard_change_with_those_of_the_group(path, changes):
    def start(*tables):
        return reverb.Server(tables, shard=reverb.cluster.Shard(1, 2))

    reloading = Reloading(path, start, A, {"shard_index": "1", "num_shards": "2"})
    # Its tables have other sizes than the config, on purpose.
    assert reloading.reload() == ["reloaded FILE: nothing is different"]
    assert reloading.reload(A.replace("max_size: 100", "max_size: 200")) == [
        "FILE, line 1: tables[0] is different, and table a is part of a group; change it with "
        "`reverb configure` at the address of the group, which changes all shards",
        refused(),
    ]
    assert changes.made == []
    reloading.server.stop()
