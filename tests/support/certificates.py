# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: good ones, and some with each of their faults."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib

import trustme

_NOW = datetime.datetime.now(datetime.timezone.utc)
_DAY = datetime.timedelta(days=1)

# Names of the server that tests connect to. `127.1` leads to the same machine through the network,
# but no certificate can have it, so clients say which name they expect.
NAMES = ("localhost", "127.0.0.1")


@dataclasses.dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: pathlib.Path
    key: pathlib.Path


class Certificates:
    """Two authorities, and what they sign. Each call makes new keys.

    Attributes:
      ca: Certificate of the authority that is trusted.
      other_ca: Certificate of the other one.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._ca, self._other = trustme.CA(), trustme.CA()
        self.ca, self.other_ca = directory / "ca.crt", directory / "other_ca.crt"
        self._ca.cert_pem.write_to_path(self.ca)
        self._other.cert_pem.write_to_path(self.other_ca)

    def good(self, *names: str, label: str = "good") -> Pair:
        """A certificate for the server, or for a client with other names."""
        return self._write(label, self._ca.issue_cert(*(names or NAMES)))

    def of_other_ca(self, *names: str) -> Pair:
        """Signed by the authority that nobody trusts."""
        return self._write("of_other_ca", self._other.issue_cert(*(names or NAMES)))

    def wrong_name(self) -> Pair:
        """For another server."""
        return self._write("wrong_name", self._ca.issue_cert("elsewhere.example"))

    def expired(self, *names: str) -> Pair:
        """Was valid until yesterday."""
        dates = {"not_before": _NOW - 3 * _DAY, "not_after": _NOW - _DAY}
        return self._write("expired", self._ca.issue_cert(*(names or NAMES), **dates))

    def not_yet_valid(self, *names: str) -> Pair:
        """Will be valid tomorrow."""
        dates = {"not_before": _NOW + _DAY, "not_after": _NOW + 3 * _DAY}
        return self._write("not_yet_valid", self._ca.issue_cert(*(names or NAMES), **dates))

    def _write(self, label: str, leaf: trustme.LeafCert) -> Pair:
        number = len(list(self._directory.iterdir()))
        pair = Pair(
            self._directory / f"{label}_{number}.crt", self._directory / f"{label}_{number}.key"
        )
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(pair.key)
        pair.key.chmod(0o600)
        return pair


class Linked:
    """A certificate and key that are replaced together, as Kubernetes replaces mounted secrets.

    `cert` and `key` are links into a folder that is itself a link; that one is swapped.
    """

    def __init__(self, directory: pathlib.Path, pair: Pair) -> None:
        self._directory, self._number = directory, 0
        directory.mkdir()
        self.cert, self.key = directory / "tls.crt", directory / "tls.key"
        self.swap(pair)
        self.cert.symlink_to(pathlib.Path("data") / "tls.crt")
        self.key.symlink_to(pathlib.Path("data") / "tls.key")

    def swap(self, pair: Pair) -> None:
        """Puts another pair in place, at one moment."""
        self._number += 1
        folder = self._directory / f"pair_{self._number}"
        folder.mkdir()
        (folder / "tls.crt").write_bytes(pair.cert.read_bytes())
        (folder / "tls.key").write_bytes(pair.key.read_bytes())
        (folder / "tls.key").chmod(0o600)
        new = self._directory / "new"
        new.symlink_to(folder.name)
        new.rename(self._directory / "data")


class TokensFile:
    """A file of tokens that a test changes.

    Attributes:
      path: The file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._lines: dict[str, str] = {}

    def add(self, name: str, rights: str, tables: str = "*", until: str | None = None) -> str:
        """Adds a token and returns it."""
        from reverb.core import native

        token = native.new_token()
        end = "" if until is None else f"  until={until}"
        self._lines[token] = f"{name}  {rights}  {tables}  {native.token_hash(token)}{end}"
        self.write()
        return token

    def add_certificate(self, name: str, rights: str, subject: str, tables: str = "*") -> None:
        """Adds a client that is known by a name in its certificate."""
        self._lines[subject] = f"{name}  {rights}  {tables}  cert:{subject}"
        self.write()

    def remove(self, token: str) -> None:
        """Takes a token away."""
        del self._lines[token]
        self.write()

    def write(self, more: str = "") -> None:
        """Writes the file as a whole, with a text at its end."""
        new = self.path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text("\n".join(["# tokens", *self._lines.values(), more]) + "\n")
        new.replace(self.path)
