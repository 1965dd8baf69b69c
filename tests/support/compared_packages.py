# SPDX-License-Identifier: Apache-2.0
"""The two packages that are compared."""

from __future__ import annotations

import os

import pytest

# An interpreter in which `import reverb` gives dm-reverb 0.14; empty when there is none.
PEER_PYTHON = os.environ.get("REVERB_PEER_PYTHON", "")

# For `parametrize`: what is tried with the peer needs the peer.
PACKAGES = [
    "ours",
    pytest.param("peer", marks=pytest.mark.conformance),
]

# Pairs of a client and a server, at least one of which is this package's.
PAIRS_WITH_OURS = [
    pytest.param("ours", "ours"),
    pytest.param("ours", "peer", marks=pytest.mark.conformance),
    pytest.param("peer", "ours", marks=pytest.mark.conformance),
]
