# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of other libraries, unchanged, over this package, and its tests beside them.

    python tools/integration_tests.py .venvs/tf-agents-2.15 .venvs/acme-2.15 --quick
    python tools/integration_tests.py .venvs/tf-agents-2.21 --only 'reverb_*'

The suites and their expected results are in tests/integrations/expected.toml. Every suite runs in a
process of its own. Prints a table; fails if a result is below the expectation. A few tests that
failed may run again; `flaky_tests.py` says when.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fnmatch
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flaky_tests

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).parents[1]
INTEGRATIONS = ROOT / "tests" / "integrations"
PROGRAMS = INTEGRATIONS / "programs"
STUBS = INTEGRATIONS / "stubs"

# The directory in which `transfer_queue` is our module, whose tests are beside theirs.
TRANSFER_QUEUE = "reverb/adapters/transfer_queue/path"

COLUMNS = ("environment", "suite", "expected", "obtained", "seconds", "verdict")
# How many environments are tested at once.
SIDE_BY_SIDE = 2
# How much of the output of a failed suite is shown.
TAIL_LINES = 40
# Describes an environment without importing any of the libraries.
SURVEY = """
import importlib.metadata as metadata, importlib.util as util, json, os, sys
def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
def folder(name):
    spec = util.find_spec(name)
    return os.path.dirname(spec.submodule_search_locations[0]) if spec else None
libraries = {
    "TensorFlow": version("tensorflow-cpu", "tensorflow"),
    "tf-agents": version("tf-agents"),
    "dm-acme": version("dm-acme"),
    "rlds": version("rlds"),
    "jax": version("jax"),
    "stable-baselines3": version("stable-baselines3"),
    "torchrl": version("torchrl"),
    "TransferQueue": version("TransferQueue"),
    "numpy": version("numpy"),
    "protobuf": version("protobuf"),
}
print(json.dumps({
    "versions": {k: v for k, v in libraries.items() if v},
    "folders": {name: folder(name) for name in ("reverb", "tf_agents", "rlds", "acme")} | {
        # Its wheel has its tests beside it.
        "tests": folder("transfer_queue"),
    },
    "prefix": sys.prefix,
}))
"""


@dataclass
class Suite:
    """The entry of a suite in expected.toml.

    Attributes:
      name: A file of tests, a module, a program or a directory of this project's tests.
      run: How it is started: `pytest`, `module`, `multiprocessing`, `program` or `ours`.
      passed: Number of tests that must pass; 1 for a program.
      skipped: Number of tests that skip themselves.
      failed: Number of tests that fail for a `reason` outside this package.
      arguments: Arguments of a module or a program; `{directory}` is a new directory.
      fails_with: Text in the output if the suite cannot run at all, for a `reason`.
      crashes_at_exit: Whether the process may crash after its tests, for a `reason`.
      reason: Why the result is below what the authors of the suite intended.
      quick: The environments in which it is part of a quick run.
      timeout_s: Timeout of the suite, in seconds.
    """

    name: str
    run: str = "pytest"
    passed: int = 1
    skipped: int = 0
    failed: int = 0
    arguments: list[str] = field(default_factory=list)
    fails_with: str | None = None
    crashes_at_exit: bool = False
    reason: str = ""
    quick: list[str] = field(default_factory=list)
    timeout_s: int = 600

    def expectation(self) -> str:
        """Returns the text of the expectation for the table."""
        if self.fails_with:
            return "cannot run"
        if self.run == "program" or (self.run == "module" and self.arguments):
            return " ".join(["success", *(a for a in self.arguments if "--target" in a)])
        if self.run == "ours":
            return "all"
        return counts(self.passed, self.skipped, self.failed)

    def arguments_in(self, directory: str) -> list[str]:
        """Returns the arguments with `{directory}` replaced."""
        return [argument.format(directory=directory) for argument in self.arguments]


@dataclass
class Outcome:
    """The result of a suite; `passed` is None if it did not report counts.

    `failures` has the names and the outputs of the tests that failed. What does not name them is
    one test, which has the name of the suite.
    """

    status: int | None
    output: str
    seconds: float
    passed: int | None = None
    skipped: int = 0
    failed: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def main() -> int:
    """Returns 0 if every result is as expected, or better."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="+", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="only the part that CI runs")
    parser.add_argument("--only", default="*", help="pattern of the names of suites")
    parser.add_argument("--tree", action="store_true", help="test the sources, not the wheel")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the output of every suite here")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as caches,
        concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as threads,
    ):
        environments = [
            Environment(path.absolute(), pathlib.Path(caches), tree=arguments.tree)
            for path in arguments.environments
        ]
        for environment in environments:
            print(f"==> {environment.name}: {environment.versions()}", flush=True)
        each = list(threads.map(lambda environment: run_all(environment, arguments), environments))
        rows = [row for some, _ in each for row in some]
        below = [suite for _, some in each for suite in some]
        print_table(rows)
        if not rows:
            print("no suite was selected", file=sys.stderr)
        return 0 if rows and (not below or pass_again(below)) else 1


def run_all(
    environment: Environment, arguments: argparse.Namespace
) -> tuple[list[dict[str, str]], list[Below]]:
    """Runs the suites of an environment; returns their rows, and those below the expectation."""
    suites = [
        suite
        for suite in suites_of(environment.name)
        if fnmatch.fnmatch(suite.name, f"*{arguments.only}*")
        and (environment.name in suite.quick or not arguments.quick)
    ]
    rows, below = [], []
    for number, suite in enumerate(suites, 1):
        outcome = environment.run(suite)
        row = row_of(environment.name, suite, outcome)
        line = f"{row['obtained']}, {row['seconds']} s: {row['verdict']}"
        print(f"{environment.name} [{number}/{len(suites)}] {suite.name} ... {line}", flush=True)
        if arguments.logs:
            keep_log(arguments.logs, environment.name, suite, outcome)
        if row["verdict"] == "BELOW":
            print(*outcome.output.splitlines()[-TAIL_LINES:], sep="\n", flush=True)
            below.append(Below(environment, suite, outcome))
        rows.append(row)
    return rows, below


@dataclass
class Below:
    """A suite whose result is below the expectation."""

    environment: Environment
    suite: Suite
    outcome: Outcome

    @property
    def only_failed(self) -> bool:
        """Whether nothing is wrong but that some of its tests failed."""
        outcome, suite = self.outcome, self.suite
        reached = (outcome.passed or 0) + outcome.failed
        expects_all = not (suite.failed or suite.fails_with)
        return (
            outcome.status == 1 and expects_all and outcome.failed > 0 and reached >= suite.passed
        )

    def names(self) -> dict[str, str]:
        """Returns, by what a test that failed is called in the list of flaky ones, its name."""
        suite = f"{self.environment.name}, {self.suite.name}"
        return {f"{suite}: {name}": name for name in self.outcome.failures}


def pass_again(below: Sequence[Below]) -> bool:
    """Runs the tests that failed again, if they are few; returns whether all of them pass."""
    if not all(each.only_failed for each in below):
        return False
    failures = {
        called: flaky_tests.Result(False, each.outcome.failures[name])
        for each in below
        for called, name in each.names().items()
    }

    def run_again(_: Sequence[str]) -> dict[str, flaky_tests.Result]:
        results = {}
        for each in below:
            again = each.environment.run(each.suite, only_failed=True)
            ended_well = again.status == 0 and bool(again.passed)
            for called, name in each.names().items():
                passed = ended_well and name not in again.failures
                results[called] = flaky_tests.Result(passed, again.output)
        return results

    return flaky_tests.stage_passes("integrations", failures, run_again)


def suites_of(environment: str) -> list[Suite]:
    """Returns the suites of an environment, in the order of the file."""
    with (INTEGRATIONS / "expected.toml").open("rb") as file:
        table = tomllib.load(file)
    # The environment of the learners is one of its own, without a version in its name.
    family = environment.rpartition("-")[0] or environment
    return [Suite(name, **properties) for name, properties in table[family].items()]


class Environment:
    """A virtual environment with one of the other libraries and this package."""

    def __init__(self, path: pathlib.Path, caches: pathlib.Path, *, tree: bool) -> None:
        self.name = path.name
        # Directories in which pytest stores the failed tests, for a second run.
        self._caches = caches
        self._python = path / "bin" / "python"
        # Variables of the caller must not affect this process or the children of tests.
        foreign = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TF_USE_LEGACY_KERAS")
        self._variables = {k: v for k, v in os.environ.items() if k not in foreign} | {
            "PATH": os.pathsep.join([str(self._python.parent), os.environ["PATH"]]),
            "PYTHONSAFEPATH": "1",
            "PYTHONPATH": os.pathsep.join(map(str, [PROGRAMS, STUBS, *([ROOT] if tree else [])])),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "JAX_PLATFORMS": "cpu",
            # A test of Acme expects the numbers of JAX's default generator before JAX 0.5.
            "JAX_THREEFRY_PARTITIONABLE": "0",
        }
        self._survey = self._ask()
        version = self._survey["versions"].get("TensorFlow", "0.0").split(".")
        if (int(version[0]), int(version[1])) >= (2, 16):
            self._variables["TF_USE_LEGACY_KERAS"] = "1"
        installed = self._survey["folders"]["reverb"]
        if not tree and not str(installed).startswith(self._survey["prefix"]):
            raise SystemExit(f"import reverb gives {installed}, which is not the installed wheel")

    def versions(self) -> str:
        """Returns the versions of the relevant libraries as text."""
        return ", ".join(f"{k} {v}" for k, v in self._survey["versions"].items())

    def run(self, suite: Suite, *, only_failed: bool = False) -> Outcome:
        """Runs a suite in a process and a directory of its own; blocks until it ends.

        Args:
          suite: The suite.
          only_failed: Leaves out what passed in the run before, if the suite is one of pytest.
        """
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory, "output")
            report = pathlib.Path(directory, "report.xml")
            work = pathlib.Path(directory, "work")
            scratch = pathlib.Path(directory, "scratch")
            work.mkdir()
            scratch.mkdir()
            # Acme writes to the home directory, and absl to a directory that processes share and
            # that some tests remove; both are redirected to the suite's directory.
            variables = self._variables | {"HOME": directory, "TEST_TMPDIR": str(scratch)}
            if suite.name.startswith("tests/") and suite.run != "ours":
                ours = pathlib.Path(self._survey["folders"]["reverb"], TRANSFER_QUEUE)
                variables["PYTHONPATH"] = f"{ours}{os.pathsep}{variables['PYTHONPATH']}"
            started = time.monotonic()
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [str(self._python), *self._command(suite, report, str(work), only_failed)],
                    cwd=work,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                status = wait_for(process, suite.timeout_s)
            outcome = Outcome(
                status,
                log.read_text(encoding="utf-8", errors="replace"),
                time.monotonic() - started,
            )
            count(suite, outcome, report)
        return outcome

    def _command(
        self, suite: Suite, report: pathlib.Path, directory: str, only_failed: bool
    ) -> list[str]:
        arguments = suite.arguments_in(directory)
        if suite.run == "program":
            return [str(PROGRAMS / suite.name.split()[0]), *arguments]
        if suite.run == "module":
            return ["-m", suite.name.split()[0], *arguments]
        if suite.run == "multiprocessing":
            return [str(PROGRAMS / "multiprocessing_main.py"), suite.name]
        cache = self._caches / self.name / re.sub(r"\W+", "_", suite.name)
        command = ["-m", "pytest", "-q", "-o", f"cache_dir={cache}", f"--junitxml={report}"]
        if only_failed:
            command += ["--last-failed", "--last-failed-no-failures=none", "-rP"]
        if suite.run == "ours":
            marks = ["-m", "not slow and not conformance"]
            configuration = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
            return [*command, *configuration, *marks, str(ROOT / suite.name)]
        # Other libraries' tests must not use this project's configuration.
        configuration = ["-c", os.devnull, "--rootdir", directory]
        if self.name.startswith("acme-"):
            configuration += ["-p", "jax_compat", "-p", "own_home", "-p", "parsed_flags"]
        folder = self._survey["folders"][suite.name.partition("/")[0]]
        return [*command, *configuration, str(pathlib.Path(str(folder), suite.name))]

    def _ask(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as directory:
            result = subprocess.run(
                [str(self._python), "-c", SURVEY],
                cwd=directory,
                env=self._variables,
                capture_output=True,
                text=True,
                check=True,
            )
        return json.loads(result.stdout)


def wait_for(process: subprocess.Popen[bytes], timeout_s: int) -> int | None:
    """Returns the status of a process; None if it and its children had to be killed."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also after a normal end: children of tests must not run beside the next suite.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def count(suite: Suite, outcome: Outcome, report: pathlib.Path) -> None:
    """Sets the counts of an outcome."""
    if suite.run == "program" or (suite.run == "module" and suite.arguments):
        if outcome.status is not None:
            outcome.passed = int(outcome.status == 0)
            outcome.failed = 1 - outcome.passed
    elif report.exists():
        results = next(ElementTree.parse(report).iter("testsuite")).attrib
        outcome.failed = int(results["failures"]) + int(results["errors"])
        outcome.skipped = int(results["skipped"])
        outcome.passed = int(results["tests"]) - outcome.skipped - outcome.failed
        outcome.failures = failures_in(report)
    elif ran := re.findall(r"^Ran (\d+) tests?", outcome.output, re.MULTILINE):
        # unittest prints "Ran 5 tests in 3s", then "FAILED (failures=1, skipped=1)".
        end = re.findall(r"^(?:OK|FAILED)\b.*", outcome.output, re.MULTILINE)
        ends = dict(re.findall(r"(\w+)=(\d+)", end[-1] if end else ""))
        outcome.failed = int(ends.get("failures", 0)) + int(ends.get("errors", 0))
        outcome.skipped = int(ends.get("skipped", 0))
        outcome.passed = int(ran[-1]) - outcome.skipped - outcome.failed
    if outcome.failed and not outcome.failures:
        outcome.failures = {suite.name: outcome.output}


def failures_in(report: pathlib.Path) -> dict[str, str]:
    """Returns the output of each test that failed in a report of pytest, by its name."""
    failures = {}
    for test in ElementTree.parse(report).iter("testcase"):
        for end in (*test.findall("failure"), *test.findall("error")):
            failures[f"{test.get('classname')}::{test.get('name')}"] = end.text or ""
    return failures


def row_of(environment: str, suite: Suite, outcome: Outcome) -> dict[str, str]:
    """Returns the row of a suite in the table."""
    verdict = judge(suite, outcome)
    obtained = "no result"
    if verdict == "as expected" and suite.fails_with:
        obtained = suite.fails_with
    elif outcome.status is None:
        obtained = f"no end in {suite.timeout_s} s"
    elif suite.expectation().startswith("success"):
        obtained = result_of(outcome)
    elif outcome.passed is not None:
        obtained = counts(outcome.passed, outcome.skipped, outcome.failed)
    if outcome.status not in (None, 0, 1):
        obtained += f", status {outcome.status}"
    return {
        "environment": environment,
        "suite": suite.name,
        "expected": suite.expectation(),
        "obtained": obtained,
        "seconds": str(round(outcome.seconds)),
        "verdict": verdict,
        "reason": suite.reason,
    }


def judge(suite: Suite, outcome: Outcome) -> str:
    """Returns `as expected`, `better` or `BELOW`."""
    passed = outcome.passed or 0
    if suite.fails_with:
        if passed and not outcome.failed:
            return "better"
        return "as expected" if suite.fails_with in outcome.output else "BELOW"
    ended_well = outcome.status == 0 or (
        outcome.status is not None and (suite.crashes_at_exit or suite.failed > 0)
    )
    if not ended_well or passed < suite.passed or outcome.failed > suite.failed:
        return "BELOW"
    if outcome.failed < suite.failed or (suite.run != "ours" and passed > suite.passed):
        return "better"
    return "as expected"


def counts(passed: int, skipped: int, failed: int) -> str:
    """Returns the counts as text, in pytest's words."""
    parts = [f"{passed} passed"]
    parts += [f"{skipped} skipped"] if skipped else []
    parts += [f"{failed} failed"] if failed else []
    return ", ".join(parts)


def result_of(outcome: Outcome) -> str:
    """Returns the result in a program's last line of JSON, or whether it succeeded."""
    for line in reversed(outcome.output.splitlines()):
        if line.startswith("{") and line.endswith("}"):
            facts = json.loads(line)
            return " ".join(f"{key} {facts[key]}" for key in facts.get("show", list(facts)[:3]))
    return "success" if outcome.status == 0 else "no success"


def keep_log(directory: pathlib.Path, environment: str, suite: Suite, outcome: Outcome) -> None:
    """Writes the output of a suite to a file."""
    directory.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "_", suite.name)
    directory.joinpath(f"{environment}.{name}.log").write_text(outcome.output, encoding="utf-8")


def print_table(rows: list[dict[str, str]]) -> None:
    """Prints one line for each suite, then the reasons of deviations."""
    lines = [COLUMNS, *([row[column] for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    print()
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
    for row in rows:
        if row["reason"]:
            print(f"\n{row['environment']}, {row['suite']}: {row['reason']}")


if __name__ == "__main__":
    sys.exit(main())
