# SPDX-License-Identifier: Apache-2.0
"""Pages of the HTTP port of a server."""

from __future__ import annotations

import urllib.error
import urllib.request
from email.message import Message
from typing import NamedTuple

import reverb
from support.waiting import DEADLINE_S


class Page(NamedTuple):
    """The answer to a request, also one that says what is wrong."""

    status: int
    headers: Message
    text: str


def get(server: reverb.Server, path: str, **headers: str) -> Page:
    """Asks for a page over this machine's loopback."""
    url = f"http://127.0.0.1:{server.http_port}{path}"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return Page(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as error:
        return Page(error.code, error.headers, error.read().decode())
