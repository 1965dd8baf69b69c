# SPDX-License-Identifier: Apache-2.0
"""Runs tests against the installed wheel in several environments.

    python tools/wheel_tests.py .venvs/tf-2.15 .venvs/tf-2.21
    python tools/wheel_tests.py .venvs/tf-2.15 --tests tests/with_tensorflow/test_tf_client.py
    python tools/wheel_tests.py .venvs/python3.13 --without-tensorflow

Runs the tests that concern TensorFlow, or all without it. Prints a table. Fails if a test failed in
one of the environments, or if no test of TensorFlow passed where there has to be one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from pytest_runs import Pytest

ROOT = pathlib.Path(__file__).parents[1]

TENSORFLOW_TESTS = "tests/with_tensorflow"
VECTORS = "tests/conformance/vectors"
# These show that the package itself works beside TensorFlow, its protobuf and its NumPy.
GENERAL_TESTS = (
    "tests/api/test_client.py",
    "tests/package/test_import_time.py",
    "tests/package/test_protos.py",
    "tests/package/test_public_names.py",
    "tests/reading/test_round_trip.py",
    "tests/reading/test_sampling.py",
    "tests/writers/test_structured.py",
    "tests/writers/test_trajectory.py",
)
OPTIONS = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider")
# Prints the installed packages, without importing TensorFlow.
SURVEY = """
import importlib.metadata as metadata, json, platform
import numpy, reverb
def tensorflow():
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "none"
print(json.dumps({
    "reverb": reverb.__file__,
    "TensorFlow": tensorflow(),
    "Python": platform.python_version(),
    "NumPy": numpy.__version__,
}))
"""
COLUMNS = ("environment", "TensorFlow", "Python", "NumPy", "passed", "skipped", "failed", "seconds")


def main() -> int:
    """Returns 0 if the tests passed in all environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="+", type=pathlib.Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tests", nargs="+", help="instead of all that concern TensorFlow")
    which.add_argument(
        "--without-tensorflow", action="store_true", help="all tests, in environments without it"
    )
    arguments = parser.parse_args()
    tests = arguments.tests or [TENSORFLOW_TESTS, VECTORS, *GENERAL_TESTS]
    if arguments.without_tensorflow:
        tests = ["tests"]
    rows = [run_in(environment, tests) for environment in arguments.environments]
    print_table(rows)
    complaints = [
        f"{row['environment']}: {row['complaint']}" for row in rows if row.get("complaint")
    ]
    print(*complaints, sep="\n", file=sys.stderr)
    return 1 if complaints else 0


def run_in(environment: pathlib.Path, tests: list[str]) -> dict[str, Any]:
    """Runs the tests with the interpreter of an environment; returns its row of the table."""
    print(f"\n==> {environment}", flush=True)
    row: dict[str, Any] = {"environment": environment.name}
    python = environment.absolute() / "bin" / "python"
    # This process and the children of tests must not have the source tree on their path.
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2", **variables, "PYTHONSAFEPATH": "1"}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        survey = subprocess.run(
            [python, "-c", SURVEY], cwd=directory, env=variables, stdout=subprocess.PIPE, check=True
        )
        row |= json.loads(survey.stdout)
        if not pathlib.Path(row["reverb"]).is_relative_to(environment.absolute()):
            raise SystemExit(
                f"import reverb gives {row['reverb']}, which is not the installed wheel"
            )
        pytest = Pytest(environment.name, python, OPTIONS, pathlib.Path(directory), variables)
        run = pytest.run(tests, "not slow and not conformance")
    counts = run.counts()
    row |= {outcome: counts[outcome] for outcome in ("passed", "skipped", "failed")}
    row["seconds"] = round(time.monotonic() - started)
    if not run.passed:
        row["complaint"] = "its tests did not pass"
    elif TENSORFLOW_TESTS in tests and not run.counts("tensorflow")["passed"]:
        row["complaint"] = "no test of TensorFlow passed"
    return row


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints one line for each environment."""
    lines = [COLUMNS, *([str(row.get(column, "?")) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    print()
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
