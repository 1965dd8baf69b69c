# SPDX-License-Identifier: Apache-2.0
"""A server at its limit of connections: operators get in, on a few that are kept, and no others."""

import contextlib
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import reverb
from reverb import command
from reverb.command.server_arguments import OperatorClient
from reverb.core import native, protos
from reverb.errors import UnavailableError
from support.certificates import TokensFile
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG
from support.waiting import DEADLINE_S, wait_until
from support.wire.raw_http2 import Http2
from support.wire.wire_client import WireClient

LIMIT, KEPT = 3, 8
REFUSED = f"it refused the connection: Limits.connections is {LIMIT}, and as many clients are conn"
KEPT_FOR_OTHERS = f"Limits.connections is {LIMIT}, .* This connection is kept for calls by which"
# In this order: nothing is inserted after a drain.
COMMANDS = {
    "why": [],
    "top": ["--once"],
    "configure": ["--table=t", "--max-size=30"],
    "pause": ["--table=t"],
    "resume": ["--table=t"],
    "reset": ["--table=t", "--yes"],
    "checkpoint": [],
    "drain": ["--timeout=0"],
}


class FullServer:
    """A server with as many clients as it takes, in a process of its own."""

    def __init__(self, stack, directory, *, is_secured):
        options = [f"--limit-connections={LIMIT}", f"--checkpoint-dir={directory / 'saved'}"]
        self.tokens, self.options, client_options = TokensFile(directory / "tokens"), [], {}
        if is_secured:
            native.self_signed(str(directory), ["localhost"], 1)
            token = self.tokens.add("learner", "insert,sample,update")
            options += [f"--tls-cert={directory}/tls.crt", f"--tls-key={directory}/tls.key"]
            options += [f"--tokens={self.tokens.path}"]
            self.options = [f"--tls-ca={directory}/ca.crt", "--tls-server-name=localhost"]
            self.options.append(f"--token-file={directory}/operator")
            tls = reverb.ClientTls(ca=directory / "ca.crt", server_name="localhost")
            client_options = {"tls": tls, "token": token}
            for name, rights in (("operator", "admin,sample"), ("writer", "insert")):
                path = directory / name
                path.touch(mode=0o600)
                path.write_text(self.tokens.add(name, rights))
        program = Program(COMMAND, f"--config={CONFIG}", "--host=127.0.0.1", *options)
        self.program = stack.enter_context(program)
        self.port = int(re.search(r" on port (\d+) ", program.line())[1])
        self.address = f"{'grpcs://' if is_secured else ''}127.0.0.1:{self.port}"
        self._client_options = client_options
        self.learners = [self.client() for _ in range(LIMIT)]
        for learner in self.learners:
            learner.server_info()

    def client(self, make=reverb.Client, connect_timeout_s=DEADLINE_S):
        return make(self.address, connect_timeout_s=connect_timeout_s, **self._client_options)

    def run(self, name, *more):
        """The exit code of a command."""
        return command.main([name, self.address, *self.options, *more])


@pytest.fixture(params=["plain", "tls"])
def full(request, tmp_path):
    with contextlib.ExitStack() as stack:
        yield FullServer(stack, tmp_path, is_secured=request.param == "tls")


@pytest.fixture
def plain(tmp_path):
    with contextlib.ExitStack() as stack:
        yield FullServer(stack, tmp_path, is_secured=False)


def kept(port):
    """A connection like that of a command, which says nothing yet."""
    return Http2(port, first=b"reverb operator\r\n")


def test_each_command_works_under_a_flood_of_learners(full, capsys):
    is_over = threading.Event()

    def flood():
        refusals = 0
        while not is_over.is_set():
            with pytest.raises(UnavailableError):
                full.client(connect_timeout_s=0.1).server_info()
            refusals += 1
        return refusals

    with ThreadPoolExecutor(8) as threads:
        flooding = [threads.submit(flood) for _ in range(8)]
        try:
            codes = {name: full.run(name, *more) for name, more in COMMANDS.items()}
        finally:
            is_over.set()
        assert all(it.result() for it in flooding)
    with pytest.raises(UnavailableError, match=re.escape(REFUSED)):
        full.client(connect_timeout_s=2.0).server_info()
    assert codes == dict.fromkeys(COMMANDS, 0), capsys.readouterr().err


def test_a_kept_connection_is_for_nothing_else(full):
    operator = full.client(OperatorClient, 0.5)
    with pytest.raises(UnavailableError, match=KEPT_FOR_OTHERS):
        operator.mutate_priorities("t", {1: 1.0})
    assert set(operator.status().tables) == {"t"}
    with pytest.raises(UnavailableError, match=KEPT_FOR_OTHERS):
        operator.mutate_priorities("t", {1: 1.0})
    full.learners.pop().close()
    full.client(OperatorClient).mutate_priorities("t", {1: 1.0})


def test_a_token_without_the_right_gets_nothing(tmp_path, capsys):
    with contextlib.ExitStack() as stack:
        full = FullServer(stack, tmp_path, is_secured=True)
        full.options[-1] = f"--token-file={tmp_path}/writer"
        for name in ("why", "configure", "drain"):
            assert full.run(name, *COMMANDS[name]) == 1, name
            out, errors = capsys.readouterr()
            assert out == ""
            assert re.search(KEPT_FOR_OTHERS, errors), errors
        assert full.learners[0].status().draining is None
        assert full.learners[0].server_info()["t"].max_size == 20


def test_a_client_of_grpc_is_refused_as_ever(plain):
    with WireClient(plain.address) as wire:
        for method in ("ServerInfo", "Reset"):
            with pytest.raises(grpc.RpcError) as failed:
                wire.unary(method, protos.ServerInfoRequest())
            assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


def test_those_who_ask_for_none_of_its_calls_take_no_kept_one(plain):
    """Of those that made no call, the oldest makes room."""
    with contextlib.ExitStack() as stack:
        asking = [stack.enter_context(kept(plain.port)) for _ in range(3 * KEPT)]
        assert plain.run("why") == 0
        ended = [it for it in asking if has_ended(it.socket)]
        assert len(ended) >= 2 * KEPT


def has_ended(connection):
    """Whether the server closes a connection soon; those that stay open are silent."""
    connection.settimeout(0.2)
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while connection.recv(1 << 16):
            pass
        return True
    return False


@pytest.mark.slow
def test_the_kept_ones_have_a_limit_and_are_handed_on(plain, capsys):
    with contextlib.ExitStack() as stack:
        for _ in range(KEPT):
            operator = stack.enter_context(kept(plain.port))
            call = operator.open("/reverb.ReplayService/Status")
            operator.send(call, b"", end=True)
            operator.end_of(call)
        assert plain.run("why") == 1
        assert REFUSED in capsys.readouterr().err
        wait_until(lambda: plain.run("why") == 0)


def test_whoever_says_nothing_is_told_the_limit(plain):
    for first in (b"", b"reverb oper"):
        with socket.create_connection(("127.0.0.1", plain.port), timeout=DEADLINE_S) as silent:
            silent.sendall(first)
            assert b"Limits.connections is 3, and as many" in silent.makefile("rb").read()
