# SPDX-License-Identifier: Apache-2.0
"""No token gets into a pickle, a text, an error, a log or a checkpoint."""

import base64
import copy
import io
import pathlib
import pickle
import pickletools
import traceback

import pytest

import reverb
from reverb import errors
from reverb._server.credentials import ClientCredentials
from support.programs import Program
from support.waiting import DEADLINE_S

TOKEN = "rvb_" + "s3cr3t-T0ken_" * 3 + "abcd"
# The part of it that its owner may be shown.
SHOWN = TOKEN[:8]


def assert_hidden(text, token=TOKEN):
    """Asserts that no part of a token is there that would help to guess the rest."""
    text = text if isinstance(text, bytes) else str(text).encode()
    assert token[8:20].encode() not in text


def pickled(value, protocol=pickle.HIGHEST_PROTOCOL):
    data = pickle.dumps(value, protocol)
    opcodes = io.StringIO()
    pickletools.dis(data, opcodes)
    return data, opcodes.getvalue()


@pytest.fixture
def client():
    return reverb.Client("grpcs://a:1", token=TOKEN, tls=reverb.ClientTls(server_name="b"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_has_no_token(client, protocol):
    data, opcodes = pickled(client, protocol)
    assert_hidden(data)
    assert_hidden(opcodes)
    again = pickle.loads(data)
    assert again._credentials.token is None
    assert again._options == client._options
    assert again.server_address == "grpcs://a:1"


def test_a_pickle_has_the_token_if_that_is_wanted():
    client = reverb.Client("grpcs://a:1", token=TOKEN, pickle_token=True)
    again = pickle.loads(pickle.dumps(client))
    assert again._credentials.token == TOKEN
    # And so does the pickle of that one.
    assert pickle.loads(pickle.dumps(again))._credentials.token == TOKEN


def test_a_pickle_has_the_paths(tmp_path, certificates):
    path = tmp_path / "token"
    path.write_text(TOKEN)
    tls = reverb.ClientTls(ca=certificates.ca)
    client = reverb.Client("grpcs://a:1", token_file=path, tls=tls)
    data, _ = pickled(client)
    assert_hidden(data)
    again = pickle.loads(data)
    assert again._credentials.token_file == str(path)
    assert again._options["tls"] == tls


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda it: copy.deepcopy([it])[0]])
def test_a_copy_in_the_process_keeps_the_token(client, make):
    copied = make(client)
    assert copied is not client
    assert copied._credentials.token == TOKEN
    assert copied._options == client._options
    assert_hidden(pickle.dumps(copied))


def test_what_holds_a_client_hides_its_token_too(client):
    class Actor:
        def __init__(self):
            self.client = client

    for value in (client, [client], vars(client), client._credentials, vars(Actor())):
        assert_hidden(repr(value))
    assert_hidden(str(client))
    assert repr(client) == "Client, server_address=grpcs://a:1"
    assert_hidden(pickle.dumps(client._credentials))
    assert "token='...'" in repr(client._credentials)


def test_a_pickle_of_the_options_of_a_subclass_hides_it():
    class Mine(reverb.Client):
        def __reduce__(self):
            return dict, (self._options | {"credentials": self._credentials},)

    assert_hidden(pickle.dumps(Mine("grpcs://a:1", token=TOKEN)))


@pytest.mark.parametrize(
    ("token", "kind", "text"),
    [
        ("", errors.InvalidArgumentError, "token must not be empty; None: no token"),
        (
            f"{TOKEN}\n",
            errors.InvalidArgumentError,
            f"token must consist of visible ASCII characters: character {len(TOKEN) + 1} of "
            f"{len(TOKEN) + 1} is none. Was a line end read from a file? token_file takes the path "
            "of the file",
        ),
        (f"ä{TOKEN}", errors.InvalidArgumentError, "token must consist of visible ASCII charact"),
        (f"{TOKEN} x", errors.InvalidArgumentError, "token must consist of visible ASCII charac"),
        (f"{TOKEN}\0", errors.InvalidArgumentError, "token must consist of visible ASCII charac"),
        (TOKEN * 100, errors.InvalidArgumentError, "token must have at most 4096 characters, got"),
        (TOKEN.encode(), TypeError, "token must be a str, got bytes"),
        (pathlib.Path(TOKEN), TypeError, "token must be a str, got PosixPath"),
    ],
)
def test_a_token_that_is_none_is_refused_and_not_shown(token, kind, text):
    with pytest.raises(kind) as caught:
        reverb.Client("grpcs://a:1", token=token)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(text)
    assert_hidden("".join(traceback.format_exception(caught.value)))


def test_there_is_one_token_only(tmp_path):
    with pytest.raises(errors.InvalidArgumentError) as caught:
        reverb.Client("grpcs://a:1", token=TOKEN, token_file=tmp_path / "t")
    assert str(caught.value) == "give only one of token and token_file, got both"
    assert_hidden("".join(traceback.format_exception(caught.value)))
    with pytest.raises(TypeError, match="tls must be") as caught:
        ClientCredentials(TOKEN, None, {"token": TOKEN})
    assert_hidden("".join(traceback.format_exception(caught.value)))


def test_a_refusal_shows_the_first_characters_only(secure, tokens, capfd):
    tokens.add("learner", "sample")
    unknown = tokens.add("gone", "sample")
    tokens.remove(unknown)
    secured = secure(tokens=tokens.path)
    with pytest.raises(errors.UnauthenticatedError) as caught:
        secured.client(token=unknown).server_info()
    assert unknown[:8] in str(caught.value)
    assert_hidden("".join(traceback.format_exception(caught.value)), unknown)
    assert_hidden("".join(capfd.readouterr()), unknown)


def test_a_status_has_no_token(secure, tokens):
    token = tokens.add("learner", "sample,insert,admin")
    secured = secure(tokens=tokens.path)
    client = secured.client(token=token)
    client.insert([1.0], {"table": 1.0})
    with client.trajectory_writer(1) as writer:
        writer.append([1.0])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])
        writer.flush()
        assert_hidden(repr(client.status(with_streams=True)), token)
    assert_hidden(repr(secured.server), token)


def test_a_checkpoint_has_no_token(secure, tokens, root):
    token = tokens.add("all", "sample,insert,update,admin")
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    secured = secure(tokens=tokens.path, checkpointer=checkpointer)
    client = secured.client(token=token)
    client.insert([1.0], {"table": 1.0})
    client.checkpoint()
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert_hidden(path.read_bytes(), token)


EVERYTHING = """
import sys
import reverb

reverb.logging.to_stderr()
address, ca = sys.argv[1:]
client = reverb.Client(
    address, tls=reverb.ClientTls(ca=ca, server_name="localhost"), connect_timeout_s=30
)
client.insert([1.0], {"table": 1.0})
print(client.server_info())
for call in (
    lambda: client.reset("table"),
    lambda: client.server_info(),
    lambda: client.insert([1.0], {"nope": 1.0}),
):
    try:
        call()
    except reverb.ReverbError as error:
        print(type(error).__name__, error)
print("end")
sys.stdin.readline()
client.checkpoint()
"""


def test_no_output_of_a_program_has_the_token_at_any_level(secure, tokens):
    """An error at the end is a traceback of the interpreter."""
    token = tokens.add("actor", "sample,insert", tables="table")
    secured = secure(tokens=tokens.path)
    arguments = (secured.address, secured.tls.ca)
    with Program(EVERYTHING, *arguments, REVERB_TOKEN=token, REVERB_LOG="trace") as program:
        lines = []
        while not lines or lines[-1] != "end":
            lines.append(program.line(DEADLINE_S))
        program.tell()
        assert program.ended() == 1
        assert any(line.startswith("PermissionDeniedError") for line in lines)
        assert_hidden("\n".join(lines), token)
        assert "PermissionDeniedError" in program.errors
        assert_hidden(program.errors, token)


UNPICKLED = """
import base64
import pickle
import sys

client = pickle.loads(base64.b64decode(sys.argv[1]))
try:
    print(sorted(client.server_info()))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("given", "pickle_token", "outcome"),
    [
        ("REVERB_TOKEN", False, "['table']"),
        ("REVERB_TOKEN_FILE", False, "['table']"),
        (None, True, "['table']"),
        (None, False, "UnauthenticatedError This server wants a token: give Client(..., token=..."),
    ],
)
def test_a_client_in_another_process_reads_its_environment(
    secure, tokens, token_path, given, pickle_token, outcome
):
    token = tokens.add("learner", "sample")
    client = secure(tokens=tokens.path).client(token=token, pickle_token=pickle_token)
    values = {"REVERB_TOKEN": token, "REVERB_TOKEN_FILE": str(token_path(token))}
    variables = {} if given is None else {given: values[given]}
    data = base64.b64encode(pickle.dumps(client)).decode()
    with Program(UNPICKLED, data, **variables) as program:
        assert program.line().startswith(outcome)
        assert program.ended() == 0


def test_a_pickled_client_reads_its_token_file_when_loaded(secure, tokens, token_path):
    token = tokens.add("learner", "sample")
    client = secure(tokens=tokens.path).client(token_file=token_path(token))
    data = base64.b64encode(pickle.dumps(client)).decode()
    with Program(UNPICKLED, data) as program:
        assert program.line() == "['table']"
