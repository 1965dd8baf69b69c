# SPDX-License-Identifier: Apache-2.0
"""A scan of a server that is not of this package."""

import pytest

import reverb


@pytest.mark.conformance
def test_a_server_of_dm_reverb_cannot_be_scanned(serve):
    client = reverb.Client(serve("peer", {"name": "table"}))
    client.insert([1], {"table": 1.0})
    with pytest.raises(reverb.errors.UnimplementedError, match=r"it is a server of dm-reverb"):
        next(client.scan("table"))
    # The connection is as good as before.
    assert len(list(client.sample("table", 2))) == 2
