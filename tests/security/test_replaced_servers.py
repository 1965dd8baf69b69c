# SPDX-License-Identifier: Apache-2.0
"""A server with a wrong certificate is replaced by one with a right certificate."""

import time

import pytest

import reverb
from reverb import errors, testing
from support.waiting import PATIENCE

# How long a client may need to find the new server. It looks after 1 s, then after 2 s more.
FOUND_S = 20 * PATIENCE


@pytest.mark.parametrize("wrong", ["wrong_name", "of_other_ca", "expired"])
@pytest.mark.parametrize("calls", [1, 20])
def test_a_right_server_in_place_of_a_wrong_one_is_soon_found(secure, certificates, wrong, calls):
    """However often the client has called the wrong one."""
    secured = secure(pair=getattr(certificates, wrong)())
    client = secured.client()
    for _ in range(calls):
        with pytest.raises(errors.UnavailableError, match="certificate"):
            client.server_info()
    secured.server.stop()

    tls = reverb.ServerTls(*vars(certificates.good()).values())
    with reverb.Server([testing.table()], secured.server.port, tls=tls):
        began = time.monotonic()
        while True:
            try:
                assert list(client.server_info()) == ["table"]
                break
            except errors.UnavailableError:
                assert time.monotonic() - began < FOUND_S
                time.sleep(0.05)
        client.insert([0.0], {"table": 1.0})
        (sample,) = client.sample("table")
    assert sample
