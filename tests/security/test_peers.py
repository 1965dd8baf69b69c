# SPDX-License-Identifier: Apache-2.0
"""Other programs at a port with TLS: grpcio, openssl, stunnel, browsers, and peers without TLS."""

import contextlib
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import grpc
import pytest

import reverb
from reverb import testing
from reverb.core import protos
from support.stunnel import STUNNEL, tunnel
from support.waiting import DEADLINE_S

debian_stunnel = pytest.mark.skipif(STUNNEL is None, reason="Debian's package stunnel4 is missing")

SERVICE = "/deepmind.reverb.ReverbService/"


def server_info(channel, **options):
    """Calls ServerInfo as a program of grpcio does; returns names of tables."""
    call = channel.unary_unary(f"{SERVICE}ServerInfo")
    answer = call(b"", timeout=DEADLINE_S, **options)
    return [table.name for table in protos.ServerInfoResponse.FromString(answer).table_info]


@pytest.fixture
def channel(certificates):
    """Opens a channel of grpcio: `with channel(secured) as open`."""

    @contextlib.contextmanager
    def channel(secured, pair=None, ca=None):
        credentials = grpc.ssl_channel_credentials(
            root_certificates=(ca or certificates.ca).read_bytes(),
            private_key=pair and pair.key.read_bytes(),
            certificate_chain=pair and pair.cert.read_bytes(),
        )
        with grpc.secure_channel(f"localhost:{secured.server.port}", credentials) as opened:
            yield opened

    return channel


def bearer(token):
    return [("authorization", f"Bearer {token}")]


# --- grpcio ---------------------------------------------------------------------------------------


def test_grpcio_calls_over_tls(secure, channel):
    with channel(secure()) as opened:
        assert server_info(opened) == ["table"]


def test_grpcio_sends_a_token(secure, channel, tokens):
    token = tokens.add("learner", "sample")
    secured = secure(tokens=tokens.path)
    with channel(secured) as opened:
        assert server_info(opened, metadata=bearer(token)) == ["table"]
        for metadata in ([], bearer("rvb_x"), [("authorization", token)]):
            with pytest.raises(grpc.RpcError) as caught:
                server_info(opened, metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert token not in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            opened.unary_unary(f"{SERVICE}Reset")(b"", timeout=DEADLINE_S, metadata=bearer(token))
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_grpcio_shows_a_certificate(secure, channel, certificates, tokens):
    tokens.add_certificate("learner", "sample", "learner.example")
    secured = secure(client_ca=certificates.ca, tokens=tokens.path)
    with channel(secured, certificates.good("learner.example")) as opened:
        assert server_info(opened) == ["table"]
    for pair in (None, certificates.of_other_ca("learner.example")):
        with channel(secured, pair) as opened, pytest.raises(grpc.RpcError) as caught:
            server_info(opened)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_grpcio_does_not_trust_another_authority(secure, channel, certificates):
    with channel(secure(), ca=certificates.other_ca) as opened:
        with pytest.raises(grpc.RpcError) as caught:
            server_info(opened)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_health_is_open_and_reflection_is_not(secure, channel, tokens):
    tokens.add("learner", "sample")
    with channel(secure(tokens=tokens.path)) as opened:
        assert opened.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=DEADLINE_S)
        method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        with pytest.raises(grpc.RpcError) as caught:
            list(opened.stream_stream(method)(iter([b""]), timeout=DEADLINE_S))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_peer_without_tls_is_told_so_and_does_not_hang(secure):
    """As a client of dm-reverb, which cannot do TLS."""
    begin = time.monotonic()
    address = f"localhost:{secure().server.port}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        server_info(channel)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "TLS" in caught.value.details()
    assert "grpcs://" in caught.value.details()
    assert time.monotonic() - begin < DEADLINE_S / 2


def test_a_token_in_cleartext_is_refused_by_a_port_with_tls(secure, tokens):
    token = tokens.add("learner", "sample")
    address = f"localhost:{secure(tokens=tokens.path).server.port}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        server_info(channel, metadata=bearer(token))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


# --- openssl and TLS itself -----------------------------------------------------------------------


def openssl(port, *options):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "s_client", "-connect", f"localhost:{port}", *map(str, options)]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return done.stdout + done.stderr


def test_openssl_speaks_tls_1_3_with_it_and_nothing_older(secure, certificates):
    secured = secure()
    port = secured.server.port
    told = openssl(port, "-CAfile", certificates.ca, "-alpn", "h2", "-verify_return_error")
    assert "TLSv1.3" in told
    assert "Verify return code: 0 (ok)" in told
    assert "ALPN protocol: h2" in told
    for version in ("-tls1_2", "-tls1_1"):
        assert "Cipher is (NONE)" in openssl(port, version, "-CAfile", certificates.ca)
    assert "Verify return code: 0" not in openssl(port, "-CAfile", certificates.other_ca)
    # The server still serves.
    assert secured.client().server_info()


# --- The HTTP port --------------------------------------------------------------------------------


def get(url, ca, token=None, pair=None):
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    context = None if ca is None else ssl.create_default_context(cafile=ca)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_wants_a_token_and_probes_do_not(secure, certificates, tokens):
    token = tokens.add("operator", "sample", tables="table")
    actor = tokens.add("actor", "insert")
    tables = [testing.table(), testing.table("secret")]
    secured = secure(*tables, tokens=tokens.path, http_port=0, http_tls=True)
    url = f"https://localhost:{secured.server.http_port}"
    for path in ("/livez", "/readyz", "/metrics"):
        assert get(url + path, certificates.ca)[0] == 200
    assert get(f"{url}/api/status", certificates.ca)[0] == 401
    assert get(f"{url}/api/status", certificates.ca, "rvb_x")[0] == 401
    assert get(f"{url}/api/status", certificates.ca, actor)[0] == 403
    code, text = get(f"{url}/api/status", certificates.ca, token)
    assert code == 200
    assert '"table"' in text
    assert "secret" not in text
    assert token not in text


def test_the_page_wants_a_certificate_where_clients_need_one(secure, certificates):
    secured = secure(client_ca=certificates.ca, http_port=0, http_tls=True)
    url = f"https://localhost:{secured.server.http_port}"
    for path in ("/livez", "/readyz", "/metrics"):
        assert get(url + path, certificates.ca)[0] == 200
    code, text = get(f"{url}/api/status", certificates.ca)
    assert code == 403
    assert "This server asks its clients for a certificate" in text
    pair = certificates.good("operator.example")
    assert get(f"{url}/api/status", certificates.ca, pair=pair)[0] == 200
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        get(f"{url}/livez", certificates.ca, pair=certificates.of_other_ca("operator.example"))


def test_a_certificate_of_a_client_says_what_the_page_shows(secure, certificates, tokens):
    tokens.add_certificate("operator", "sample", "operator.example", tables="table")
    tables = [testing.table(), testing.table("secret")]
    secured = secure(
        *tables, client_ca=certificates.ca, tokens=tokens.path, http_port=0, http_tls=True
    )
    url = f"https://localhost:{secured.server.http_port}/api/status"
    code, text = get(url, certificates.ca, pair=certificates.good("operator.example"))
    assert code == 200
    assert '"table"' in text
    assert "secret" not in text
    assert get(url, certificates.ca, pair=certificates.good("nobody.example"))[0] == 401


def test_http_without_tls_at_a_port_with_it_is_told_so(secure):
    secured = secure(http_port=0, http_tls=True)
    code, text = get(f"http://localhost:{secured.server.http_port}/livez", None)
    assert code == 400
    assert "https://" in text


# --- stunnel --------------------------------------------------------------------------------------


@debian_stunnel
def test_a_client_without_tls_works_through_stunnel(secure, certificates, tmp_path):
    """As a client of dm-reverb does."""
    with tunnel(tmp_path, secure().server.port, certificates.ca) as address:
        client = reverb.Client(address, connect_timeout_s=DEADLINE_S)
        client.insert([1.0], {"table": 1.0})
        assert next(client.sample("table"))[0].data[0] == 1.0
        with grpc.insecure_channel(address) as channel:
            assert server_info(channel) == ["table"]


@debian_stunnel
def test_stunnel_shows_a_certificate_for_clients_without_token(
    secure, certificates, tokens, tmp_path
):
    tokens.add_certificate("actors", "insert,sample", "actors.example")
    secured = secure(client_ca=certificates.ca, tokens=tokens.path)
    pair = certificates.good("actors.example")
    with tunnel(tmp_path, secured.server.port, certificates.ca, pair) as address:
        client = reverb.Client(address, connect_timeout_s=DEADLINE_S)
        client.insert([1.0], {"table": 1.0})
        with pytest.raises(reverb.ReverbError, match="certificate actors may not"):
            client.reset("table")
