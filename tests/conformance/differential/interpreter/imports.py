# SPDX-License-Identifier: Apache-2.0
"""Makes the peer programs and `support` importable; to be imported first."""

import pathlib
import sys

_CONFORMANCE = pathlib.Path(__file__).parents[2]
sys.path += [str(_CONFORMANCE / "peer_programs"), str(_CONFORMANCE.parent)]
