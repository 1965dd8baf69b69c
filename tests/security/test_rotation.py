# SPDX-License-Identifier: Apache-2.0
"""Certificates and tokens change under load, to broken files and back, and no call fails."""

import contextlib
import re
import signal
import socket
import ssl
import time

import pytest

import reverb
from reverb import errors
from support.certificates import Linked
from support.load_clients import LoadClients
from support.programs import Program
from support.reverb_server import COMMAND
from support.waiting import DEADLINE_S, PATIENCE, wait_until

CONFIG = """
tables: {
  table_name: "replay"
  sampler: { uniform: true }
  remover: { fifo: true }
  max_size: 1000
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }
}
"""
ROLES = [
    "insert:replay",
    "insert_batch:replay",
    "trajectory_writer:replay",
    "new_writers:replay",
    "sample_one:replay",
    "sample_batch:replay",
    "learner:replay",
]
RIGHTS = "sample,insert,update"
READ = "read certificates and tokens again"
# How often a server looks at its files, and a client at its token.
LOOK_S = 10.0

durations = pytest.mark.parametrize(
    "duration_s",
    [
        pytest.param(3, id="fast"),
        pytest.param(60, id="thorough", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)


class Rotating:
    """A server whose certificate and tokens change, and clients that go on meanwhile.

    Attributes:
      serials: Numbers of the certificates that were seen.
    """

    def __init__(self, program, files, tokens, token_file, certificates):
        self.program, self._files, self._tokens = program, files, tokens
        self._token_file, self._certificates = token_file, certificates
        self.port = int(re.search(r" is ready on port (\d+) of ", program.line())[1])
        self.address = f"grpcs://localhost:{self.port}"
        self.serials = set()
        self._held = [token_file.read_text()]

    def change(self):
        """Puts a new pair and one more token in place. The last three tokens are good."""
        self._files.swap(self._certificates.good())
        self._held.append(self._tokens.add("load", RIGHTS))
        while len(self._held) > 3:
            self._tokens.remove(self._held.pop(0))

    def hand_out(self):
        """Gives the clients the newest token, which the server must know by now."""
        new = self._token_file.with_suffix(".new")
        new.write_text(self._held[-1])
        new.replace(self._token_file)

    def hang_up(self, told=READ):
        """Lets the server read the files again, and waits until it has said so."""
        before = self.program.errors.count(told)
        self.program.signal(signal.SIGHUP)
        wait_until(lambda: self.program.errors.count(told) > before)

    def wait_for_certificates(self, count):
        """Waits until new connections have met so many different ones."""

        def met():
            self.look()
            return len(self.serials) >= count

        wait_until(met, 3 * LOOK_S)

    def look(self):
        """Notes the certificate that a new connection meets."""
        context = ssl.create_default_context(cafile=self._certificates.ca)
        address = ("localhost", self.port)
        with (
            socket.create_connection(address, DEADLINE_S) as peer,
            context.wrap_socket(peer, server_hostname="localhost") as tls,
        ):
            self.serials.add(tls.getpeercert()["serialNumber"])


@pytest.fixture
def rotating(tmp_path, tokens, certificates, monkeypatch):
    """A server in a process of its own; the environment gives clients what they need."""
    files = Linked(tmp_path / "secret", certificates.good())
    token_file = tmp_path / "token"
    token_file.write_text(tokens.add("load", RIGHTS))
    monkeypatch.setenv("REVERB_TLS_CA", str(certificates.ca))
    monkeypatch.setenv("REVERB_TOKEN_FILE", str(token_file))
    options = [
        f"--config={CONFIG}",
        "--host=localhost",
        f"--tls-cert={files.cert}",
        f"--tls-key={files.key}",
        f"--tokens={tokens.path}",
        # So that clients meet what is new.
        "--tls-max-connection-age=1",
    ]
    with Program(COMMAND, *options) as program:
        yield Rotating(program, files, tokens, token_file, certificates)
        assert token_file.read_text() not in program.errors


@contextlib.contextmanager
def load(rotating):
    """Clients that insert and sample, none of whose calls may fail."""
    clients = LoadClients([rotating.address], ROLES)
    wait_until(lambda: all(clients.rounds.values()))
    yield clients
    rounds = dict(clients.rounds)
    # They still go on at the end.
    wait_until(lambda: all(clients.rounds[role] > rounds[role] for role in ROLES))
    clients.stop()
    assert clients.errors == []
    assert clients.confirmed["replay"]
    assert clients.sampled["replay"]


@durations
def test_a_change_each_second_fails_no_call(rotating, duration_s):
    changes = 0
    with load(rotating):
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            begin = time.monotonic()
            rotating.change()
            rotating.hang_up()
            rotating.hand_out()
            rotating.look()
            changes += 1
            time.sleep(max(0.0, 1 - (time.monotonic() - begin)))
    assert len(rotating.serials) == changes
    assert changes >= duration_s / 3 / PATIENCE
    assert "ERROR" not in rotating.program.errors


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_sees_changes_by_itself(rotating):
    with load(rotating):
        rotating.look()
        for number in range(1, 5):
            rotating.change()
            begin = time.monotonic()
            rotating.wait_for_certificates(1 + number)
            assert time.monotonic() - begin < 2 * LOOK_S * PATIENCE
            # Tokens are looked at with the certificate.
            rotating.hang_up()
            rotating.hand_out()
            time.sleep(1.5)
    assert "ERROR" not in rotating.program.errors


@durations
def test_broken_files_in_between_fail_no_call(rotating, tokens, tmp_path, duration_s):
    folder = tmp_path / "secret"
    with load(rotating):
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            key = folder / "data" / "tls.key"
            good = key.read_bytes()
            key.write_bytes(good[: len(good) // 2])
            tokens.write("half a line")
            rotating.hang_up("stays in force")
            rotating.look()
            key.write_bytes(good)
            tokens.write()
            rotating.change()
            rotating.hang_up()
            rotating.hand_out()
            time.sleep(1)
    assert "tls.key" in rotating.program.errors
    assert re.search(r"line \d+", rotating.program.errors)


def test_a_client_reads_its_authority_again(rotating, certificates, tmp_path):
    ca = tmp_path / "ca.crt"
    ca.write_bytes(certificates.other_ca.read_bytes())
    tls = reverb.ClientTls(ca=ca)
    with pytest.raises(errors.UnavailableError, match="no CA that this client knows"):
        reverb.Client(rotating.address, tls=tls).server_info()
    client = reverb.Client(rotating.address, tls=tls, connect_timeout_s=DEADLINE_S)
    ca.write_bytes(certificates.ca.read_bytes())
    assert set(client.server_info()) == {"replay"}
