# SPDX-License-Identifier: Apache-2.0
"""Random programs give the same on dm-reverb 0.14 and here; see `README.md`.

`REVERB_OURS_TF_PYTHON` names an interpreter with this package and TensorFlow 2.15, for which
dm-reverb 0.14 was built. `REVERB_DIFFERENTIAL_PROGRAMS` (200) and `REVERB_DIFFERENTIAL_SEED` (0)
say which programs.
"""

import json
import os
import pathlib

import pytest
from differential import replay, search
from runner import Runner
from script import describe

from support.compared_packages import PEER_PYTHON

_OURS = os.environ.get("REVERB_OURS_TF_PYTHON", "")
_PROGRAMS = int(os.environ.get("REVERB_DIFFERENTIAL_PROGRAMS", "200"))
_SEED = int(os.environ.get("REVERB_DIFFERENTIAL_SEED", "0"))
_CASES = sorted((pathlib.Path(__file__).parent / "cases").glob("*.json"))

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(
        not _OURS,
        reason="needs this package with TensorFlow 2.15: set REVERB_OURS_TF_PYTHON to its Python",
    ),
    # A case starts the processes that all share, and 200 programs take minutes.
    pytest.mark.timeout(60 + 30 * _PROGRAMS),
]


@pytest.fixture(scope="module")
def runner():
    """Runs programs on both packages."""
    runner = Runner(_OURS, PEER_PYTHON)
    yield runner
    runner.close()


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_what_once_differed_is_the_same(runner, case):
    difference = replay(runner, case)
    assert difference is None, describe(json.loads(case.read_text())["program"], difference)


def test_random_programs_give_the_same(runner):
    before = runner.counts.programs
    differences = search(runner, _PROGRAMS, _SEED)
    assert not differences, "\n\n".join(description for _, description, _ in differences)
    # Most programs are compared: few make the original hang or crash.
    assert runner.counts.programs - before >= 0.9 * _PROGRAMS
