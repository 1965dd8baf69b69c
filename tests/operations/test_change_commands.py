# SPDX-License-Identifier: Apache-2.0
"""`reverb configure`, `pause`, `resume`, `drain` and `reset`."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.errors import UnimplementedError
from support.rollout_tables import SIGNATURE
from support.waiting import DEADLINE_S

MAIN = "import sys\nfrom reverb.command import main\nsys.exit(main(sys.argv[1:]))"
HOSTILE = "a\x1b[2J\u202eb"


class Served:
    """A server with one table, and the commands on it."""

    def __init__(self, capsys, name="replay", **options):
        options = {"max_size": 100, **options}
        self.name = name
        self.server = reverb.Server([testing.table(name, **options)], host="127.0.0.1")
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = reverb.Client(self.address)
        self._capsys = capsys

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server.stop()

    def insert(self, count):
        self.client.insert_batch({"x": np.zeros((count, 4))}, {self.name: np.ones(count)})

    def status(self):
        return self.client.status().tables[self.name]

    def run(self, what, *options, table=True):
        """Runs a command: `code, out, err = served.run("pause", "--inserts")`."""
        named = ["--table", self.name] if table else []
        code = command.main([what, self.address, *named, *map(str, options)])
        return code, *self._capsys.readouterr()

    def limiter(self):
        limiter = self.status().limiter
        return (
            limiter.samples_per_insert,
            limiter.min_size_to_sample,
            limiter.min_diff,
            limiter.max_diff,
        )


@pytest.fixture
def served(capsys):
    with Served(capsys) as served:
        yield served


def ratio(samples_per_insert=2.0, min_size=10, error_buffer=8.0):
    return reverb.rate_limiters.SampleToInsertRatio(samples_per_insert, min_size, error_buffer)


class TestConfigure:
    def test_each_changed_setting_is_told(self, capsys):
        with Served(capsys, sampler=reverb.selectors.Prioritized(0.8)) as served:
            served.insert(80)
            options = ["--max-size", 50, "--max-bytes", "1MiB", "--max-times-sampled", 3]
            code, out, err = served.run("configure", *options, "--priority-exponent", 0.5)
            assert (code, err) == (0, "")
            assert out.splitlines() == [
                "max_size of table replay is 50 now, not 100",
                "max_bytes of table replay is 1048576 now, not none",
                "max_times_sampled of table replay is 3 now, not none",
                "priority_exponent of table replay is 0.5 now, not 0.8",
            ]
            assert served.status().items == 50
            options = ["--max-bytes", "none", "--max-times-sampled", 0, "--max-size", 50]
            assert served.run("configure", *options)[1].splitlines() == [
                "max_bytes of table replay is none now, not 1048576",
                "max_times_sampled of table replay is none now, not 3",
            ]
            assert served.run("configure", "--max-bytes", 4096)[0] == 0
            assert served.status().max_bytes == 4096

    def test_a_dry_run_changes_nothing(self, served):
        code, out, _ = served.run("configure", "--max-size", 50, "--dry-run")
        assert (code, out) == (0, "max_size of table replay would be 50, not 100\n")
        assert served.status().max_items == 100
        assert served.run("configure", "--max-size", 0, "--dry-run")[0] == 1

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["--min-size-to-sample", 12], (2.0, 12, 12.0, 28.0)),
            (["--samples-per-insert", 4], (4.0, 10, 12.0, 28.0)),
            (["--min-diff=-5"], (2.0, 10, -5.0, 28.0)),
            (["--max-diff", "none"], (2.0, 10, 12.0, float("inf"))),
            (["--min-diff", "none"], (2.0, 10, -float("inf"), 28.0)),
            (["--error-buffer", 4], (2.0, 10, 16.0, 24.0)),
            (["--samples-per-insert", 4, "--error-buffer", 20], (4.0, 10, 20.0, 60.0)),
            (["--no-ratio"], (1.0, 10, -float("inf"), float("inf"))),
            (["--no-ratio", "--min-size-to-sample", 3], (1.0, 3, -float("inf"), float("inf"))),
            (["--queue-size", 30], (1.0, 1, 0.0, 30.0)),
        ],
    )
    def test_a_limiter_keeps_what_is_not_given(self, capsys, options, expected):
        with Served(capsys, rate_limiter=ratio()) as served:
            assert served.limiter() == (2.0, 10, 12.0, 28.0)
            assert served.run("configure", *options)[0] == 0
            assert served.limiter() == expected
            info = served.client.server_info()["replay"].rate_limiter_info
            assert np.isfinite([info.min_diff, info.max_diff]).all()

    def test_a_size_changes_whatever_the_bounds_are(self, capsys):
        narrow = reverb.rate_limiters.RateLimiter(1.0, 1, 0.0, 0.5)
        with Served(capsys, rate_limiter=narrow) as served:
            assert served.run("configure", "--min-size-to-sample", 2)[0] == 0
            assert served.limiter() == (1.0, 2, 0.0, 0.5)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--samples-per-insert", "inf"], "--samples-per-insert must be finite"),
            (["--min-size-to-sample", 0], "--min-size-to-sample must be at least 1, got 0"),
            (["--samples-per-insert", 100], "--max-diff 28 must be at least max(1, "),
            (["--max-diff", 12.5], "above min_diff 12: else inserts and samples would wait"),
            (["--error-buffer", 0.5], "The size of error_buffer must be at least"),
            (["--samples-per-insert", "nan"], "--samples-per-insert must be finite"),
            (["--min-size-to-sample", 101], "is above max_size 100 of table replay"),
            (["--max-size", 9], "--max-size 9 is below min_size_to_sample 10 of table replay"),
            (["--max-size", 2**40], "max_size must be at least 1 and at most 2147483647"),
            (["--max-times-sampled", -1], "--max-times-sampled must be at least 0, got -1"),
            (["--max-times-sampled", 2**40], "--max-times-sampled must fit into 32 bits"),
            (["--queue-size", 200, "--priority-exponent", 1], "is uniform: it has no priority_exp"),
            (["--draw", "stratified"], "--draw needs a prioritized sampler, which table replay"),
        ],
    )
    def test_what_cannot_be_is_one_line(self, capsys, options, words):
        sampler = reverb.selectors.Uniform()
        with Served(capsys, sampler=sampler, rate_limiter=ratio()) as served:
            code, out, err = served.run("configure", *options)
            assert (code, out, err.count("\n")) == (1, "", 1)
            assert err.startswith("reverb: error: ")
            assert words in err
            assert served.limiter() == (2.0, 10, 12.0, 28.0)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ([], "nothing to change: give at least one setting, such as --max-size"),
            (["--dry-run"], "nothing to change"),
            (["--max-size", "many"], "invalid integer value: 'many'"),
            (["--max-size", str(2**70)], "must fit into 64 bits"),
            (["--queue-size", "0"], "must be at least 1, got 0"),
            (["--max-bytes", "12 gigs"], 'a size such as "12GiB", got "12 gigs"'),
            (["--max-bytes", "80%"], "of a table cannot be a share"),
            (["--max-bytes", "0"], "must be at least 1"),
            (
                ["--error-buffer", "3", "--max-diff", "4"],
                "--error-buffer and --max-diff exclude each other",
            ),
            (
                ["--no-ratio", "--samples-per-insert", "4"],
                "--no-ratio and --samples-per-insert exclude each other",
            ),
            (["--no-ratio", "--queue-size", "4"], "--no-ratio and --queue-size exclude"),
            (
                ["--queue-size", "4", "--min-size-to-sample", "4"],
                "--queue-size and --min-size-to-sample exclude each other",
            ),
        ],
    )
    def test_a_command_line_that_cannot_be_used(self, capsys, options, words):
        with pytest.raises(SystemExit) as end:
            command.main(["configure", "127.0.0.1:1", "--table", "replay", *options])
        assert end.value.code == 2
        assert words in capsys.readouterr().err


def test_every_setting_has_an_option(capsys):
    options = {
        "rate_limiter": "--min-size-to-sample",
        "sampler": "--expected-age",
        "rollouts": "--max-staleness",
    }
    for field in dataclasses.fields(reverb.TableChange):
        flag = options.get(field.name, "--" + field.name.replace("_", "-"))
        # An unknown option would end the program with 2.
        arguments = ["127.0.0.1:1", "--table", "t", "--timeout", "0.1", flag, "1"]
        assert command.main(["configure", *arguments]) == 1


@pytest.mark.parametrize(
    ("sampler", "options", "words"),
    [
        (reverb.selectors.Prioritized(0.5), ["--draw", "stratified"], "stratified"),
        (reverb.selectors.Prioritized(0.5), ["--draw=systematic", "--priority-exponent=7"], "7"),
        (reverb.selectors.Recent(10.0), ["--expected-age", "20"], "20"),
    ],
    ids=["draw", "draw and exponent", "age"],
)
def test_what_a_sampler_has_changes(capsys, sampler, options, words):
    with Served(capsys, sampler=sampler) as served:
        code, out, err = served.run("configure", *options)
        assert (code, err) == (0, "")
        assert words in out
        assert served.run("configure", *options) == (0, "nothing to change\n", "")


class TestRollouts:
    @pytest.fixture
    def of_rollouts(self, capsys):
        rollouts = reverb.Rollouts(2, item=("prompt",), items_per_version=4, max_staleness=2)
        with Served(capsys, signature=SIGNATURE, rollouts=rollouts) as served:
            yield served

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (["--min-rollouts", 1], "min_rollouts of table replay is 1 now, not 2"),
            (["--ahead", 0], "ahead of table replay is 0 now, not none"),
            (["--items-per-version", 8], "items_per_version of table replay is 8 now, not 4"),
            (["--max-staleness", 1], "max_staleness of table replay is 1 now, not 2"),
            (["--on-stale", "keep"], "on_stale of table replay is keep now, not again"),
            (["--open-timeout-s", 0.5], "open_timeout_s of table replay is 0.5 now, not none"),
            (["--max-attempts", 9], "max_attempts of table replay is 9 now, not 5"),
            (["--items-per-version", "none"], "items_per_version of table replay is none now, not"),
        ],
    )
    def test_each_setting_changes(self, of_rollouts, options, told):
        code, out, err = of_rollouts.run("configure", *options)
        assert (code, err, out.count("\n")) == (0, "", 1)
        assert out.startswith(told)
        assert of_rollouts.run("configure", *options) == (0, "nothing to change\n", "")

    def test_what_cannot_be_is_one_line(self, of_rollouts, served):
        refused = "reverb: error: --max-attempts must be at least 1, got 0\n"
        assert of_rollouts.run("configure", "--max-attempts", 0) == (1, "", refused)
        code, _, err = of_rollouts.run("configure", "--ahead", 3)
        assert (code, err.count("\n")) == (1, 1)
        assert "max_staleness (2) must be at least ahead (3)" in err
        code, _, err = served.run("configure", "--ahead", 3)
        assert code == 1
        assert "--ahead needs a table with rollouts, and replay has none" in err

    def test_every_setting_of_rollouts_has_an_option(self, of_rollouts):
        for field in dataclasses.fields(reverb.Rollouts):
            if field.name not in ("num_rollouts", "item"):
                value = "keep" if field.name == "on_stale" else "1"
                flag = "--" + field.name.replace("_", "-")
                assert of_rollouts.run("configure", flag, value)[0] == 0


class TestPause:
    @pytest.mark.parametrize(
        ("options", "named", "paused"),
        [
            ([], "inserts and samples", (True, True)),
            (["--inserts", "--samples"], "inserts and samples", (True, True)),
            (["--inserts"], "inserts", (True, False)),
            (["--samples"], "samples", (False, True)),
        ],
    )
    def test_sides_wait_and_go_on(self, served, options, named, paused):
        assert served.run("pause", *options) == (0, f"{named} of table replay are paused\n", "")
        status = served.status()
        assert (bool(status.inserting.paused), bool(status.sampling.paused)) == paused
        assert served.run("resume", *options) == (0, f"{named} of table replay continue\n", "")
        status = served.status()
        assert (status.inserting.paused, status.sampling.paused) == (None, None)


class TestDrain:
    def test_a_drained_server(self, served):
        served.insert(3)
        code, out, err = served.run("drain", table=False)
        assert (code, err) == (0, "")
        assert out == f"{served.address} is drained: all streams have ended\n"
        assert served.client.status().draining
        assert served.run("drain", "--timeout", 0, table=False)[0] == 0

    def test_streams_that_stay_open_have_an_exit_code(self, served, monkeypatch):
        monkeypatch.setattr(reverb.Client, "drain", lambda *_: 2)
        code, out, _ = served.run("drain", "--timeout", 0.5, table=False)
        assert (code, out) == (3, f"2 streams of {served.address} are still open after 0.5 s\n")

    @pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
    def test_a_time_that_is_none(self, capsys, seconds):
        with pytest.raises(SystemExit) as end:
            command.main(["drain", "127.0.0.1:1", f"--timeout={seconds}"])
        assert end.value.code == 2
        assert f"must be at least 0 seconds, got {seconds}" in capsys.readouterr().err


class TestReset:
    def test_scripts_say_yes(self, served):
        served.insert(3)
        code, out, err = served.run("reset", "--yes")
        assert (code, err) == (0, "")
        assert out == f"table replay of {served.address} is empty: it had 3 items\n"
        assert served.status().items == 0

    def test_without_a_terminal_it_is_an_error(self, served, monkeypatch):
        served.insert(1)
        with pathlib.Path(os.devnull).open() as empty:
            monkeypatch.setattr(sys, "stdin", empty)
            code, out, err = served.run("reset")
        assert (code, out) == (1, "")
        assert err == (
            f"reverb: error: 1 item of table replay of {served.address} will be lost. Reset it? "
            "There is no terminal to answer on; give --yes to do it\n"
        )
        assert served.status().items == 1

    @pytest.mark.parametrize(
        ("answer", "code", "items"),
        [(b"y\n", 0, 0), (b"Yes\n", 0, 0), (b"n\n", 1, 3), (b"\n", 1, 3), (b"\x04", 1, 3)],
    )
    def test_a_terminal_is_asked(self, served, answer, code, items):
        served.insert(3)
        process, terminal = self._start(served)
        os.write(terminal, answer)
        out, err = process.communicate(timeout=DEADLINE_S)
        os.close(terminal)
        assert (process.returncode, served.status().items) == (code, items)
        asked = f"3 items of table replay of {served.address} will be lost. Reset it? [y/N] "
        assert err == asked
        assert ("nothing was removed\n" in out) == (code == 1)

    def test_ctrl_c_at_the_question(self, served):
        served.insert(3)
        process, terminal = self._start(served)
        assert process.stderr.read(1) == "3"  # It asks.
        # Python's `input` misses a signal that comes just before it begins to read.
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=DEADLINE_S / 5)
                break
        os.close(terminal)
        assert (process.returncode, served.status().items) == (130, 3)

    def _start(self, served):
        terminal, stdin = pty.openpty()
        arguments = ["reset", served.address, "--table", "replay"]
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(stdin)
        return process, terminal


COMMANDS = {
    "configure": ["--max-size", "5"],
    "pause": [],
    "resume": [],
    "reset": ["--yes"],
}


@pytest.mark.parametrize(("what", "options"), COMMANDS.items())
class TestEveryCommand:
    def test_a_hostile_name_is_plain(self, capsys, what, options):
        with Served(capsys, name=HOSTILE) as served:
            code, out, err = served.run(what, *options)
            assert (code, err) == (0, "")
            assert r"a\x1b[2J\u202eb" in out
            assert out.rstrip("\n").isprintable()

    def test_a_table_that_there_is_not(self, served, capsys, what, options):
        other = ["--table", "other\x1b"]
        code = command.main([what, served.address, *other, *options])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert r"other\x1b" in err
        assert "replay" in err

    def test_a_table_must_be_named(self, capsys, what, options):
        with pytest.raises(SystemExit) as end:
            command.main([what, "127.0.0.1:1", *options])
        assert end.value.code == 2
        assert "--table" in capsys.readouterr().err


NOBODY = {
    **{what: ["--table", "t", "--timeout", "0.3", *options] for what, options in COMMANDS.items()},
    "drain": [],
    "why": ["--timeout", "0.3"],
    "top": ["--once", "--timeout", "0.3"],
    "top --json": ["--once", "--json", "--timeout", "0.3"],
}


@pytest.mark.parametrize("what", NOBODY)
def test_no_server_is_one_line(capsys, monkeypatch, what):
    monkeypatch.setattr("reverb.command.drain.DEFAULT_TIMEOUT_S", 0.3)
    assert command.main([what.split()[0], "127.0.0.1:1", *NOBODY[what]]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "127.0.0.1:1" in err


def test_a_server_of_dm_reverb(served, monkeypatch):
    def refuse(*_, **__):
        raise UnimplementedError("The server does not drain: it is a server of dm-reverb")

    monkeypatch.setattr(reverb.Client, "drain", refuse)
    code, _, err = served.run("drain", table=False)
    assert (code, "it is a server of dm-reverb" in err) == (1, True)


def test_a_smaller_queue_asks_before_it_drops_unread_items(capsys, monkeypatch):
    with Served(capsys, max_times_sampled=1, sampler=reverb.selectors.Fifo()) as served:
        served.insert(10)
        code, out, err = served.run("configure", "--max-size", 4, "--dry-run")
        assert (code, err) == (0, "")
        assert out.startswith("6 unread items of table replay would be lost\nmax_size of table")
        code, out, err = served.run("configure", "--max-size", 4)
        question = "6 unread items of table replay would be lost. Make it smaller?"
        assert (code, out) == (1, "")
        assert (
            err
            == f"reverb: error: {question} There is no terminal to answer on; give --yes to do it\n"
        )
        for answer, size in (("n", 10), ("y", 4)):
            monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
            code, out, err = served.run("configure", "--max-size", 4)
            assert err == f"{question} [y/N] "
            assert served.status().items == size
        # Nothing is lost, or nobody is asked.
        assert served.run("configure", "--max-size", 9)[0] == 0
        served.insert(3)
        assert served.run("configure", "--max-size", 7)[0] == 0
        assert served.run("configure", "--max-size", 5, "--yes")[0] == 0
        assert served.status().items == 5


def test_other_tables_are_made_smaller_without_a_question(capsys):
    with Served(capsys) as served:
        served.insert(10)
        assert served.run("configure", "--max-size", 4)[0] == 0
        assert served.status().items == 4


class Terminal(io.StringIO):
    """A user who answers a question of a command."""

    def isatty(self):
        return True


def test_a_checkpoint_is_told(capsys, tmp_path):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "saved"))
    with (
        Served(capsys) as served,
        reverb.Server([testing.table()], host="127.0.0.1", checkpointer=checkpointer) as server,
    ):
        address = f"127.0.0.1:{server.port}"
        code, _, err = Served.run(served, "checkpoint", table=False)
        assert (code, err) == (0, "")  # To a temporary directory.
        assert command.main(["checkpoint", address]) == 0
        (path,) = (tmp_path / "saved").iterdir()
        out = capsys.readouterr().out
        assert out.startswith(f"saved {path}, ")
        assert " in " in out
        assert command.main(["why", address]) == 0
        assert "checkpoints: The last one was saved " in capsys.readouterr().out
        assert command.main(["why", "--json", address]) == 0
        assert json.loads(capsys.readouterr().out)["last_checkpoint_s"] >= 0
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        (tmp_path / "saved").rmdir()
        (tmp_path / "saved").touch()
        assert command.main(["checkpoint", address]) == 1
        assert str(tmp_path / "saved") in capsys.readouterr().err
