# SPDX-License-Identifier: Apache-2.0
"""The programs of the cookbook that need PyTorch run as they stand."""

import subprocess
import sys

import pytest

from support.cookbook import PROGRAMS, needs


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program",
    [it for it in PROGRAMS if (needs(it) or "").startswith("PyTorch")],
    ids=lambda path: path.stem,
)
def test_a_program_runs(program, tmp_path):
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
