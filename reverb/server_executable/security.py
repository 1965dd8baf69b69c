# SPDX-License-Identifier: Apache-2.0
"""TLS and tokens of `reverb_server`: arguments, checks, messages and reloads."""

import dataclasses
import ipaddress
from typing import Any

from reverb._checks.plain_files import read_file
from reverb._server.tls import ServerTls
from reverb.core import native
from reverb.errors import ReverbError
from reverb.server import Server
from reverb.server_executable.settings import Settings

__all__ = [
    "SecurityReload",
    "has_security",
    "reload_security",
    "security_problems",
    "security_text",
    "server_options",
]


def has_security(settings: Settings) -> bool:
    """Whether there are files of certificates or tokens."""
    return settings["tls_cert"] is not None or settings["tokens"] is not None


def server_options(settings: Settings) -> dict[str, Any]:
    """Returns the arguments of `Server`."""
    tls = None
    if settings["tls_cert"] is not None:
        tls = ServerTls(
            cert=settings["tls_cert"],
            key=settings["tls_key"],
            client_ca=settings["tls_client_ca"],
            max_connection_age_s=settings["tls_max_connection_age"],
        )
    return {
        "tls": tls,
        "tokens": settings["tokens"],
        "insecure_tokens": settings["insecure_tokens"],
        "http_tls": settings["http_tls"],
    }


def security_text(settings: Settings) -> str:
    """Describes the protection of a started server, for example `with TLS, tokens: 3`."""
    text = "without TLS" if settings["tls_cert"] is None else "with TLS"
    if settings["tls_client_ca"] is not None:
        text += " and certificates of clients"
    if settings["tokens"] is not None:
        text += f", tokens: {_num_tokens(settings['tokens'])}"
    return text


def _num_tokens(path: str) -> int:
    """Number of tokens in a file that the server has read."""
    text = read_file(path).decode()
    lines = map(str.strip, text.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def security_problems(settings: Settings) -> list[str]:
    """Reads the files; returns why a server could not start with them, each problem a line."""
    problems = []
    cert, key, tokens = (settings.options[name] for name in ("tls_cert", "tls_key", "tokens"))
    if cert.value is not None and key.value is not None:
        try:
            native.check_tls_files(cert.value, key.value, settings["tls_client_ca"])
        except ReverbError as error:
            problems += [f"{cert.origin}: {line}" for line in str(error).splitlines()]
    if tokens.value is not None:
        try:
            native.check_tokens_file(tokens.value)
        except ReverbError as error:
            problems += [f"{tokens.origin}: {line}" for line in str(error).splitlines()]
        is_protected = cert.value is not None or settings["insecure_tokens"]
        if not is_protected and _is_reached_by_others(settings["host"]):
            problems.append(
                f"{tokens.origin}: others could read the tokens on the network: give --tls-cert "
                "and --tls-key, or --host 127.0.0.1, or --insecure-tokens"
            )
    return problems


def _is_reached_by_others(host: str | None) -> bool:
    """Whether other machines certainly reach an address. The server itself checks host names."""
    if host is None:
        return True
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclasses.dataclass(frozen=True)
class SecurityReload:
    """The outcome of reading certificates and tokens again.

    Attributes:
      lines: Messages for the operator.
      is_refused: Whether a file is bad; its earlier content stays in force.
    """

    lines: list[str]
    is_refused: bool = False


def reload_security(server: Server) -> SecurityReload:
    """Reads certificates and tokens again. Never raises: problems are in the result."""
    try:
        changes = server.reload_security()
    except ReverbError as error:
        lines = [*str(error).splitlines(), "the earlier content of the bad files stays in force"]
        return SecurityReload(lines, is_refused=True)
    what = "; ".join(changes) or "nothing is different"
    return SecurityReload([f"read certificates and tokens again: {what}"])
