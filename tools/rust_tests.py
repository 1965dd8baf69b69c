# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the Rust tests.

    .venv/bin/python tools/rust_tests.py
    .venv/bin/python tools/rust_tests.py --no-run

A few that failed may run again; `flaky_tests.py` says when. One test: `cargo test -p CRATE NAME`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence

import flaky_tests

# The binding crate has no Rust tests: it is glue, and its test binary would need libpython.
_COMPILE = (
    *("cargo", "test", "--workspace", "--exclude=reverb-bindings", "--exclude=regenerate-protos"),
    "--exclude=round-trip-floor",
    *("--lib", "--bins", "--tests", "--no-run", "--message-format=json-render-diagnostics"),
)
# Exit code of a binary of tests if a test failed.
_TESTS_FAILED = 101
_LIMIT_S = 600
# Many tests wait for time to pass, so two binaries run at once, each with a thread per processor.
_SIDE_BY_SIDE = 2


@dataclasses.dataclass(frozen=True)
class Binary:
    """The tests of a crate, or those in its folder `tests`."""

    path: str
    crate: pathlib.Path
    target: str

    def run(self, *arguments: str) -> tuple[int | None, str]:
        """Runs it to its end; returns its status, None if it did not end, and what it printed."""
        try:
            done = subprocess.run(
                [self.path, *arguments],
                cwd=self.crate,
                env=os.environ | {"CARGO_MANIFEST_DIR": str(self.crate)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return None, (error.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout

    def run_all(self, *filters: str) -> tuple[int | None, str]:
        """Runs all its tests, or those with a filter in their name; prints how they ended."""
        started = time.monotonic()
        status, output = self.run(*filters)
        seconds = time.monotonic() - started
        print(f"{self.target}: {summary(output)} ({seconds:.1f} s)", flush=True)
        return status, output

    def run_again(self, name: str) -> flaky_tests.Result:
        """Runs one test, alone."""
        status, output = self.run("--exact", name, "--show-output")
        return flaky_tests.Result(status == 0 and "1 passed" in output, output)


def main() -> int:
    """Returns 0 if the tests passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-run", action="store_true", help="only compile them")
    arguments = parser.parse_args()
    binaries = compiled()
    if arguments.no_run or binaries is None:
        return int(binaries is None)
    failures: dict[str, flaky_tests.Result] = {}
    where: dict[str, tuple[Binary, str]] = {}
    ended_well = True
    with concurrent.futures.ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
        runs = list(threads.map(Binary.run_all, binaries))
    for binary, (status, output) in zip(binaries, runs, strict=True):
        if status == 0:
            continue
        print(output, flush=True)
        outputs = failed(output)
        if status != _TESTS_FAILED or not outputs:
            print(f"{binary.target}: its process ended with {status}.", flush=True)
            ended_well = False
        for name, printed in outputs.items():
            failures[f"{binary.target} {name}"] = flaky_tests.Result(False, printed)
            where[f"{binary.target} {name}"] = (binary, name)

    def run_again(names: Sequence[str]) -> dict[str, flaky_tests.Result]:
        return {name: where[name][0].run_again(where[name][1]) for name in names}

    if not ended_well:
        return 1
    return 0 if not failures or flaky_tests.stage_passes("cargo", failures, run_again) else 1


def compiled() -> list[Binary] | None:
    """Compiles the tests; returns None if they do not compile."""
    done = subprocess.run(_COMPILE, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return None
    binaries = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["executable"]:
            crate = pathlib.Path(message["manifest_path"]).parent
            kind = "tests" if message["target"]["kind"] == ["test"] else "unit tests"
            target = f"{crate.name} ({kind}: {message['target']['name']})"
            binaries.append(Binary(message["executable"], crate, target))
    return sorted(binaries, key=lambda binary: binary.target)


def summary(output: str) -> str:
    """Returns the counts in the last lines of a binary's output."""
    counts = re.findall(r"^test result: .*?\. (.*?);", output, re.MULTILINE)
    passed = re.findall(r"^test result: (.*?); 0 ignored", output, re.MULTILINE)
    return (passed or counts or ["no result"])[-1]


def failed(output: str) -> dict[str, str]:
    """Returns what each test that failed has printed, by its name."""
    names = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", output, re.MULTILINE)
    return {name: printed_by(name, output) for name in names}


def printed_by(name: str, output: str) -> str:
    """Returns what a test has printed."""
    begin = f"---- {name} stdout ----\n"
    _, found, rest = output.partition(begin)
    return found + re.split(r"^(?:---- |failures:$)", rest, maxsplit=1, flags=re.MULTILINE)[0]


if __name__ == "__main__":
    sys.exit(main())
