# SPDX-License-Identifier: Apache-2.0
"""A run of several processes, `examples/evolve.py`, from its begin to its end."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_all_processes_of_a_run_end_by_themselves():
    """Actors wait for the learner most of the time, and end with the server."""
    program = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "evolve.py"), "--actors", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    ends = [line for line in output.splitlines() if "ended with" in line]
    assert ends == ["actor 0 ended with 0", "actor 1 ended with 0", "learner ended with 0"]
    assert "Traceback" not in errors
