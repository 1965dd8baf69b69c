# SPDX-License-Identifier: Apache-2.0
"""Tokens and certificates: checked arguments for the native module."""

import dataclasses
import os
from typing import Any

from reverb._checks.arguments import as_path
from reverb._server.tls import ClientTls, ServerTls
from reverb.errors import InvalidArgumentError
from reverb.shown_text import hidden, hidden_token, shown, shows_no_token, type_name

__all__ = ["ClientCredentials", "ServerSecurity"]

# A token must fit into a header of HTTP/2.
_MAX_TOKEN_CHARACTERS = 4096


class ClientCredentials:
    """Credentials of a client. Their text and their pickles do not contain the token.

    For a value that is `None`, the native module uses the environment.

    Attributes:
      token: The token itself.
      token_file: Absolute path of a file that holds a token.
      ca: Absolute path; this and the rest have the meaning that they have in `ClientTls`.
      cert: Absolute path.
      key: Absolute path.
      server_name: Name in the server's certificate.
    """

    # Without `__dict__`, tools that print an object's attributes do not show the token.
    __slots__ = ("ca", "cert", "key", "server_name", "token", "token_file")

    def __init__(self, token: str | None, token_file: object, tls: ClientTls | None) -> None:
        """Checks the arguments of `Client`.

        Raises:
          InvalidArgumentError: If a value cannot be used; a token is not shown.
          TypeError: If a value has the wrong type.
        """
        token, token_file = hidden_token(token), hidden(token_file)
        if tls is not None and not isinstance(tls, ClientTls):
            raise TypeError(f"tls must be a reverb.ClientTls or None, got {type(tls).__name__}")
        if token is not None and token_file is not None:
            raise InvalidArgumentError("give only one of token and token_file, got both")
        if token is not None:
            _check_token(token)
        given = ClientTls() if tls is None else tls
        path = None if token_file is None else as_path("token_file", token_file)
        self.token = token
        self.token_file = _absolute(path)
        self.ca = _absolute(given.ca)
        self.cert = _absolute(given.cert)
        self.key = _absolute(given.key)
        self.server_name = given.server_name

    @shown
    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__slots__}
        shown = {name: value for name, value in shown.items() if value is not None}
        if "token" in shown:
            shown["token"] = "..."
        return f"ClientCredentials({', '.join(f'{name}={it!r}' for name, it in shown.items())})"

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Leaves the token out of pickles of this object."""
        return None, {name: getattr(self, name) for name in self.__slots__} | {"token": None}


def _check_token(token: object) -> None:
    """Checks a token. Errors do not show it, because they are logged."""
    if not isinstance(token, str):
        raise TypeError(f"token must be a str, got {type_name(token)}")
    if not token:
        raise InvalidArgumentError("token must not be empty; None: no token")
    if len(token) > _MAX_TOKEN_CHARACTERS:
        raise InvalidArgumentError(
            f"token must have at most {_MAX_TOKEN_CHARACTERS} characters, got {len(token)}"
        )
    bad = next((i for i, it in enumerate(token, 1) if not "!" <= it <= "~"), None)
    if bad is not None:
        raise InvalidArgumentError(
            f"token must consist of visible ASCII characters: character {bad} of {len(token)} is "
            "none. Was a line end read from a file? token_file takes the path of the file"
        )


@shows_no_token
@dataclasses.dataclass(frozen=True)
class ServerSecurity:
    """TLS and tokens of a server.

    Attributes:
      cert: Absolute path, or `None` without TLS; see `ServerTls` for this and the next three.
      key: Absolute path.
      client_ca: Absolute path.
      max_connection_age_s: Seconds, or `None`.
      tokens: Absolute path of the file of tokens.
      insecure_tokens: Whether tokens may come without TLS.
      http_tls: Whether the HTTP port speaks TLS, too.
    """

    cert: str | None
    key: str | None
    client_ca: str | None
    max_connection_age_s: float | None
    tokens: str | None
    insecure_tokens: bool
    http_tls: bool

    @classmethod
    def of_arguments(
        cls,
        tls: ServerTls | None,
        tokens: object,
        insecure_tokens: bool,
        http_tls: bool,
        http_port: int | None,
    ) -> "ServerSecurity | None":
        """Checks the arguments of `Server`; returns `None` without TLS and tokens.

        Raises:
          InvalidArgumentError: If an argument has no effect without another that is missing.
          TypeError: If a value has the wrong type.
        """
        tokens = hidden(tokens)
        if tls is not None and not isinstance(tls, ServerTls):
            raise TypeError(f"tls must be a reverb.ServerTls or None, got {type(tls).__name__}")
        if insecure_tokens and tokens is None:
            raise InvalidArgumentError("insecure_tokens=True needs tokens, got tokens=None")
        if http_tls and tls is None:
            raise InvalidArgumentError("http_tls=True needs tls, got tls=None")
        if http_tls and http_port is None:
            raise InvalidArgumentError("http_tls=True needs http_port, got http_port=None")
        if tls is None and tokens is None:
            return None
        age = None if tls is None else tls.max_connection_age_s
        return cls(
            cert=None if tls is None else _absolute(tls.cert),
            key=None if tls is None else _absolute(tls.key),
            client_ca=None if tls is None else _absolute(tls.client_ca),
            max_connection_age_s=None if age is None else float(age),
            tokens=None if tokens is None else _absolute(as_path("tokens", tokens)),
            insecure_tokens=bool(insecure_tokens),
            http_tls=bool(http_tls),
        )


def _absolute(path: str | os.PathLike[str] | None) -> str | None:
    """Makes a path absolute, so that it stays valid when the program changes its directory.

    Symbolic links are not resolved, because files may be replaced by changing a link.
    """
    return None if path is None else hidden(os.path.abspath(path))  # noqa: PTH100
