# SPDX-License-Identifier: Apache-2.0
"""Certificates and keys of servers and clients."""

import dataclasses
import os

from reverb._checks.arguments import as_path
from reverb.errors import InvalidArgumentError
from reverb.shown_text import hidden, shows_no_token

__all__ = ["ClientTls", "ServerTls"]

# With a smaller age, connections would mostly be opened, and hardly used.
MIN_CONNECTION_AGE_S = 1
# A year.
MAX_CONNECTION_AGE_S = 31_557_600


@shows_no_token
@dataclasses.dataclass(frozen=True)
class ServerTls:
    """Certificate and key of a server that speaks TLS, for `Server(tls=...)`.

    Clients then write `grpcs://` in front of its address. The files are in PEM. The server checks
    them every 10 s and uses new ones when their content has changed; see `Server.reload_security`.
    Only TLS 1.3 is supported.

    Example:
      >>> tls = ServerTls(cert="tls.crt", key="tls.key")
      >>> tls.client_ca is None
      True

    Attributes:
      cert: Path of the certificate, followed by intermediate certificates, if any. A certificate
        that has expired, expires soon or is not valid yet causes a warning in the log; see also
        `ServerStatus.security`.
      key: Path of its private key. A key that other users can read causes a warning in the log.
      client_ca: Path of the authorities of client certificates (mutual TLS): every client must show
        a certificate that one of them has signed. `None`: clients need no certificate.
      max_connection_age_s: An older connection is closed when its calls have ended, and its client
        opens a new one, which uses the newest certificates and tokens. Open streams continue. In
        seconds, from 1 to 31557600; `None`: connections stay.

    Raises:
      InvalidArgumentError: If a path is empty or has a zero byte, or if the age is out of its
        range. Whether the files are good is checked when the server starts.
      TypeError: If a path is no path.
    """

    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_ca: str | os.PathLike[str] | None = None
    max_connection_age_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("cert", "key"):
            if getattr(self, name) is None:
                raise InvalidArgumentError(
                    f"ServerTls.{name} must be the path of a file, got None: a server that speaks "
                    "TLS needs a certificate and its key"
                )
        _make_paths_text(self, ("cert", "key", "client_ca"))
        age = self.max_connection_age_s
        if age is not None and not MIN_CONNECTION_AGE_S <= age <= MAX_CONNECTION_AGE_S:
            raise InvalidArgumentError(
                f"ServerTls.max_connection_age_s must be from {MIN_CONNECTION_AGE_S} to "
                f"{MAX_CONNECTION_AGE_S} seconds, got {age}"
            )


@shows_no_token
@dataclasses.dataclass(frozen=True)
class ClientTls:
    """Checks of a server that speaks TLS, and the client's own certificate; for `Client(tls=...)`.

    For addresses with `grpcs://`. Settings that are not given come from the environment:
    `REVERB_TLS_CA`, `REVERB_TLS_CERT` with `REVERB_TLS_KEY`, `REVERB_TLS_SERVER_NAME`. The files
    are in PEM, and are read again when they have changed. The server is always checked.

    Example:
      >>> ClientTls(ca="ca.crt").ca
      'ca.crt'

    Attributes:
      ca: Path of the authorities that servers are checked against. `None`: those of the system.
      cert: Path of the client's certificate, for servers that require one; together with `key`.
      key: Path of its private key.
      server_name: The name that the server's certificate must have. `None`: the host of the
        address.

    Raises:
      InvalidArgumentError: If there is a certificate without a key or a key without a certificate,
        or if a path or the name is empty or has a zero byte.
      TypeError: If a path is no path, or if the name is no `str`.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        _make_paths_text(self, ("ca", "cert", "key"))
        if (self.cert is None) != (self.key is None):
            given, missing = ("key", "cert") if self.cert is None else ("cert", "key")
            raise InvalidArgumentError(
                f"ClientTls.{given} needs ClientTls.{missing}: a certificate and its key belong "
                f"together, got only {given}={getattr(self, given)!r}"
            )
        name = self.server_name
        if name is not None and not isinstance(name, str):
            raise TypeError(f"ClientTls.server_name must be a str or None, got {name!r}")
        if name is not None and (not name or "\0" in name):
            raise InvalidArgumentError(
                f"ClientTls.server_name must be the name in the server's certificate, got {name!r}"
            )


def _make_paths_text(tls: object, names: tuple[str, ...]) -> None:
    for name in names:
        path = getattr(tls, name)
        if path is not None:
            object.__setattr__(tls, name, as_path(f"{type(tls).__name__}.{name}", hidden(path)))


# The public import path.
ClientTls.__module__ = ServerTls.__module__ = "reverb"
