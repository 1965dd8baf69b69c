# SPDX-License-Identifier: Apache-2.0
"""Groups of shards with TLS and tokens."""

import numpy as np
import pytest

import reverb
import reverb.cluster
from reverb.core import protos


@pytest.fixture
def group(secure, tokens):
    """Three shards with TLS and the same tokens: `client(token)`, and their addresses."""
    admin = tokens.add("admin", "admin,sample,insert,update")
    learner = tokens.add("learner", "sample,update")
    shards = [
        secure(
            tokens=tokens.path,
            shard=reverb.cluster.Shard(i, 3, "secured"),
        )
        for i in range(3)
    ]
    places = ",".join(shard.address.removeprefix("grpcs://") for shard in shards)

    def client(token=None, scheme="shards+grpcs", **options):
        options = {"tls": shards[0].tls, "connect_timeout_s": 20} | options
        return reverb.Client(f"{scheme}:///{places}", token=token, **options)

    return client, admin, learner, shards


def test_a_group_works_with_tls_and_a_token(group):
    client, admin, learner, _ = group
    client(admin).insert_batch([np.arange(3_072)], {"table": 1.0})
    reader = client(learner)
    info = reader.sample_batch("table", 256).info
    assert (info.table_size > 0).all()
    reader.update_priorities("table", info.key, np.full(256, 2.0))
    assert reader.updates_missed == 0
    assert {shard.state for shard in reader.shard_info()} == {"up"}


def test_a_right_that_is_missing_is_named(group):
    client, _, learner, _ = group
    reader = client(learner)
    with pytest.raises(reverb.errors.PermissionDeniedError, match="insert"):
        reader.insert([np.int64(0)], {"table": 1.0})
    with pytest.raises(reverb.errors.PermissionDeniedError, match="admin"):
        reader.reset("table")
    with pytest.raises(reverb.errors.UnauthenticatedError):
        client("rv_unknown_unknown_unknown_unknown").server_info()


def test_without_tls_the_shards_say_so(group):
    client, *_ = group
    with pytest.raises(reverb.ReverbError, match="TLS"):
        client(scheme="shards", tls=None).server_info()


def test_a_map_cannot_choose_less_than_the_client_did(group):
    client, admin, _, shards = group
    one = shards[0].client(token=admin)
    answer = protos.DirectoryResponse.FromString(one._client.call("Directory", b""))
    answer.map.epoch += 5
    for shard in answer.map.shards:
        shard.address = f"grpc://localhost:{shards[shard.index].server.port}"
    request = protos.SetDirectoryRequest(map=answer.map, index=0)
    try:
        one._client.call("SetDirectory", request.SerializeToString())
    except reverb.ReverbError:
        return  # The shard refuses it, too.
    with pytest.raises(reverb.errors.FailedPreconditionError, match="The client alone decides"):
        client(admin).server_info()


def test_the_environment_gives_groups_their_credentials(group, monkeypatch, certificates):
    client, admin, *_ = group
    monkeypatch.setenv("REVERB_TLS", "1")
    monkeypatch.setenv("REVERB_TLS_CA", str(certificates.ca))
    monkeypatch.setenv("REVERB_TLS_SERVER_NAME", "localhost")
    monkeypatch.setenv("REVERB_TOKEN", admin)
    made = client(scheme="shards", tls=None)
    made.insert([np.int64(0)], {"table": 1.0})
    assert made.server_info()["table"].current_size == 1
