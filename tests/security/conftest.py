# SPDX-License-Identifier: Apache-2.0
"""Servers with TLS and tokens, and what their clients need."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import reverb
from reverb import testing
from support.certificates import Certificates, TokensFile
from support.waiting import DEADLINE_S

# Environment variables that would give credentials to every client.
_VARIABLES = (
    "REVERB_TLS",
    "REVERB_TLS_CA",
    "REVERB_TLS_CERT",
    "REVERB_TLS_KEY",
    "REVERB_TLS_SERVER_NAME",
    "REVERB_TOKEN",
    "REVERB_TOKEN_FILE",
)


@pytest.fixture(autouse=True)
def no_credentials_in_the_environment(monkeypatch):
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tokens(tmp_path):
    return TokensFile(tmp_path / "tokens")


@dataclasses.dataclass
class Secured:
    """A server, and how clients of the network reach it.

    Attributes:
      server: The server.
      address: Its address. It leads through the network, although the server is in this process.
      tls: Arguments of its clients.
    """

    server: reverb.Server
    address: str
    tls: reverb.ClientTls

    def client(self, **options: Any) -> reverb.Client:
        """A client that trusts the right authority, unless it is told otherwise."""
        return reverb.Client(
            self.address, **({"connect_timeout_s": DEADLINE_S, "tls": self.tls} | options)
        )


@pytest.fixture
def secure(start, certificates) -> Callable[..., Secured]:
    """Starts a server with TLS: `secured = secure(tokens=...)`."""

    def secure(*tables, pair=None, client_ca=None, max_connection_age_s=None, **options):
        pair = pair or certificates.good()
        tls = reverb.ServerTls(pair.cert, pair.key, client_ca, max_connection_age_s)
        server = start(*(tables or [testing.table()]), tls=tls, **options)
        # No certificate can have this name; see support/hosts.py for why it is used.
        return Secured(
            server,
            f"grpcs://127.1:{server.port}",
            reverb.ClientTls(ca=certificates.ca, server_name="localhost"),
        )

    return secure


@pytest.fixture
def token_path(tmp_path) -> Callable[[str], pathlib.Path]:
    """Writes a token into a file of its own."""

    def token_path(token: str, name: str = "token") -> pathlib.Path:
        path = tmp_path / name
        path.write_text(f"{token}\n")
        path.chmod(0o600)
        return path

    return token_path
