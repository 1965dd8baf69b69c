# SPDX-License-Identifier: Apache-2.0
"""The table of calls in `docs/howto/securing.md` is that of the core."""

import re

import reverb
from reverb.core import native
from support.sources import ROOT

_ROW = re.compile(r"^\| `([\w/]+)` \| (.+) \| (.+) \|$", re.MULTILINE)


def _table():
    page = (ROOT / "docs/howto/securing.md").read_text(encoding="utf-8")
    return _ROW.findall(page[page.index("| call | methods | right |") :])


def test_every_call_has_its_right_in_the_docs():
    told = {call: right for call, _, right in _table()}
    known = dict(native.call_rights())
    print("\n".join(f"{call}: {right}" for call, right in known.items()))
    assert told == known


def test_every_method_of_a_client_is_in_the_table():
    told = {name for _, methods, _ in _table() for name in re.findall(r"`(\w+)`", methods)}
    methods = {
        name for name, method in vars(reverb.Client).items() if name[0] != "_" and callable(method)
    }
    # `close` asks no server.
    assert told == methods - {"close"}
