# SPDX-License-Identifier: Apache-2.0
"""`reverb import`, and `reverb export` to formats of datasets."""

import numpy as np
import pytest

import reverb
from reverb import command, datasets, testing
from support import made_episodes


@pytest.fixture
def run(capsys):
    """Runs the command: `code, out, err = run("import", ...)`."""

    def run(*arguments):
        code = command.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def source(tmp_path):
    return made_episodes.write_npz(tmp_path / "f.npz", made_episodes.episodes())


@pytest.fixture
def client():
    example = made_episodes.episode(5)
    tables = [
        made_episodes.table("t", example, datasets.Transitions()),
        made_episodes.table("s", example, datasets.Sequences(4, short_episodes="keep")),
        made_episodes.table("e", example, datasets.Episodes(100)),
    ]
    with testing.server(tables) as client:
        yield client


@pytest.mark.parametrize(
    ("table", "options", "num_items"),
    [
        ("t", ["--items=transitions", "--n-step=3", "--discount=0.5"], 55),
        ("t", ["--items=transitions", "--skip=1", "--limit=2"], 31),
        ("s", ["--items=sequences", "--length=4", "--stride=2", "--short-episodes=keep"], 25),
        ("s", ["--items=sequences", "--length=2", "--burn-in=2", "--short-episodes=keep"], 25),
        ("e", ["--items=episodes"], 5),
        ("e", ["--items=episodes", "--max-length=12", "--long-episodes=drop"], 4),
    ],
)
def test_items_are_written_once(run, source, client, table, options, num_items):
    arguments = ["import", source, client.server_address, f"--table={table}", *options]
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith(f"{num_items} items of ")
    assert client.size(table) == num_items
    code, out, err = run(*arguments)
    assert out.startswith(f"0 items of 0 episodes (0 steps) written to table {table}; ")
    assert "were there already; their items keep the --n-step and --discount of their imp" in out
    assert client.size(table) == num_items


LAST_LINE = "55 items of 5 episodes (55 steps) would be written to table t"


def test_a_dry_run_shows_columns_and_counts_and_writes_nothing(run, source, client):
    code, out, err = run(
        "import", source, client.server_address, "--table=t", "--items=transitions", "--dry-run"
    )
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["column", "items", "table", "t"],
        ["action", "int64", "[]", "int64", "[]"],
        ["discount", "float32", "[]", "float32", "[]"],
        ["episode_id", "int64", "[]", "int64", "[]"],
        ["next_observation", "float32", "[4]", "float32", "[4]"],
        ["observation", "float32", "[4]", "float32", "[4]"],
        ["reward", "float32", "[]", "float32", "[]"],
        ["terminated", "bool", "[]", "bool", "[]"],
        ["truncated", "bool", "[]", "bool", "[]"],
        ["values_digest", "int64", "[]", "int64", "[]"],
        ["items", "in", "the", "table:", "0", "of", "1,000,000"],
        LAST_LINE.split(),
    ]
    assert client.size("t") == 0


def test_a_dry_run_finds_what_does_not_fit(run, source, client):
    code, out, err = run(
        "import", source, client.server_address, "--table=t", "--items=episodes", "--dry-run"
    )
    assert code == 1
    assert "observation       float32 [T, 4]  float32 [4]" in out
    assert "field observations: makes a column of shape ['T', 4]" in err


def test_a_dry_run_says_that_items_would_leave(run, source):
    example = made_episodes.episode(5)
    table = made_episodes.table("t", example, datasets.Transitions(), options={"max_size": 50})
    with testing.server([table]) as client:
        arguments = ["import", source, client.server_address, "--table=t", "--items=transitions"]
        _, out, _ = run(*arguments, "--dry-run")
        assert "the table holds at most 50 items: 5 would be removed" in out
        _, out, _ = run(*arguments)
        assert "the table is full with 50 items: further inserts remove items" in out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--items=transitions", "--length=3"], "--length is not for --items transitions; that"),
        (["--items=sequences"], "--items sequences needs --length"),
        (["--items=transitions", "--n-step=0"], "--n-step must be at least 1, got 0"),
        (["--items=transitions", "--priority=x"], 'priority must be a number or "max", got'),
        (["--items=transitions", "--skip=-1"], "skip must be at least 0, got -1"),
        (
            ["--items=episodes", "--max-length=9"],
            "field rewards: has 30 steps, more than max_length = 9; give a larger --max-length, or "
            "--long-episodes drop",
        ),
    ],
)
def test_options_that_do_not_fit(run, source, client, options, text):
    table = "e" if "--items=episodes" in options else "t"
    code, out, err = run("import", source, client.server_address, f"--table={table}", *options)
    assert (code, out) == (1, "")
    assert text in err


def test_errors_name_options(run, tmp_path, client):
    episodes = [made_episodes.episode(5, 0, end="nothing")]
    path = made_episodes.write_npz(tmp_path / "open.npz", episodes)
    arguments = ["import", path, client.server_address, "--table=t", "--items=transitions"]
    code, _, err = run(*arguments)
    assert code == 1
    assert f"{tmp_path / 'open.npz'}: episode 0, field truncated: the episode has no end" in err
    assert "--unfinished truncate ends such episodes by a truncation" in err
    code, out, _ = run(*arguments, "--unfinished=truncate")
    assert (code, out.startswith("5 items of 1 episodes")) == (0, True)


def test_a_field_too_many_is_left_out(run, tmp_path, client):
    more = {"extra": np.zeros(55), "text": np.array(["a"] * 55)}
    path = made_episodes.write_npz(tmp_path / "more.npz", made_episodes.episodes(), **more)
    arguments = ["import", path, client.server_address, "--table=t", "--items=transitions"]
    code, _, err = run(*arguments)
    assert (code, "field text: must be numbers, got text" in err) == (1, True)
    code, _, err = run(*arguments, "--leave-out=text")
    assert (code, "--leave-out extra leaves the field out" in err) == (1, True)
    assert client.size("t") == 0
    code, _, _ = run(*arguments, "--leave-out=text", "--leave-out=extra")
    assert (code, client.size("t")) == (0, 55)


def test_a_table_without_ids_needs_no_resume(run, source):
    example = made_episodes.episode(5)
    table = made_episodes.table("t", example, datasets.Transitions(), episode_ids=False)
    with testing.server([table]) as client:
        arguments = ["import", source, client.server_address, "--table=t", "--items=transitions"]
        assert run(*arguments)[0] == 0
        code, _, err = run(*arguments)
        assert code == 1
        assert "or give --no-resume to write all episodes beside the items" in err
        assert run(*arguments, "--no-resume")[0] == 0
        assert client.size("t") == 110


def test_a_table_without_a_signature_continues_by_ids(run, source):
    with testing.server([testing.table("t")]) as client:
        arguments = ["import", source, client.server_address, "--table=t", "--items=transitions"]
        assert run(*arguments, "--episode-ids")[0] == 0
        _, out, _ = run(*arguments, "--episode-ids")
        assert "5 episodes were there already" in out
        assert client.size("t") == 55


def test_the_source_id_identifies_a_dataset_that_moves(run, source, client, tmp_path):
    arguments = ["--table=t", "--items=transitions", "--source-id=mine"]
    run("import", source, client.server_address, *arguments)
    (tmp_path / "f.npz").rename(tmp_path / "g.npz")
    _, out, _ = run("import", f"npz:{tmp_path / 'g.npz'}", client.server_address, *arguments)
    assert "5 episodes were there already" in out
    expected = {made_episodes.episode(1, number, source="mine").id for number in range(5)}
    found = (it.data[0] for it in client.scan("t", columns=["episode_id"]))
    assert {int(it) for it in found} == expected


class TestExport:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--format=npz"], "--output is needed for --format npz"),
            (["--format=npz", "--output=o", "--env=x"], "--env is not for --format npz"),
            (["--format=minari"], "--dataset-id is needed for --format minari"),
            (["--format=hf", "--dataset-id=x"], "--dataset-id is not for --format hf, which has"),
            (["--format=minari", "--output=x"], "--output is not for --format minari, which has"),
            (["--format=hf", "--output=o", "--fps=3"], "--fps is not for --format hf"),
            (["--format=npz", "--output=o", "--discount=1"], "--discount is not for --format npz"),
            (["--format=lerobot", "--output=o"], "--fps is needed for --format lerobot"),
            (["--format=lerobot", "--output=o", "--fps=0"], "fps must be at least 1, got 0"),
            (["--format=rlds", "--output=o", "--discount=2"], "discount must be in [0, 1], got 2"),
            (["--format=hf", "--output=o", "--overwrite"], "--overwrite is not for --format hf"),
        ],
    )
    def test_options_that_do_not_fit(self, run, client, options, text, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = run("export", client.server_address, "--table=e", *options)
        assert (code, out) == (1, "")
        assert text in err

    def test_a_checkpoint_is_exported_as_episodes(self, run, tmp_path):
        pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
        episodes = made_episodes.episodes()
        items = datasets.Episodes(100)
        table = made_episodes.table("e", episodes[0], items)
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "saved"))
        with reverb.Server([table], checkpointer=checkpointer, host="127.0.0.1") as server:
            client = reverb.Client(f"127.0.0.1:{server.port}")
            datasets.write(client, "e", episodes, items)
            client.checkpoint()
        out = tmp_path / "robot"
        code, printed, err = run(
            "export",
            tmp_path / "saved",
            "--table=e",
            "--format=lerobot",
            "--fps=5",
            f"--output={out}",
        )
        assert (code, err) == (0, "")
        assert printed == f"5 episodes of table e in lerobot:{out}\n"
        made_episodes.assert_equal(datasets.episodes(f"lerobot:{out}"), episodes)
