# SPDX-License-Identifier: Apache-2.0
"""Datasets and `TFClient` at servers with TLS and tokens: the environment has what they need."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing
from support.certificates import Certificates, TokensFile
from support.waiting import PATIENCE

# For a server whose certificate has a fault, and for a token; `None`: there is none.
CERTIFICATES = {
    "good": None,
    "of_other_ca": "no CA that this client knows",
    "wrong_name": "for elsewhere.example",
    "expired": "has expired",
    "not_yet_valid": "is not valid before",
}
TOKENS = {
    "right": None,
    "none": "wants a token",
    "wrong": "does not know this token",
    "expired": "expired at",
}
# TensorFlow's clients are kept by address in the process, and the system gives a port again: each
# server has another address of this machine, so that no test meets what a client remembers. The
# short form (127.9 is 127.0.0.9) is not taken for a server of this process, which needs no TLS.
HOSTS = (f"127.{number}" for number in itertools.count(1))
# Far less than a client waits for a server that does not answer.
AT_ONCE_S = 20.0 * PATIENCE


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tokens(tmp_path):
    return TokensFile(tmp_path / "tokens")


@pytest.fixture
def address(start, certificates, tokens, tmp_path, monkeypatch):
    """Starts a server with an item, and sets the environment; returns the address."""
    rights = "sample,insert,update"
    right = tokens.add("right", rights)
    late = tokens.add("late", rights, until="2020-01-01T00:00:00Z")
    gone = tokens.add("gone", rights)
    tokens.remove(gone)
    given = {"right": right, "none": None, "wrong": gone, "expired": late}

    def address(certificate="good", token="right", scheme="grpcs://"):
        pair = getattr(certificates, certificate)()
        server = start(
            testing.table(max_times_sampled=0),
            tls=reverb.ServerTls(pair.cert, pair.key),
            tokens=tokens.path,
        )
        server.localhost_client().insert(np.float32(1), {"table": 1.0})
        monkeypatch.setenv("REVERB_TLS_CA", str(certificates.ca))
        monkeypatch.setenv("REVERB_TLS_SERVER_NAME", "localhost")
        if given[token] is not None:
            path = tmp_path / "token"
            path.write_text(given[token])
            monkeypatch.setenv("REVERB_TOKEN_FILE", str(path))
        return f"{scheme}{next(HOSTS)}:{server.port}"

    return address


def timesteps(address):
    dataset = reverb.TimestepDataset(address, "table", tf.float32, tf.TensorShape([]), 10)
    next(iter(dataset))


def trajectories(address):
    dataset = reverb.TrajectoryDataset(address, "table", tf.float32, tf.TensorShape([1]), 10)
    next(iter(dataset.batch(1)))


def in_a_graph(address):
    @tf.function
    def run():
        return reverb.TFClient(address).sample("table", [tf.float32])

    run()


def client_sample(address):
    reverb.TFClient(address).sample("table", [tf.float32])


def client_insert(address):
    data, priorities = [tf.zeros([])], tf.constant([1.0], tf.float64)
    reverb.TFClient(address).insert(data, tf.constant(["table"]), priorities)


def client_update(address):
    keys, priorities = tf.constant([1], tf.uint64), tf.constant([1.0], tf.float64)
    reverb.TFClient(address).update_priorities("table", keys, priorities)


WAYS = [
    timesteps,
    trajectories,
    in_a_graph,
    client_sample,
    client_insert,
    client_update,
]


# A connection that is not made shows no token, so each fault is tried beside what is right.
CASES = [(certificate, "right", text) for certificate, text in CERTIFICATES.items()]
CASES += [("good", token, text) for token, text in TOKENS.items() if text]


@pytest.mark.parametrize(("certificate", "token", "text"), CASES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_fault_ends_the_call(address, way, certificate, token, text):
    where = address(certificate, token)
    begin = time.monotonic()
    if text is None:
        way(where)
        return
    with pytest.raises((reverb.ReverbError, tf.errors.OpError), match=text):
        way(where)
    assert time.monotonic() - begin < AT_ONCE_S


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_environment_makes_all_addresses_grpcs(address, way, monkeypatch):
    monkeypatch.setenv("REVERB_TLS", "1")
    way(address(scheme=""))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_address_without_tls_is_told_to_have_it(address, way):
    with pytest.raises((reverb.ReverbError, tf.errors.OpError), match="grpcs://"):
        way(address(scheme=""))


def test_a_saved_graph_has_no_token(address, tmp_path):
    where = address()
    token = (tmp_path / "token").read_text()
    path = str(tmp_path / "saved")

    class Module(tf.Module):
        @tf.function(input_signature=[])
        def run(self):
            return reverb.TFClient(where).sample("table", [tf.float32]).data

    tf.saved_model.save(Module(), path)
    saved = [it for it in (tmp_path / "saved").rglob("*") if it.is_file()]
    assert saved
    assert all(token[4:].encode() not in it.read_bytes() for it in saved)


def test_ops_take_the_environment_as_it_is(monkeypatch):
    server = reverb.Server([testing.table()])
    client = reverb.TFClient(f"127.1:{server.port}")
    client.insert([tf.constant(1.0)], tf.constant(["table"]), tf.constant([1.0], tf.float64))
    # Clients of ops are kept by their address, and their credentials are compared once a second.
    time.sleep(1.1)
    monkeypatch.setenv("REVERB_TLS", "1")
    with pytest.raises(tf.errors.OpError, match="give server_name"):
        client.insert([tf.constant(1.0)], tf.constant(["table"]), tf.constant([1.0], tf.float64))
    time.sleep(1.1)
    monkeypatch.delenv("REVERB_TLS")
    client.insert([tf.constant(1.0)], tf.constant(["table"]), tf.constant([1.0], tf.float64))
    assert server.localhost_client().server_info()["table"].current_size == 2
    server.stop()
