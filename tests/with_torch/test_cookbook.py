# SPDX-License-Identifier: Apache-2.0
"""The programs of the cookbook that need PyTorch run as they stand."""

import pytest

from support.cookbook import PROGRAMS, needs, run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program",
    [it for it in PROGRAMS if (needs(it) or "").startswith("PyTorch")],
    ids=lambda path: path.stem,
)
def test_a_program_runs(program, tmp_path):
    run(program, tmp_path, 280)
