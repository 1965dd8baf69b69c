# SPDX-License-Identifier: Apache-2.0
"""Every fault of a certificate and of a token, for every way to call: the error comes at once."""

import contextlib
import time

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from support.waiting import PATIENCE
from support.writer_kinds import EVERY_WRITER

# The client's error about a fault in the server's certificate; `None`: there is no fault.
CERTIFICATES = {
    "good": None,
    "of_other_ca": "no CA that this client knows has signed its certificate",
    "wrong_name": "its certificate is for elsewhere.example, not for localhost",
    "expired": "its certificate has expired at ",
    "not_yet_valid": "its certificate is not valid before ",
}
# The server's error about a token.
TOKENS = {
    "right": None,
    "none": "This server wants a token: give Client(..., token=...) or set REVERB_TOKEN.",
    "wrong": "This server does not know this token (rvb_",
    "expired": "The access of token late expired at 2020-01-01T00:00:00Z: ask for a new one.",
}
# What is wrong with both: a certificate is looked at before there is a token.
FAULTS = pytest.mark.parametrize(
    ("certificate", "token"),
    [
        *(("good", token) for token in TOKENS),
        *((certificate, "right") for certificate in CERTIFICATES if certificate != "good"),
        ("of_other_ca", "wrong"),
    ],
)
# Far less than a client waits for a server that does not answer, on a slow machine, too.
AT_ONCE_S = 20.0 * PATIENCE


def call(client):
    client.server_info()


def insert(client):
    client.insert([1.0], {"table": 1.0})


def sample(client):
    client.insert([1.0], {"table": 1.0})
    assert next(client.sample("table"))[0].data[0] == 1.0


def sample_batch(client):
    client.insert([1.0], {"table": 1.0})
    assert client.sample_batch("table", 1).data[0].shape == (1, 1)


def scan(client):
    assert len(list(client.scan("table"))) == 1


def write(client):
    with client.trajectory_writer(1, validate_items=False) as writer:
        append(writer)


def legacy_write(client):
    EVERY_WRITER["writer"](client, "table")


def sequence_write(client):
    EVERY_WRITER["sequence_writer"](client, "table")


def update(client):
    client.update_priorities("table", [1], [1.0])


def status(client):
    assert "table" in client.status().tables


def checkpoint_status(client):
    client.checkpoint_status()


WAYS = [
    call,
    insert,
    sample,
    sample_batch,
    scan,
    write,
    legacy_write,
    sequence_write,
    update,
    status,
    checkpoint_status,
]


def append(writer):
    writer.append([1.0])
    writer.create_item("table", 1.0, [writer.history[0][-1:]])
    writer.flush()


@contextlib.contextmanager
def at_once():
    """Asserts that a call does not wait for another server."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < AT_ONCE_S


@contextlib.contextmanager
def refused(certificate, token):
    """Asserts what comes of a certificate and a token."""
    if CERTIFICATES[certificate] is not None:
        kind, text = errors.UnavailableError, CERTIFICATES[certificate]
    elif TOKENS[token] is not None:
        kind, text = errors.UnauthenticatedError, TOKENS[token]
    else:
        yield
        return
    with at_once(), pytest.raises(errors.ReverbError) as caught:
        yield
    assert type(caught.value) is kind
    assert isinstance(caught.value, RuntimeError)
    assert text in str(caught.value)


@pytest.fixture
def given(tokens):
    """The token of a client, by its kind."""
    right = tokens.add("right", "sample,insert,update,admin")
    late = tokens.add("late", "sample,insert,update,admin", until="2020-01-01T00:00:00Z")
    gone = tokens.add("gone", "sample")
    tokens.remove(gone)
    return {"right": right, "none": None, "wrong": gone, "expired": late}


@pytest.fixture
def client_of(secure, tokens, given, certificates):
    """A client with a token, of a server with a certificate."""

    def client_of(certificate, token, **options):
        pair = getattr(certificates, certificate)()
        secured = secure(
            testing.table(max_times_sampled=0), pair=pair, tokens=tokens.path, **options
        )
        return secured.client(token=given[token], connect_timeout_s=60)

    return client_of


@FAULTS
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_fault_ends_the_call(client_of, way, certificate, token):
    client = client_of(certificate, token)
    if way is scan and (certificate, token) == ("good", "right"):
        insert(client)
    with refused(certificate, token):
        way(client)


@FAULTS
def test_a_fault_ends_a_writer_that_has_begun(
    secure, given, tokens, certificates, certificate, token
):
    """The server is started again, and has got a fault."""
    before = secure()
    client = before.client(token=given[token], connect_timeout_s=60)
    writer = client.trajectory_writer(1, validate_items=False)
    append(writer)
    before.server.stop()
    secure(port=before.server.port, pair=getattr(certificates, certificate)(), tokens=tokens.path)
    with refused(certificate, token):
        append(writer)
        append(writer)
    # It raises its error once more.
    with contextlib.suppress(errors.ReverbError):
        writer.close()


@FAULTS
def test_a_fault_ends_a_sampler_that_has_begun(
    secure, given, tokens, certificates, certificate, token
):
    before = secure()
    client = before.client(token=given[token], connect_timeout_s=60)
    client.insert([1.0], {"table": 1.0})
    sampled = client.sample("table", num_samples=1000, emit_timesteps=False)
    assert next(sampled).data[0][0] == 1.0
    before.server.stop()
    after = secure(
        port=before.server.port, pair=getattr(certificates, certificate)(), tokens=tokens.path
    )
    after.server.localhost_client().insert([2.0], {"table": 1.0})
    with refused(certificate, token):
        while next(sampled).data[0][0] != 2.0:
            pass


# --- Addresses that do not fit the port -----------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_address_without_tls_is_told_to_have_it(secure, way):
    secured = secure()
    client = reverb.Client(secured.address.removeprefix("grpcs://"), connect_timeout_s=60)
    with at_once(), pytest.raises(errors.ReverbError, match="grpcs://") as caught:
        way(client)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_address_with_tls_is_told_that_the_port_has_none(start, certificates, way):
    server = start(testing.table())
    tls = reverb.ClientTls(ca=certificates.ca, server_name="localhost")
    client = reverb.Client(f"grpcs://127.1:{server.port}", tls=tls, connect_timeout_s=60)
    with at_once(), pytest.raises(errors.UnavailableError, match="write host:port"):
        way(client)


# --- Client certificates --------------------------------------------------------------------------


CLIENT_CERTIFICATES = ("good", "none", "of_other_ca", "expired", "not_yet_valid")


@pytest.mark.parametrize("certificate", CLIENT_CERTIFICATES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_server_that_wants_a_certificate_gets_a_good_one(secure, certificates, way, certificate):
    secured = secure(client_ca=certificates.ca)
    pair = None
    if certificate != "none":
        pair = getattr(certificates, certificate)("learner.example")
    tls = reverb.ClientTls(
        ca=certificates.ca,
        cert=pair and pair.cert,
        key=pair and pair.key,
        server_name="localhost",
    )
    client = secured.client(tls=tls, connect_timeout_s=60)
    if way is scan and certificate == "good":
        insert(client)
    if certificate == "good":
        if way is update:
            insert(client)
        way(client)
        return
    with at_once(), pytest.raises(errors.UnavailableError, match="certificate"):
        way(client)


def test_a_certificate_may_stand_for_a_token(secure, tokens, certificates):
    tokens.add_certificate("learner", "sample", "Learner.example")
    secured = secure(client_ca=certificates.ca, tokens=tokens.path)

    def client(name, **options):
        pair = certificates.good(name)
        tls = reverb.ClientTls(certificates.ca, pair.cert, pair.key, "localhost")
        return secured.client(tls=tls, **options)

    assert set(client("learner.example").server_info()) == {"table"}
    with pytest.raises(errors.PermissionDeniedError, match="certificate learner may not insert"):
        insert(client("learner.example"))
    with pytest.raises(errors.UnauthenticatedError, match=r"certificate \(other\.example\)"):
        client("other.example").server_info()
    # A token counts more.
    all_rights = tokens.add("all", "sample,insert")
    secured.server.reload_security()
    insert(client("learner.example", token=all_rights))


# --- Rights ---------------------------------------------------------------------------------------


def test_an_error_names_call_table_and_right(secure, tokens):
    reader = tokens.add("learner", "sample,update", tables="replay")
    actor = tokens.add("actor", "insert", tables="replay")
    tables = [testing.table("replay"), testing.table("secret")]
    secured = secure(*tables, tokens=tokens.path)
    for token, table, text in (
        (
            reader,
            "replay",
            "InsertStream: token learner may not insert into any table; it may sample and update "
            "(table replay).",
        ),
        (
            actor,
            "secret",
            "InsertStream: token actor may not insert into table secret; it may insert (table "
            "replay).",
        ),
    ):
        # Without the client's own check, which does not see tables that it has no right on.
        writer = secured.client(token=token).trajectory_writer(1, validate_items=False)
        writer.append([1.0])
        writer.create_item(table, 1.0, [writer.history[0][-1:]])
        with pytest.raises(errors.PermissionDeniedError) as caught:
            writer.flush()
        assert str(caught.value) == text


INSERTS = {
    "insert": lambda client, table: client.insert([1.0], {table: 1.0}),
    "insert_batch": lambda client, table: client.insert_batch([np.zeros(2)], {table: 1.0}),
    **EVERY_WRITER,
}


@pytest.mark.parametrize("way", INSERTS)
def test_every_way_to_insert_is_told_the_right_that_is_missing(secure, tokens, way):
    tables = [testing.table("replay"), testing.table("secret")]
    actor = tokens.add("actor", "insert", tables="replay")
    operator = tokens.add("operator", "insert")
    secured = secure(*tables, tokens=tokens.path)
    with pytest.raises(errors.PermissionDeniedError) as caught:
        INSERTS[way](secured.client(token=actor), "secret")
    assert "InsertStream: token actor may not insert into table secret" in str(caught.value)
    # A client that may see all tables is told that the table does not exist.
    with pytest.raises(errors.TableNotFoundError, match="nothing"):
        INSERTS[way](secured.client(token=operator), "nothing")
    INSERTS[way](secured.client(token=actor), "replay")
    assert tables[0].info.current_size >= 1
    assert tables[1].info.current_size == 0


def test_a_writer_whose_token_lost_a_right_fails_to_reconnect(secure, tokens):
    token = tokens.add("actor", "insert")
    before = secure(tokens=tokens.path)
    writer = before.client(token=token, connect_timeout_s=60).trajectory_writer(1)
    append(writer)
    tokens.remove(token)
    tokens.add("another", "sample")
    assert before.server.reload_security()
    # An open stream goes on.
    append(writer)
    before.server.stop()
    secure(port=before.server.port, tokens=tokens.path)
    with refused("good", "wrong"):
        append(writer)
        append(writer)
    with contextlib.suppress(errors.ReverbError):
        writer.close()


def test_a_token_of_some_tables_sees_nothing_of_the_whole_server(secure, tokens, tmp_path):
    limited = tokens.add("learner", "sample", tables="replay")
    monitor = tokens.add("monitor", "sample")
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "checkpoints"))
    tables = [testing.table("replay"), testing.table("secret")]
    secured = secure(*tables, tokens=tokens.path, checkpointer=checkpointer)
    path = secured.server.localhost_client().checkpoint()
    seen = {}
    for name, token in (("limited", limited), ("monitor", monitor)):
        client = secured.client(token=token)
        checkpoints = client.status().checkpoints
        seen[name] = checkpoints.latest_path, client.checkpoint_status().latest_path
    assert seen == {"limited": (None, None), "monitor": (path, path)}
