# SPDX-License-Identifier: Apache-2.0
"""Debian's stunnel, by which programs without TLS reach a server that wants it."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

from support.waiting import wait_until

STUNNEL = shutil.which("stunnel4") or shutil.which("stunnel")


@contextlib.contextmanager
def tunnel(directory: pathlib.Path, port: int, ca: pathlib.Path, pair: Any = None) -> Iterator[str]:
    """Runs a tunnel to a port of this machine; gives the address of its near end.

    Args:
      directory: For its configuration.
      port: The port with TLS.
      ca: Certificate of the authority that it trusts.
      pair: Its own `cert` and `key`, for servers that ask for them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        near = free.getsockname()[1]
    own = f"cert = {pair.cert}\nkey = {pair.key}\n" if pair else ""
    config = directory / "stunnel.conf"
    config.write_text(
        "foreground = yes\npid =\nsyslog = no\n[reverb]\nclient = yes\n"
        f"accept = 127.0.0.1:{near}\nconnect = 127.0.0.1:{port}\n"
        f"CAfile = {ca}\nverifyChain = yes\ncheckHost = localhost\n{own}"
    )
    with subprocess.Popen([STUNNEL, str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(near))
            yield f"127.0.0.1:{near}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
