# SPDX-License-Identifier: Apache-2.0
"""Arguments of `Server` and `Client` for TLS and tokens."""

import dataclasses
import pathlib

import pytest

import reverb
from reverb import testing
from reverb._server.credentials import ClientCredentials, ServerSecurity
from reverb.errors import InvalidArgumentError


def test_paths_are_kept_as_text():
    tls = reverb.ServerTls(pathlib.Path("a.crt"), b"a.key", client_ca="ca.crt")
    assert (tls.cert, tls.key, tls.client_ca) == ("a.crt", "a.key", "ca.crt")
    assert reverb.ClientTls(ca=pathlib.Path("ca.crt")) == reverb.ClientTls(ca="ca.crt")
    with pytest.raises(dataclasses.FrozenInstanceError):
        tls.cert = "b.crt"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (
            lambda: reverb.ServerTls(None, "k"),
            InvalidArgumentError,
            "ServerTls.cert must be the path of a file, got None: a server that speaks TLS needs a "
            "certificate and its key",
        ),
        (
            lambda: reverb.ServerTls("c", None),
            InvalidArgumentError,
            "ServerTls.key must be the path of a file, got None: a server that speaks TLS needs a "
            "certificate and its key",
        ),
        (
            lambda: reverb.ServerTls("c", ""),
            InvalidArgumentError,
            "ServerTls.key must be the path of a file, got ''",
        ),
        (
            lambda: reverb.ServerTls("c", "k", "a\0"),
            InvalidArgumentError,
            "ServerTls.client_ca must be the path of a file, got 'a\\x00'",
        ),
        (lambda: reverb.ServerTls(3, "k"), TypeError, "ServerTls.cert must be a path, got int"),
        (
            lambda: reverb.ServerTls("c", "k", max_connection_age_s=0.5),
            InvalidArgumentError,
            "ServerTls.max_connection_age_s must be from 1 to 31557600 seconds, got 0.5",
        ),
        (
            lambda: reverb.ServerTls("c", "k", max_connection_age_s=float("nan")),
            InvalidArgumentError,
            "ServerTls.max_connection_age_s must be from 1 to 31557600 seconds, got nan",
        ),
        (
            lambda: reverb.ClientTls(cert="c"),
            InvalidArgumentError,
            "ClientTls.cert needs ClientTls.key: a certificate and its key belong together, got "
            "only cert='c'",
        ),
        (
            lambda: reverb.ClientTls(key="k"),
            InvalidArgumentError,
            "ClientTls.key needs ClientTls.cert: a certificate and its key belong together, got "
            "only key='k'",
        ),
        (
            lambda: reverb.ClientTls(server_name=""),
            InvalidArgumentError,
            "ClientTls.server_name must be the name in the server's certificate, got ''",
        ),
        (
            lambda: reverb.ClientTls(server_name=5),
            TypeError,
            "ClientTls.server_name must be a str or None, got 5",
        ),
        (lambda: reverb.ClientTls(ca=b""), InvalidArgumentError, "ClientTls.ca must be the path "),
        (
            lambda: reverb.Client("grpcs://a:1", tls="ca.crt"),
            TypeError,
            "tls must be a reverb.ClientTls or None, got str",
        ),
        (
            lambda: reverb.Client("grpcs://a:1", token_file=""),
            InvalidArgumentError,
            "token_file must be the path of a file, got ''",
        ),
        (
            lambda: reverb.Client("grpcs://a:1", token_file=1),
            TypeError,
            "token_file must be a path, got int",
        ),
    ],
)
def test_what_cannot_be_used_is_named(make, kind, text):
    with pytest.raises(kind) as caught:
        make()
    assert type(caught.value) is kind
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"tls": "c"}, TypeError, "tls must be a reverb.ServerTls or None, got str"),
        ({"tokens": ""}, InvalidArgumentError, "tokens must be the path of a file, got ''"),
        ({"tokens": 5}, TypeError, "tokens must be a path, got int"),
        (
            {"insecure_tokens": True},
            InvalidArgumentError,
            "insecure_tokens=True needs tokens, got tokens=None",
        ),
        ({"http_tls": True}, InvalidArgumentError, "http_tls=True needs tls, got tls=None"),
        (
            {"http_tls": True, "tls": reverb.ServerTls("c", "k")},
            InvalidArgumentError,
            "http_tls=True needs http_port, got http_port=None",
        ),
    ],
)
def test_what_a_server_cannot_use_is_named(options, kind, text):
    with pytest.raises(kind) as caught:
        reverb.Server([testing.table()], **options)
    assert (type(caught.value), str(caught.value)) == (kind, text)


def test_the_core_gets_absolute_paths_and_links_stay_links(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    monkeypatch.chdir(tmp_path)
    tls = reverb.ServerTls("link/tls.crt", "../k", "ca.crt", 60)
    security = ServerSecurity.of_arguments(tls, pathlib.Path("t"), True, False, None)
    assert security == ServerSecurity(
        cert=f"{tmp_path}/link/tls.crt",
        key=f"{tmp_path.parent}/k",
        client_ca=f"{tmp_path}/ca.crt",
        max_connection_age_s=60.0,
        tokens=f"{tmp_path}/t",
        insecure_tokens=True,
        http_tls=False,
    )
    of_client = ClientCredentials(None, "t", reverb.ClientTls("ca", "c", "k", "n"))
    assert {name: getattr(of_client, name) for name in of_client.__slots__} == {
        "token": None,
        "token_file": f"{tmp_path}/t",
        "ca": f"{tmp_path}/ca",
        "cert": f"{tmp_path}/c",
        "key": f"{tmp_path}/k",
        "server_name": "n",
    }
    assert ServerSecurity.of_arguments(None, None, False, False, 0) is None
    of_tokens = ServerSecurity.of_arguments(None, "t", False, False, 0)
    assert (of_tokens.cert, of_tokens.tokens) == (None, f"{tmp_path}/t")


def test_a_server_without_tls_and_tokens_has_nothing_to_reload(start):
    assert start().reload_security() == []


def test_a_client_in_the_process_needs_no_credentials(secure, tokens):
    tokens.add("nobody", "sample", tables="other")
    secured = secure(tokens=tokens.path)
    client = secured.server.localhost_client()
    client.insert([1.0], {"table": 1.0})
    assert next(client.sample("table"))[0].data[0] == 1.0
    client.reset("table")
    assert client.server_info()["table"].current_size == 0


@pytest.mark.parametrize(
    "options",
    [{"token": "rvb_secret"}, {"tls": reverb.ClientTls(server_name="localhost")}],
    ids=["token", "tls"],
)
def test_what_an_address_without_tls_makes_useless_is_refused(options):
    with pytest.raises(InvalidArgumentError, match="grpcs://") as caught:
        reverb.Client("a.example:1", **options)
    assert "secret" not in str(caught.value)
