# SPDX-License-Identifier: Apache-2.0
"""Errors of the command name its options, not arguments of the package."""

import pytest

from reverb import testing

NEVER = "localhost:1"
CASES = {
    ("why", NEVER, "--timeout=-1"): "--timeout must be a number of seconds of at least 0, got -1",
    ("why", NEVER, "--timeout=nan"): "--timeout must be a number of seconds of at least 0, got",
    ("top", NEVER, "--once", "--timeout=1e30"): "--timeout must be at most 1e19 s, got 1e30",
    ("why", NEVER): "No server answered at localhost:1 for 2.5 s. Check the address",
    ("why", NEVER, "--timeout=0.1"): "or raise --timeout. Last error",
    ("why", "grpcs://a:1", "--tls-cert=x"): "--tls-cert needs --tls-key: a certificate and its key",
    ("why", "grpcs://a:1", "--tls-key=x"): "--tls-key needs --tls-cert: ",
    ("why", "grpcs://a:1", "--tls-ca=/nowhere"): "--tls-ca /nowhere cannot be read: ",
    ("why", "grpcs://a:1", "--token-file=/nowhere"): "--token-file /nowhere cannot be read: ",
    ("why", NEVER, "--tls-ca=x"): "--tls-ca, --tls-cert or --tls-server-name has no effect",
    ("configure", NEVER, "--table=t", "--expected-age=0"): "--expected-age must be finite and",
}


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_an_error_names_the_option(run, arguments):
    code, out, errors = run(*arguments)
    assert (code, out) == (1, "")
    assert errors.startswith("reverb: error: ")
    assert CASES[arguments] in errors
    assert "_" not in errors.replace("REVERB_TLS=1", "")


def test_names_of_tables_and_paths_stay(run, tmp_path):
    name = "connect_timeout_s"
    with testing.server([testing.table("tls")]) as client:
        _, _, errors = run("why", client.server_address, name)
    assert f"has no table {name};" in errors
    _, _, errors = run("inspect", str(tmp_path / "token_file"))
    assert str(tmp_path / "token_file") in errors
