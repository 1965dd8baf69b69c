# SPDX-License-Identifier: Apache-2.0
"""A group whose servers speak TLS and want tokens; its actors have theirs from the environment."""

import numpy as np
import pytest
import ray

import reverb
from reverb.errors import UnauthenticatedError
from support.certificates import Certificates, TokensFile

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]


@pytest.fixture
def secured(start_group, tmp_path, root):
    """A group with TLS and tokens, and the options of clients that have the token of an actor."""
    certificates = Certificates(tmp_path)
    # Servers listen on the address of their node.
    pair = certificates.good("localhost", ray.util.get_node_ip_address())
    tokens = TokensFile(tmp_path / "tokens")
    admin = tokens.add("admin", "insert,sample,update,admin")
    actor = tokens.add("actor", "insert,sample,update", "table")
    group = start_group(
        num_shards=2,
        checkpoint_directory=root,
        server_options={"tls": reverb.ServerTls(pair.cert, pair.key), "tokens": tokens.path},
        runtime_env={
            "env_vars": {"REVERB_TOKEN": admin, "REVERB_TLS_CA": str(certificates.ca)},
        },
    )
    tls = reverb.ClientTls(ca=certificates.ca)
    return group, {"tls": tls, "token": actor}


def test_shards_directory_and_clients_have_credentials(secured, kill, until):
    group, options = secured
    assert group.address.startswith("shards+grpcs:///")
    client = group.client(**options)
    client.insert([np.int64(1)], {"table": 1.0})
    assert int(client.sample_batch("table", 1).info.table_size[0]) == 1
    group.checkpoint()
    kill(group, 0)
    until(lambda: group.status().shards[0].num_starts > 1 and group.status().is_complete)
    client.insert([np.int64(2)], {"table": 1.0})
    with pytest.raises(UnauthenticatedError):
        group.client(tls=options["tls"]).server_info()
    assert group.drain(0, wait_s=1.0) >= 0
    assert group.status().sizes == {"table": 2}
