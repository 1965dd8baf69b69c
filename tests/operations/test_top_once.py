# SPDX-License-Identifier: Apache-2.0
"""`reverb top --once`: everything as text or as JSON, without Textual."""

import json
import subprocess
import sys

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.errors import UnimplementedError
from support.pages import get
from support.programs import Program, run
from support.stalls import limiter

# Textual cannot be imported, as if it were not there.
WITHOUT_TEXTUAL = """
import sys
sys.modules["textual"] = None
from reverb import command
assert not [name for name in sys.modules if name.startswith(("textual.", "rich."))]
sys.exit(command.main(sys.argv[1:]))
"""


@pytest.fixture
def server():
    tables = [
        testing.table("calm"),
        testing.table("hopeless", max_size=5, rate_limiter=limiter(min_size=6)),
    ]
    with reverb.Server(tables, http_port=0, max_bytes="64MiB") as server:
        client = reverb.Client(f"127.1:{server.port}")
        client.insert_batch({"x": np.zeros((3, 2))}, {"calm": np.ones(3)})
        yield server


@pytest.fixture
def top(server, capsys):
    """Runs the command on the server: `code, out, err = top("--once")`."""

    def top(*arguments):
        code = command.main(["top", f"127.1:{server.port}", *arguments])
        return code, *capsys.readouterr()

    return top


def test_text_has_everything(top):
    code, out, err = top("--once")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert out.startswith("127.1:")
    assert out.index("\nhopeless  never  ") < out.index("\ncalm      flowing  ")
    for told in (
        "of 64.0 MiB (max_bytes)", "Rate limiter", "The last seconds", "inserts a second",
        "items 3 of 1000", "Since the server started", "Waiting now", "Items that left",
        "kind client", "insert", "Checkpoints None was saved yet.",
    ):  # fmt: skip
        assert told in words, told
    assert "\x1b" not in out, "no colours"
    assert max(map(len, out.splitlines())) < 200


def test_one_table_only(top):
    assert "hopeless" not in top("calm", "--once")[1]
    code, out, err = top("missing", "--once")
    assert (code, out) == (1, "")
    assert "has no table missing; it has: calm, hopeless" in err


def test_json_is_that_of_the_page(top, server):
    code, out, _ = top("--once", "--json")
    assert code == 0
    told = json.loads(out)
    page = json.loads(get(server, "/api/status").text)

    def shape(value):
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        return [shape(inner) for inner in value] if isinstance(value, list) else type(value)

    assert shape(told) == shape(page)
    for mine, theirs in zip(told["tables"], page["tables"], strict=True):
        assert mine["name"] == theirs["name"]
        assert mine["numInserts"] == theirs["numInserts"]
        assert mine["diagnosis"]["state"] == theirs["diagnosis"]["state"]
    assert told["tables"][0]["rates"]["seconds"] >= 1

    only = json.loads(top("hopeless", "--once", "--json")[1])
    assert [table["name"] for table in only["tables"]] == ["hopeless"]
    assert only["streams"] == []


def test_hostile_names_are_text(capsys):
    names = ["[red]x[/red]", "\x1b[31mred\x07", "two\nlines", "\u202eleft", "x" * 5000]
    with reverb.Server([testing.table(name) for name in names]) as server:
        client = reverb.Client(f"127.1:{server.port}")
        client.insert(np.zeros(1), {names[1]: 1.0})
        address = f"127.1:{server.port}"
        assert command.main(["top", "--once", address]) == 0
        out = capsys.readouterr().out
        assert out.replace("\n", "").isprintable()
        for told in ("[red]x[/red]", r"\x1b[31mred\x07", r"two\nlines", r"\u202eleft"):
            assert f"\n{told}\n" in out
        assert "x" * 80 not in out
        assert command.main(["top", "--once", "--json", address]) == 0
        tables = json.loads(capsys.readouterr().out)["tables"]
        assert [table["name"] for table in tables] == names


def test_an_output_without_unicode(server):
    done = subprocess.run(
        [sys.executable, "-m", "reverb", "top", "--once", f"127.0.0.1:{server.port}"],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "ascii", "COLUMNS": "100"},
        capture_output=True,
        timeout=55,
        check=True,
    )
    out = done.stdout.decode("ascii")
    assert "|-" in out
    assert "\\u" not in out


def test_without_textual(server):
    address = f"127.0.0.1:{server.port}"
    with Program(WITHOUT_TEXTUAL, "top", address) as program:
        assert program.ended() == 1
        (line,) = program.errors.splitlines()
    assert line.startswith("reverb: error: reverb top needs Textual")
    assert "pip install 'textual>=1.0'" in line
    assert "--once needs nothing" in line
    for options in (["--once"], ["--once", "--json"]):
        assert run(WITHOUT_TEXTUAL, "top", address, *options)


def test_without_a_terminal(top):
    pytest.importorskip("textual", reason="Textual is not installed")
    code, _, err = top()
    assert code == 1
    assert "reverb top needs a terminal; reverb top --once prints everything as text" in err


@pytest.mark.parametrize("arguments", [["why"], ["top", "--once"], ["top", "--once", "--json"]])
def test_a_server_of_dm_reverb_tells_what_it_has(server, monkeypatch, capsys, arguments):
    def refuse(*_):
        raise UnimplementedError("Status is not implemented")

    monkeypatch.setattr(reverb.Client, "_serialized_status", refuse)
    assert command.main([*arguments, f"127.1:{server.port}"]) == 1
    err = capsys.readouterr().err
    assert "is a server of dm-reverb or of an older release" in err
    assert "calm has 3 items (min_size_to_sample 1)" in err


def test_wrong_options(capsys):
    for arguments, words in (
        (["--json"], "--json needs --once"),
        (["--interval", "0"], "must be from 0.1 to 3600 seconds, got 0"),
        (["--interval", "nan"], "must be from 0.1 to 3600 seconds, got nan"),
    ):
        with pytest.raises(SystemExit) as end:
            command.main(["top", "127.0.0.1:1", *arguments])
        assert end.value.code == 2
        assert words in capsys.readouterr().err


def test_changes_of_a_running_table_are_told(capsys):
    with reverb.Server([testing.table("replay", max_size=10)]) as server:
        client = server.localhost_client()
        client.insert_batch([np.zeros(10)], {"replay": np.ones(10)})
        client.configure_table("replay", max_size=4)
        with client.rate_limiter_off("replay"):
            assert command.main(["top", "--once", f"127.0.0.1:{server.port}"]) == 0
        words = " ".join(capsys.readouterr().out.split())
    assert "table made smaller 6" in words
    # The columns beside each other break the sentence.
    assert "with 1 item; off for " in words
    assert "inserts, for " in words
