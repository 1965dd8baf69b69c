# SPDX-License-Identifier: Apache-2.0
"""`reverb token` and `reverb tls`, and the options of TLS and tokens of the other commands."""

import datetime
import hashlib
import os
import pathlib
import re
import stat

import pytest

from reverb import command
from reverb._server.tls import ClientTls
from reverb.command.server_arguments import credentials_of
from reverb.core import native
from support.commands import commands_of_servers, positional
from support.odd_files import ODD
from support.programs import Program

TOKEN = re.compile(r"rvb_[\w-]{43}\n")
LINE = re.compile(r"(\S+)  (\S+)  (\S+)  sha256:([0-9a-f]{64})(?:  until=(\S+))?")
LATER = "2999-01-31"


@pytest.fixture
def reverb(capsys):
    """Runs the command; returns its exit code, standard output and standard error."""

    def reverb(*arguments):
        try:
            code = command.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return (code, *capsys.readouterr())

    return reverb


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens"


def line_of(text):
    (line,) = [line for line in text.splitlines() if LINE.fullmatch(line)]
    return LINE.fullmatch(line).groups()


def test_a_new_token_is_printed_once_with_its_line(reverb, path):
    code, out, errors = reverb("token", "new", "--name", "learner", "--rights", "sample,update")
    assert code == 0
    assert TOKEN.fullmatch(out)
    token = out.strip()
    assert token not in errors
    assert line_of(errors) == (
        "learner",
        "sample,update",
        "*",
        hashlib.sha256(token.encode()).hexdigest(),
        None,
    )
    path.write_text(errors.splitlines()[-1])
    native.check_tokens_file(str(path))


def test_every_token_is_another_one(reverb):
    made = {reverb("token", "new", "--name=a", "--rights=sample")[1] for _ in range(20)}
    assert len(made) == 20


def test_tables_and_an_end_stand_in_the_line(reverb):
    _, _, errors = reverb(
        *("token", "new", "--name=a", "--rights", "sample, insert", "--tables", "my table,50%,ü"),
        *("--until", LATER),
    )
    _, rights, tables, _, until = line_of(errors)
    assert (rights, tables) == ("sample,insert", "my%20table,50%25,%C3%BC")
    assert until == f"{LATER}T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("2999-01-31T12:30:00Z", "2999-01-31T12:30:00Z"),
        ("2999-01-31T12:30:00", "2999-01-31T12:30:00Z"),
        ("2999-01-31 12:30:00+02:00", "2999-01-31T10:30:00Z"),
        ("2999-01-31T12:30:59.9Z", "2999-01-31T12:30:59Z"),
    ],
)
def test_a_time_is_written_in_utc(reverb, text, until):
    _, _, errors = reverb("token", "new", "--name=a", "--rights=sample", "--until", text)
    assert line_of(errors)[4] == until


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--rights=sample"], 2, "the following arguments are required: --name"),
        (["--name=a"], 2, "the following arguments are required: --rights"),
        (["--name=a b", "--rights=sample"], 1, "--name must be one word and no comment, got 'a b'"),
        (["--name=#a", "--rights=sample"], 1, "--name must be one word and no comment, got '#a'"),
        (["--name=", "--rights=sample"], 1, "--name must be one word and no comment, got ''"),
        (["--name=a", "--rights=read"], 1, "read"),
        (["--name=a", "--rights="], 1, "the line of this token"),
        (["--name=a", "--rights=sample", "--tables=a,,b"], 1, "the line of this token"),
        (["--name=a", "--rights=sample", "--until=soon"], 2, "must be a date such as 2027-01-31"),
        (["--name=a", "--rights=sample", "--until=2020-01-01"], 2, "must be in the future, got 20"),
    ],
)
def test_what_cannot_be_used_makes_no_token(reverb, arguments, code, text):
    found, out, errors = reverb("token", "new", *arguments)
    assert (found, out) == (code, "")
    assert text in errors


def test_lines_are_appended(reverb, path):
    for name in ("actor", "learner"):
        code, out, errors = reverb(
            "token", "new", "--name", name, "--rights=sample", "--append", path
        )
        assert code == 0
        assert TOKEN.fullmatch(out)
        assert errors == f"{path} has its line now\n"
    assert [line_of(line)[0] for line in path.read_text().splitlines()] == ["actor", "learner"]
    native.check_tokens_file(str(path))


def test_a_line_without_an_end_is_ended(reverb, path):
    assert reverb("token", "new", "--name=a", "--rights=sample", "--append", path)[0] == 0
    path.write_text(path.read_text().rstrip("\n"))
    path.chmod(0o640)
    assert reverb("token", "new", "--name=b", "--rights=sample", "--append", path)[0] == 0
    assert len(path.read_text().splitlines()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of Unix")
def test_a_new_file_is_for_its_user_alone(reverb, path):
    old = os.umask(0)
    try:
        for name in ("a", "b"):
            assert (
                reverb("token", "new", f"--name={name}", "--rights=sample", "--append", path)[0]
                == 0
            )
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of Unix")
@pytest.mark.parametrize("action", ["new", "append", "check"])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_one_warning(path, action, mode):
    path.write_text(f"a  sample  *  sha256:{'0' * 64}\n")
    path.chmod(mode)
    new = ["new", "--name=b", "--rights=sample"]
    arguments = {"new": new, "append": [*new, "--append", path], "check": ["check", path]}
    # The core writes to the standard error of the process.
    program = "import sys; from reverb import command; sys.exit(command.main(sys.argv[1:]))"
    with Program(program, "token", *arguments[action]) as running:
        assert running.ended() == 0
    warnings = [it for it in running.errors.splitlines() if " WARN " in it]
    # A group may read: mounts of secrets are for one.
    assert len(warnings) == (mode not in (0o600, 0o640) and action != "new")
    for warning in warnings:
        assert f" tokens: {path} has mode {mode:04o}: other users may " in warning
        assert warning.endswith(f": chmod 600 {path}")
    assert path.stat().st_mode & 0o777 == mode


def test_nothing_is_appended_to_a_bad_file(reverb, path):
    path.write_text("bad\n")
    code, out, errors = reverb("token", "new", "--name=a", "--rights=sample", "--append", path)
    assert (code, out) == (1, "")
    assert "line 1" in errors
    assert path.read_text() == "bad\n"


def test_a_file_that_cannot_be_written_costs_no_token(reverb, tmp_path):
    code, out, errors = reverb(
        "token", "new", "--name=a", "--rights=sample", "--append", tmp_path / "no" / "tokens"
    )
    assert (code, out) == (1, "")
    assert "No such file" in errors


def test_a_check_says_what_each_line_allows(reverb, path):
    key = f"sha256:{'0' * 63}"
    path.write_text(
        "\ufeff# actors\n"
        f"actor  insert  replay,my%20table  {key}1  until=2020-01-01T00:00:00Z\n\n"
        f"learner\tsample,update\t*\t{key}2\tuntil={LATER}T00:00:00Z # the new one\n"
        "probe  sample  *  cert:probe.example\n",
        encoding="utf-8",
    )
    path.chmod(0o600)
    assert reverb("token", "check", path) == (
        0,
        "token actor: insert of tables replay, my table, expired at 2020-01-01T00:00:00Z\n"
        f"token learner: sample,update of all tables, until {LATER}T00:00:00Z\n"
        "certificate probe: sample of all tables\n"
        f"{path} is good: 3 lines\n",
        "",
    )


def test_a_check_fails_for_a_bad_file(reverb, path, tmp_path):
    path.write_text("a  sample\nb  everything  *  sha256:0\n")
    code, out, errors = reverb("token", "check", path)
    assert (code, out) == (1, "")
    assert "line 1" in errors
    assert "line 2" in errors
    code, _, errors = reverb("token", "check", tmp_path / "none")
    assert code == 1
    assert "none" in errors


# --- reverb tls self-signed -----------------------------------------------------------------------


def test_certificates_for_trials_are_made_and_explained(reverb, tmp_path):
    directory = tmp_path / "a" / "my tls"
    code, out, errors = reverb(
        *("tls", "self-signed", directory, "--name", "replay.example", "--name", "10.0.0.1"),
        *("--days", 7),
    )
    assert (code, errors) == (0, "")
    assert sorted(it.name for it in directory.iterdir()) == [
        "ca.crt",
        "ca.key",
        "tls.crt",
        "tls.key",
    ]
    for line in (
        "are valid for 7 days, for replay.example, 10.0.0.1.",
        f"reverb_server --tls-cert '{directory / 'tls.crt'}' --tls-key '{directory / 'tls.key'}' ",
        f"export REVERB_TLS_CA='{directory / 'ca.crt'}'",
        "reverb inspect grpcs://replay.example:8000",
    ):
        assert line in out
    native.check_tls_files(str(directory / "tls.crt"), str(directory / "tls.key"), None)
    for key in ("ca.key", "tls.key"):
        assert stat.S_IMODE((directory / key).stat().st_mode) == 0o600


def test_files_that_exist_are_not_replaced(reverb, tmp_path):
    assert reverb("tls", "self-signed", tmp_path)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, errors = reverb("tls", "self-signed", tmp_path)
    assert (code, out) == (1, "")
    assert "exist" in errors
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("days", ["0", "-1", "3651", "x"])
def test_days_have_a_range(reverb, tmp_path, days):
    code, _, errors = reverb("tls", "self-signed", tmp_path / "new", f"--days={days}")
    assert code == 2
    assert "--days" in errors
    assert not (tmp_path / "new").exists()


# --- Options of the commands that reach a server --------------------------------------------------

COMMANDS = {
    "inspect": [],
    "export": ["--table=t", "--format=npz", "--output=o"],
    "import": ["--table=t", "--items=transitions"],
    "why": [],
    "top": ["--once"],
    "configure": ["--table=t", "--max-size=5"],
    "pause": ["--table=t"],
    "resume": ["--table=t"],
    "checkpoint": [],
    "drain": [],
    "reset": ["--table=t"],
}


def test_every_command_is_tried():
    assert set(COMMANDS) == commands_of_servers()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_credentials(name):
    arguments = command._parser().parse_args(
        [name, *positional(name, "grpcs://a:1"), *COMMANDS[name]]
    )
    assert credentials_of(arguments) == {"token_file": None, "tls": None}
    options = ["--token-file=t", "--tls-ca=a", "--tls-cert=c", "--tls-key=k"]
    arguments = command._parser().parse_args(
        [
            name,
            *positional(name, "grpcs://a:1"),
            *COMMANDS[name],
            *options,
            "--tls-server-name=n",
        ]
    )
    assert credentials_of(arguments) == {
        "token_file": pathlib.Path("t"),
        "tls": ClientTls("a", "c", "k", "n"),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_the_token_itself(reverb, name):
    code, _, errors = reverb(
        name, *positional(name, "grpcs://a:1"), *COMMANDS[name], "--token=rvb_x"
    )
    assert code == 2
    assert "argument --token: every user of this machine could see it: use --token-file" in errors
    assert "rvb_x" not in errors


@pytest.mark.parametrize("name", COMMANDS)
def test_a_certificate_without_a_key_is_refused(reverb, name):
    code, _, errors = reverb(
        name, *positional(name, "grpcs://a:1"), *COMMANDS[name], "--tls-cert=c"
    )
    assert code == 1
    assert "--tls-cert needs --tls-key" in errors


def test_the_end_of_a_token_is_in_the_future():
    assert datetime.date.fromisoformat(LATER) > datetime.date.today()


@pytest.mark.parametrize("action", ["new", "check"])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "socket"])
def test_a_file_of_tokens_is_one(reverb, path, kind, action):
    ODD[kind](path, b"")
    arguments = ("check", path)
    if action == "new":
        arguments = ("new", "--name=a", "--rights=sample", "--append", path)
    code, out, errors = reverb("token", *arguments)
    assert (code, out) == (1, "")
    assert str(path) in errors
    assert "is not a file" in errors
