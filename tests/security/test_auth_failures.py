# SPDX-License-Identifier: Apache-2.0
"""Refused clients are counted, and logged without their token."""

import pytest

from reverb import errors, testing


def failures(server):
    return {reason: count for reason, count in counts(server).items() if count}


def counts(server):
    return server.status().traffic.auth_failures


def test_a_server_without_tokens_refuses_nobody(start):
    server = start()
    assert counts(server) == dict.fromkeys(
        ["missing", "unknown", "expired", "cleartext", "denied"], 0
    )


def test_refused_callers_are_counted_by_the_reason(secure, tokens):
    actor = tokens.add("actor", "insert", "replay")
    old = tokens.add("old", "sample", until="2020-01-01T00:00:00Z")
    wrong = "rvb_" + "A" * 43
    secured = secure(testing.table("replay"), tokens=tokens.path)
    with pytest.raises(errors.UnauthenticatedError, match="This server wants a token"):
        secured.client().server_info()
    with pytest.raises(errors.UnauthenticatedError, match=r"know this token \(rvb_AAAA…\)"):
        secured.client(token=wrong).server_info()
    with pytest.raises(errors.UnauthenticatedError, match="token old expired at 2020-01-01T"):
        secured.client(token=old).server_info()
    client = secured.client(token=actor)
    with pytest.raises(errors.PermissionDeniedError) as denied:
        client.reset("replay")
    assert str(denied.value).startswith(
        "Reset: token actor may not administer any table (right admin); "
        "it may insert (table replay)."
    )
    assert failures(secured.server) == {"missing": 1, "unknown": 1, "expired": 1, "denied": 1}


def test_the_log_names_who_was_refused_and_no_token(secure, tokens, capfd):
    tokens.add("learner", "sample")
    wrong = "rvb_" + "B" * 43
    secured = secure(tokens=tokens.path)
    for _ in range(3):
        with pytest.raises(errors.UnauthenticatedError):
            secured.client(token=wrong).server_info()
    told = [line for line in capfd.readouterr().err.splitlines() if "refused a caller" in line]
    # The first one; the others are told with their number a minute later.
    assert len(told) == 1
    assert "WARN server peer=127.0.0.1:" in told[0]
    assert "reason=unknown: refused a caller: its token or certificate is not known" in told[0]
    assert "BBBB" not in told[0]
