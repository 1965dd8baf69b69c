# SPDX-License-Identifier: Apache-2.0
"""A token that was typed where a path or an address belongs, and what tracebacks show of locals."""

import pathlib
import pickle
import traceback

import pytest

import reverb
from reverb import aio, command, testing
from reverb.cluster import Coordinator, Shard, group_checkpoint
from reverb.core import native
from reverb.errors import InvalidArgumentError, ReverbError
from support.programs import Program, run

TOKEN = native.new_token()
SECRET = TOKEN[8:]

CLIENTS = {
    "path": lambda kind: kind("grpcs://localhost:1", token_file=TOKEN),
    "path object": lambda kind: kind("grpcs://localhost:1", token_file=pathlib.Path(TOKEN)),
    "in a directory": lambda kind: kind("grpcs://localhost:1", token_file=f"/nowhere/{TOKEN}"),
    "address": lambda kind: kind(TOKEN),
    "port": lambda kind: kind(f"localhost:{TOKEN}"),
    "group": lambda kind: kind(f"shards:///{TOKEN}"),
    "socket": lambda kind: kind(f"unix:/{TOKEN}", tls=reverb.ClientTls(ca="ca.crt")),
    "ca": lambda kind: kind("grpcs://localhost:1", tls=reverb.ClientTls(ca=TOKEN)),
    "cert": lambda kind: kind("grpcs://localhost:1", tls=reverb.ClientTls(cert=TOKEN)),
    "both": lambda kind: kind("grpcs://localhost:1", token=TOKEN, token_file=TOKEN),
    "without TLS": lambda kind: kind("grpc://localhost:1", token=TOKEN),
    "bytes": lambda kind: kind("grpcs://localhost:1", token_file=TOKEN.encode()),
    "characters": lambda kind: kind("grpcs://localhost:1", token=f"{TOKEN}\n"),
    "of another form": lambda kind: kind("grpc://localhost:1", token="hush" + SECRET),
}


def told(error):
    """All that a traceback with local variables says, apart from this file's own."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    shown.stack = traceback.StackSummary.from_list(
        [frame for frame in shown.stack if frame.filename != __file__]
    )
    return "".join(shown.format()) + repr(error)


@pytest.mark.parametrize("kind", [reverb.Client, aio.Client, Coordinator])
@pytest.mark.parametrize("place", CLIENTS)
def test_a_client_shows_no_token(kind, place):
    if kind is Coordinator and place in ("socket", "address", "port"):
        place = "group"
    try:
        made = CLIENTS[place](kind)
    except ReverbError as error:
        text = told(error)
        assert "reverb/" in text
    else:
        text = repr(made)
    assert SECRET not in text


@pytest.mark.parametrize("name", ["cert", "key", "client_ca", "tokens"])
def test_a_server_shows_no_token(certificates, name):
    pair = certificates.good()
    files = {"cert": pair.cert, "key": pair.key}
    options = {"tokens": TOKEN} if name == "tokens" else {}
    if not options:
        files[name] = TOKEN
    with pytest.raises(InvalidArgumentError) as caught:
        reverb.Server([testing.table()], tls=reverb.ServerTls(**files), **options)
    text = told(caught.value)
    assert SECRET not in text
    assert TOKEN[:8] in text


OTHERS = {
    "checkpoint": lambda: reverb.checkpointers.read(TOKEN),
    "group": lambda: group_checkpoint.read(TOKEN),
    "host": lambda: reverb.Server([testing.table()], host=TOKEN),
    "http_host": lambda: reverb.Server([testing.table()], http_port=0, http_host=TOKEN),
    "unix_path": lambda: reverb.Server([testing.table()], unix_path=f"/proc/{TOKEN}/a"),
    "max_bytes": lambda: reverb.Server([testing.table()], max_bytes=TOKEN),
    "shard": lambda: Shard(index=0, num_shards=1, group="g", address=TOKEN),
    "call": lambda: reverb.Client(f"{TOKEN}:1", connect_timeout_s=0.1).server_info(),
    "call of a group": lambda: reverb.Client(
        f"shards:///{TOKEN}:1,localhost:1", connect_timeout_s=0.1
    ).server_info(),
}


@pytest.mark.parametrize("place", OTHERS)
def test_a_message_shows_the_beginning_of_a_token(place):
    with pytest.raises(ReverbError) as caught:
        OTHERS[place]()
    assert SECRET not in str(caught.value) + repr(caught.value)
    assert TOKEN[:8] in str(caught.value)


VARIABLES = ("TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_SERVER_NAME", "TLS")


@pytest.mark.parametrize("name", VARIABLES)
def test_the_environment_shows_no_token(monkeypatch, name):
    monkeypatch.setenv(f"REVERB_{name}", TOKEN)
    text = ""
    try:
        reverb.Client("localhost:1" if name == "TLS" else "grpcs://localhost:1")
    except ReverbError as error:
        text = told(error)
    # A name of a certificate may be anything.
    assert bool(text) == (name != "TLS_SERVER_NAME")
    assert SECRET not in text


COMMANDS = [
    ("inspect", TOKEN),
    ("inspect", "grpcs://localhost:1", "--token-file", TOKEN),
    ("inspect", "grpcs://localhost:1", "--tls-ca", TOKEN),
    ("inspect", "localhost:1", "--timeout", TOKEN),
    ("why", TOKEN),
    ("token", "check", TOKEN),
    ("reshard", "--shards=2", TOKEN, "out"),
    ("drain", "grpcs://localhost:1", TOKEN),
    (TOKEN,),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda it: " ".join(it).replace(TOKEN, "TOKEN"))
def test_the_command_shows_no_token(capfd, arguments):
    try:
        code = command.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code in (1, 2)
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    assert printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-file", TOKEN],
        ["--config=", "--tokens", TOKEN, "--check"],
        ["--config=", "--tls-cert", TOKEN, "--tls-key", TOKEN, "--check"],
        ["--config=", "--port", TOKEN],
        ["--config=", TOKEN],
        [f"--config={TOKEN}"],
    ],
)
def test_the_server_command_shows_no_token(arguments):
    source = """
        import sys
        from reverb.server_executable.server_main import app_run_main
        sys.stdout = sys.stderr
        app_run_main()
    """
    with Program(source, *arguments) as program:
        assert program.ended() == 2
        assert program.errors
        assert SECRET not in program.errors


def test_a_name_with_the_prefix_of_tokens_is_shown():
    with reverb.Server([testing.table("rvb_transitions")]) as server:
        client = server.localhost_client()
        with pytest.raises(reverb.errors.TableNotFoundError, match="rvb_transitions"):
            client.sample_batch("other", 1)


def test_a_hidden_token_is_the_same_text_in_a_pickle():
    client = reverb.Client("grpcs://localhost:1", token=TOKEN, pickle_token=True)
    data = pickle.dumps(client)
    assert b"shown_text" not in data
    assert TOKEN.encode() in data
    assert pickle.loads(data)._credentials.token == TOKEN


def test_an_object_whose_constructor_failed_has_a_text():
    """As it stands among the local variables of a traceback."""
    source = r"""
        import dataclasses, importlib, inspect, pkgutil, re
        import reverb
        for module in pkgutil.walk_packages(reverb.__path__, "reverb."):
            if re.search(r"\.(core|adapters|tf_ops)\.|tf_ops$|__main__", module.name):
                continue
            try:
                found = importlib.import_module(module.name)
            except ImportError:
                continue
            for name, kind in inspect.getmembers(found, inspect.isclass):
                if kind.__module__ != module.name or "__repr__" not in vars(kind):
                    continue
                values = (BaseException, str, bytes, float, tuple)
                if issubclass(kind, values) or hasattr(kind, "__members__"):
                    continue
                # All fields of a dataclass are there before anything can fail.
                if dataclasses.is_dataclass(kind):
                    continue
                try:
                    made = object.__new__(kind)
                except TypeError:  # A class of the core, whose objects are whole or not there.
                    continue
                assert isinstance(repr(made), str)
                print(kind.__qualname__)
    """
    assert {"Client", "Server", "Table", "ClientCredentials"} <= set(run(source))
