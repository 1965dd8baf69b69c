# SPDX-License-Identifier: Apache-2.0
"""`reverb_server --unix-path`: what it says, what it leaves behind, and commands that use it."""

import signal

import pytest

import reverb
from reverb.command import main as reverb_command
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG
from support.waiting import DEADLINE_S


@pytest.fixture
def path(tmp_path):
    """Its directory does not exist yet."""
    return tmp_path / "sockets" / "reverb"


def server(*arguments, **environment):
    return Program(COMMAND, f"--config={CONFIG}", *arguments, **environment)


def test_it_says_where_it_listens_and_leaves_nothing_behind(path):
    with server(f"--unix-path={path}") as program:
        assert program.line().endswith(f" of all addresses and on unix://{path}: tables t")
        program.wait_for_error(f"of all addresses, without TLS; and on unix://{path}\n")
        client = reverb.Client(f"unix:{path}", connect_timeout_s=DEADLINE_S)
        client.insert([1], {"t": 1.0})
        program.stop()
    assert not path.exists()
    assert path.parent.is_dir()


def test_one_that_was_killed_is_in_nobodys_way(path):
    with server(REVERB_SERVER_UNIX_PATH=str(path)) as program:
        program.line()
        program.kill()
    assert path.is_socket()
    with server(f"--unix-path={path}") as program:
        program.line()
        with server(f"--unix-path={path}") as second:
            assert second.ended() == 1
            assert f"process {program.pid}, or one that it has started, listens" in second.errors
        assert reverb.Client(f"unix:{path}", connect_timeout_s=DEADLINE_S).server_info()


def test_the_config_may_say_so(path):
    config = f"{CONFIG}\nserver {{ unix_path: '{path}' }}"
    with Program(COMMAND, f"--config={config}") as program:
        assert f"unix://{path}: tables t" in program.line()


@pytest.mark.parametrize("action", [[], ["--check"]])
def test_a_path_that_is_too_long_is_found_at_once(action, tmp_path):
    long = f"{tmp_path}/{'x' * 107}"
    with server(f"--unix-path={long}", *action) as program:
        assert program.ended() == 2
        told = f"has {len(long)} bytes, and the path of a Unix socket has at most"
        assert "argument --unix-path: must be the path of a Unix socket: " in program.errors
        assert told in program.errors


def test_another_path_needs_a_restart(path, tmp_path):
    config = tmp_path / "server.textproto"
    config.write_text(f"{CONFIG}\nserver {{ unix_path: '{path}' }}\n")
    with Program(COMMAND, f"--config-file={config}") as program:
        program.line()
        config.write_text(f"{CONFIG}\nserver {{ unix_path: '{path}2' }}\n")
        program.signal(signal.SIGHUP)
        program.wait_for_error(f"server.unix_path '{path}' -> '{path}2' needs a restart")


def test_the_commands_say_what_is_wrong_with_an_address(capsys):
    assert reverb_command(["inspect", "unix:/no/such/socket", "--timeout=0.2"]) == 1
    assert "there is no such socket" in capsys.readouterr().err
    assert reverb_command(["inspect", "unix-abstract:x"]) == 1
    assert "unix-abstract:x is neither a directory nor the address" in capsys.readouterr().err
