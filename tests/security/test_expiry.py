# SPDX-License-Identifier: Apache-2.0
"""Operators see a certificate that runs out, and new files that cannot be used."""

import pytest
from cryptography import x509

from reverb import errors
from support.certificates import Linked
from support.pages import get
from support.waiting import wait_until

EXPIRES = "reverb_tls_certificate_expiry_timestamp_seconds"
FAILURES = "reverb_reload_failures_total"
PAGES = {"http_port": 0, "http_host": "127.0.0.1"}


def metrics(server):
    """The series of certificates and tokens, by name and label."""
    lines = [line.rsplit(" ", 1) for line in get(server, "/metrics").text.splitlines()]
    return {name: float(value) for name, value in lines if name.startswith((EXPIRES, FAILURES))}


def expires_at(pair):
    return x509.load_pem_x509_certificate(pair.cert.read_bytes()).not_valid_after_utc.timestamp()


@pytest.fixture
def told(capfd):
    """Waits for `count` lines of a level in the log and returns all: it is written later."""
    lines = []

    def told(level, count):
        def came():
            lines.extend(capfd.readouterr().err.splitlines())
            return sum(f" {level} server" in line for line in lines) >= count

        wait_until(came)
        return [line for line in lines if f" {level} server" in line]

    return told


def test_a_server_without_tls_and_tokens_has_nothing_to_tell(start):
    server = start(**PAGES)
    assert server.status().security.certificate_expires_at is None
    assert server.status().security.reload_failures == {}
    assert metrics(server) == {}


def test_a_good_certificate_says_when_it_expires(secure, certificates):
    pair = certificates.good()
    secured = secure(pair=pair, **PAGES)
    assert secured.client().status().security.certificate_expires_at == expires_at(pair)
    assert metrics(secured.server) == {EXPIRES: expires_at(pair), f'{FAILURES}{{file="tls"}}': 0}


def test_a_certificate_out_of_date_is_one_warning(secure, certificates, tmp_path, told):
    expired, good = certificates.expired(), certificates.good()
    files = Linked(tmp_path / "secret", expired)
    secured = secure(pair=files, **PAGES)
    secured.server.reload_security()
    assert f"TLS: the certificate in {files.cert} has expired at 20" in told("WARN", 1)[0]
    assert metrics(secured.server)[EXPIRES] == expires_at(expired)
    assert secured.server.status().security.certificate_expires_at == expires_at(expired)

    files.swap(good)
    secured.server.reload_security()
    assert metrics(secured.server)[EXPIRES] == expires_at(good)
    assert secured.client().server_info()

    # The next one that is out of date is told of at once. Nothing else was.
    files.swap(certificates.not_yet_valid())
    secured.server.reload_security()
    _, warning = told("WARN", 2)
    assert f"TLS: the certificate in {files.cert} is not valid before 20" in warning


def test_bad_new_files_are_counted_and_the_old_ones_stay(
    secure, certificates, tokens, tmp_path, told
):
    files = Linked(tmp_path / "secret", certificates.good())
    token = tokens.add("any", "sample")
    secured = secure(pair=files, tokens=tokens.path, **PAGES)
    key = tmp_path / "secret" / "data" / "tls.key"
    good = key.read_bytes()

    def failures():
        counts = secured.server.status().security.reload_failures
        assert {f'{FAILURES}{{file="{file}"}}': count for file, count in counts.items()} == {
            name: count for name, count in metrics(secured.server).items() if FAILURES in name
        }
        assert secured.client(token=token).server_info()
        return counts

    assert failures() == {"tls": 0, "tokens": 0}
    key.write_bytes(good[: len(good) // 2])
    for _ in range(2):
        with pytest.raises(errors.InvalidArgumentError, match=r"tls\.key"):
            secured.server.reload_security()
        assert failures() == {"tls": 1, "tokens": 0}
    tokens.write("half a line")
    with pytest.raises(errors.InvalidArgumentError, match=r"line \d+"):
        secured.server.reload_security()
    assert failures() == {"tls": 1, "tokens": 1}
    of_key, of_tokens = told("ERROR", 2)
    assert "tls_key" in of_key
    assert "tokens:" in of_tokens

    key.write_bytes(good)
    tokens.write()
    assert secured.server.reload_security() == []
    files.swap(certificates.good())
    secured.server.reload_security()
    assert failures() == {"tls": 1, "tokens": 1}
