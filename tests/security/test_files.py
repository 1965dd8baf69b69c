# SPDX-License-Identifier: Apache-2.0
"""Files of certificates and tokens that are none, or that nobody can use."""

import os
import subprocess

import pytest

import reverb
from reverb import errors, testing
from support.waiting import wait_until


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def openssl(*arguments):
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")


@pytest.mark.parametrize("name", ["token_file", "ca"])
def test_a_client_does_not_wait_for_a_pipe(secure, pipe, name):
    secured = secure()
    options = {"token_file": pipe} if name == "token_file" else {"tls": reverb.ClientTls(ca=pipe)}
    with pytest.raises(errors.InvalidArgumentError) as caught:
        secured.client(**options)
    assert str(caught.value) == f"{name} {pipe} is not a file"


@pytest.mark.parametrize("name", ["cert", "key", "client_ca"])
def test_a_pipe_as_a_certificate_does_not_delay_tokens(
    secure, tokens, certificates, tmp_path, name
):
    good = certificates.good()
    files = {"cert": good.cert, "key": good.key, "client_ca": certificates.ca}
    path = tmp_path / "file"
    path.write_bytes(files[name].read_bytes())
    files[name] = path
    token = tokens.add("learner", "sample")
    own = certificates.good("learner.example")
    server = reverb.Server([testing.table()], tls=reverb.ServerTls(**files), tokens=tokens.path)
    client = reverb.Client(
        f"grpcs://127.1:{server.port}",
        tls=reverb.ClientTls(
            ca=certificates.ca, cert=own.cert, key=own.key, server_name="localhost"
        ),
        token=token,
    )
    assert client.server_info()
    path.unlink()
    os.mkfifo(path)
    tokens.remove(token)
    tokens.add("another", "sample")
    with pytest.raises(errors.InvalidArgumentError, match="is not a file"):
        server.reload_security()
    with pytest.raises(errors.UnauthenticatedError):
        client.server_info()
    server.stop()


def test_a_token_file_is_not_read_without_end(secure, tmp_path):
    path = tmp_path / "token"
    path.write_text("rvb_" + "x" * 20_000)
    with pytest.raises(errors.InvalidArgumentError, match="is larger than 4096 bytes"):
        secure().client(token_file=path)


def test_a_key_of_an_unknown_kind_says_which_there_are(certificates, tmp_path):
    key = tmp_path / "p521.key"
    openssl("ecparam", "-genkey", "-name", "secp521r1", "-noout", "-out", str(key))
    with pytest.raises(errors.InvalidArgumentError, match="has an unsupported algorithm: use RSA"):
        reverb.Server([testing.table()], tls=reverb.ServerTls(certificates.good().cert, key))


def test_a_file_may_begin_as_some_editors_write_it(certificates, tmp_path):
    pair = certificates.good()
    cert = tmp_path / "tls.crt"
    cert.write_bytes(b"\xef\xbb\xbf" + pair.cert.read_bytes())
    reverb.Server([testing.table()], tls=reverb.ServerTls(cert, pair.key)).stop()


def test_a_certificate_that_ends_in_its_middle_says_so(certificates, tmp_path):
    pair = certificates.good()
    cert = tmp_path / "tls.crt"
    cert.write_bytes(pair.cert.read_bytes()[:300])
    with pytest.raises(errors.InvalidArgumentError, match="ends within a certificate"):
        reverb.Server([testing.table()], tls=reverb.ServerTls(cert, pair.key))


def test_a_certificate_of_an_authority_is_told_to_sign_another(start, tmp_path):
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    files = ["-keyout", str(key), "-out", str(cert)]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files)
    server = start(testing.table(), tls=reverb.ServerTls(cert, key))
    tls = reverb.ClientTls(ca=cert, server_name="localhost")
    client = reverb.Client(f"grpcs://127.1:{server.port}", tls=tls)
    with pytest.raises(errors.UnavailableError, match="is that of a CA"):
        client.server_info()


def test_a_server_of_several_that_is_left_out_is_told_of(secure, certificates, capfd):
    good, bad = secure(), secure(pair=certificates.wrong_name())
    hosts = ",".join(it.address.removeprefix("grpcs://") for it in (good, bad))
    client = reverb.Client(f"grpcs://{hosts}", tls=good.tls)
    for _ in range(4):
        assert client.server_info()
    told = []
    wait_until(lambda: told.append(capfd.readouterr().err) or "is left out" in "".join(told))
    assert "its certificate is for elsewhere.example" in "".join(told)
