# SPDX-License-Identifier: Apache-2.0
"""The commands of `reverb` at a server with TLS and tokens."""

import json

import pytest

from reverb import command, testing
from support.commands import commands_of_servers, positional, write_dataset

# The output of each command, and the right that it needs.
COMMANDS = {
    "inspect": (["--no-progress", "--json"], "sample"),
    "export": (["--table=table", "--format=npz", "--output=out", "--no-progress"], "sample"),
    "import": (["--table=table", "--items=transitions", "--no-resume"], "import"),
    "why": (["--json"], "sample"),
    "top": (["--once", "--json"], "sample"),
    "configure": (["--table=table", "--max-size=9"], "admin"),
    "pause": (["--table=table"], "admin"),
    "resume": (["--table=table"], "admin"),
    "reset": (["--table=table", "--yes"], "admin"),
    "checkpoint": ([], "admin"),
    "drain": (["--timeout=0"], "admin"),
}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs a command; returns its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path)

    def run(*arguments):
        code = command.main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def secured(secure, tokens):
    tables = [testing.table(), testing.table("other")]
    tokens.add("somebody", "update")
    made = secure(*tables, tokens=tokens.path)
    made.server.localhost_client().insert([1.0], {"table": 1.0})
    return made


@pytest.fixture
def options_of(secured, tokens, token_path):
    """Returns the options of a command for a new token."""

    def options_of(right):
        # The address has a name of its own, as in the other tests.
        more = {"admin": "sample,admin", "import": "sample,insert,admin"}
        token = tokens.add(f"with_{right}", more.get(right, right))
        secured.server.reload_security()
        path = token_path(token, f"{right}.token")
        tls = [f"--tls-ca={secured.tls.ca}", "--tls-server-name=localhost"]
        return [f"--token-file={path}", *tls], token

    return options_of


def test_every_command_is_tried():
    assert set(COMMANDS) == commands_of_servers()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_works_with_its_token(run, secured, options_of, name):
    more, right = COMMANDS[name]
    options, token = options_of(right)
    code, out, errors = run(name, *positional(name, secured.address), *more, *options)
    assert code == 0, errors
    assert "table" in out or name in ("drain", "checkpoint")
    assert token not in out + errors
    if "--json" in more:
        assert json.loads(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_told_what_its_token_lacks(run, secured, options_of, name):
    more, _ = COMMANDS[name]
    options, token = options_of("insert")
    code, out, errors = run(name, *positional(name, secured.address), *more, *options)
    assert (code, out) == (1, "")
    assert "token with_insert may not " in errors
    assert token[8:20] not in errors


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_a_token_is_told_to_give_one(run, secured, options_of, name):
    more, right = COMMANDS[name]
    options, _ = options_of(right)
    code, out, errors = run(name, *positional(name, secured.address), *more, *options[1:])
    assert (code, out) == (1, "")
    assert "This server wants a token" in errors


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_tls_is_told_to_write_grpcs(run, secured, name):
    more, _ = COMMANDS[name]
    code, out, errors = run(
        name, *positional(name, secured.address.removeprefix("grpcs://")), *more
    )
    assert (code, out) == (1, "")
    assert "grpcs://" in errors


def test_the_environment_is_enough(run, secured, options_of, tmp_path, monkeypatch):
    options_of("sample")
    monkeypatch.setenv("REVERB_TLS_CA", str(secured.tls.ca))
    monkeypatch.setenv("REVERB_TLS_SERVER_NAME", "localhost")
    monkeypatch.setenv("REVERB_TOKEN_FILE", str(tmp_path / "sample.token"))
    assert run("inspect", secured.address, "--no-progress")[0] == 0
    monkeypatch.setenv("REVERB_TLS", "1")
    assert run("inspect", secured.address.removeprefix("grpcs://"), "--no-progress")[0] == 0


def test_a_token_file_that_is_missing_is_named(run, secured):
    code, _, errors = run("inspect", secured.address, "--token-file=/no/such", "--no-progress")
    assert code == 1
    assert "--token-file /no/such cannot be read" in errors
