# SPDX-License-Identifier: Apache-2.0
"""Tokens over Unix sockets: servers that get one, and clients that need one."""

import os
import pathlib
import tempfile

import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError
from support.programs import Program, run
from support.waiting import DEADLINE_S

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# A server of another user, or of this one.
SERVER = """
    import os
    import sys
    import reverb
    from reverb import testing

    path, user = sys.argv[1], int(sys.argv[2])
    os.mkdir(os.path.dirname(path), 0o755)
    os.chown(os.path.dirname(path), user, user)
    os.umask(0)  # Everybody may connect.
    os.setuid(user)
    server = reverb.Server([testing.table()], unix_path=path)
    print(server.unix_address)
    server.wait()
"""
CLIENT = """
    import os
    import sys
    import reverb

    address, user, token = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
    os.setuid(user)
    try:
        print(*reverb.Client(address, token=token, connect_timeout_s=20).server_info())
    except reverb.errors.ReverbError as error:
        print(type(error).__name__, error)
"""
NOBODY = 65534


@pytest.fixture
def path():
    """Where a socket may be, for servers of other users, too: each directory may be entered."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        directory.chmod(0o755)
        closed = [it for it in directory.parents if not it.stat().st_mode & 0o001]
        if closed:
            pytest.skip(f"{closed[0]} is closed to other users")
        yield directory / "s" / "reverb"


@pytest.fixture
def learner(tokens):
    """The token that the server knows."""
    return tokens.add("learner", "sample")


@pytest.fixture
def address(start, tmp_path, tokens, learner):
    """A server with tokens, on a socket that its own process does not recognise."""
    directory = tmp_path / "sockets"
    start(unix_path=directory / "reverb", tokens=tokens.path, host="127.0.0.1")
    (tmp_path / "link").symlink_to(directory)
    return f"unix:{tmp_path}/link/reverb"


def test_tokens_are_checked_as_on_the_port(address, learner, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(learner)
    for options in ({"token": learner}, {"token_file": tmp_path / "token"}):
        client = reverb.Client(address, connect_timeout_s=DEADLINE_S, **options)
        assert set(client.server_info()) == {"table"}
        with pytest.raises(PermissionDeniedError, match="learner may not insert"):
            client.insert([1], {"table": 1.0})
    for options in ({}, {"token": "rvb_wrong"}):
        with pytest.raises(UnauthenticatedError):
            reverb.Client(address, **options).server_info()
    monkeypatch.setenv("REVERB_TOKEN", learner)
    assert reverb.Client(address).server_info()


def test_tls_is_for_the_port_alone(secure, tmp_path, certificates):
    secured = secure(unix_path=tmp_path / "reverb", client_ca=certificates.ca)
    assert run(CLIENT_WITHOUT_TLS, secured.server.unix_address, REVERB_TLS="1") == ["table"]
    with pytest.raises(InvalidArgumentError, match="tls has no effect on a Unix socket"):
        reverb.Client(secured.server.unix_address, tls=reverb.ClientTls(ca=certificates.ca))
    with pytest.raises(InvalidArgumentError, match="a Unix socket has no TLS"):
        reverb.Client(f"grpcs://{secured.server.unix_address}")


CLIENT_WITHOUT_TLS = """
    import sys
    import reverb

    print(*reverb.Client(sys.argv[1], connect_timeout_s=20).server_info())
"""


@as_root
@pytest.mark.parametrize(
    ("server", "client", "gets_it"),
    [(0, NOBODY, True), (NOBODY, 0, False)],
)
def test_a_token_goes_to_the_same_user_and_to_root(path, server, client, gets_it):
    with Program(SERVER, path, server) as program:
        address = program.line()
        (line,) = run(CLIENT, address, client, "rvb_secret")
        if gets_it:
            assert line == "table"
        else:
            assert line.startswith(f"UnavailableError No server could be reached at unix:{path}: ")
            told = "a token is sent only to a server of the same user"
            assert f"the server there runs as user {server}, and over a Unix socket {told}" in line
            assert f"(here {client}) or of root: use TLS" in line
            assert "secret" not in line
        assert run(CLIENT, address, client, "") == ["table"], "without a token it is nobody's"
        (line,) = run(CLIENT, address, client, "", REVERB_TOKEN="rvb_secret")
        assert (line == "table") == gets_it, "one of the environment is the same"


@pytest.mark.usefixtures("learner")
def test_a_server_with_tokens_needs_a_port_that_is_safe(tmp_path, tokens):
    with pytest.raises(InvalidArgumentError, match="tokens would travel in cleartext"):
        reverb.Server([testing.table()], unix_path=tmp_path / "reverb", tokens=tokens.path)
    assert not (tmp_path / "reverb").exists()


def test_callers_without_a_token_are_named_by_their_process(address, capfd):
    with pytest.raises(UnauthenticatedError):
        reverb.Client(address).server_info()
    assert f"peer=unix:{os.getpid()} reason=missing" in capfd.readouterr().err
