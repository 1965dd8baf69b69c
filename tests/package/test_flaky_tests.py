# SPDX-License-Identifier: Apache-2.0
"""Tests that fail once: which ones run again, the output, and the failures of a run."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = ("flaky_tests.py", "pytest_runs.py", "python_tests.py", "rust_tests.py")
CONFTEST = """
from support import outcomes

pytest_addoption = outcomes.add_option
pytest_configure = outcomes.configure
"""
SETTINGS = """
[tool.pytest.ini_options]
pythonpath = ["tests"]
addopts = "--strict-markers -p xdist.plugin"
markers = ["alone: runs alone", "slow: takes longer", "conformance: compares"]
"""
# A test that passes from its second run on, and prints.
ONCE = """
import pathlib

def test_once():
    been_here = pathlib.Path(__file__).with_suffix(".been_here")
    first = not been_here.exists()
    been_here.touch()
    print("the first run" if first else "the second run")
    assert not first
"""


MANY = "\n".join(f"def test_{i}(): assert False" for i in range(5))


class Tree:
    """A tree with the tools, and tests of its own."""

    def __init__(self, root):
        self.root = root
        for name in TOOLS:
            self.write(f"tools/{name}", (ROOT / "tools" / name).read_text(encoding="utf-8"))
        outcomes = (ROOT / "tests/support/outcomes.py").read_text(encoding="utf-8")
        self.write("tests/support/outcomes.py", outcomes)
        self.write("tests/conftest.py", CONFTEST)
        self.write("pyproject.toml", SETTINGS)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, tool, *arguments, rerun=True):
        """Runs a tool; returns its status and what it printed."""
        ours = ("RERUN", "PYTEST_ADDOPTS", "CARGO_TARGET_DIR")
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ours and not name.startswith("PYTEST_XDIST")
        }
        done = subprocess.run(
            [sys.executable, self.root / "tools" / tool, *arguments],
            cwd=self.root,
            # Most plugins take longer to import than these tests to run.
            env=environment
            | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            | ({"RERUN": "1"} if rerun else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    @property
    def flaky(self):
        """The list of flaky tests."""
        path = self.root / "target/flaky_tests.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def python_tests(tree, *arguments, **options):
    return tree.run("python_tests.py", "-n", "1", *arguments, **options)


def test_what_fails_once_passes_and_is_told_with_both_outputs(tree):
    # The slashes of an argument are no part of a path.
    decorator = '@pytest.mark.parametrize("address", ["grpc://a//b/./c/"])\n'
    once = ONCE.replace("def test_once():", f"{decorator}def test_once(address):")
    tree.write("tests/test_a.py", f"import pytest\n{once}")
    tree.write("tests/test_b.py", "def test_well(): pass")
    status, output = python_tests(tree)
    assert status == 0, output
    _, told = output.split("==> Flaky: pytest\n")
    first, second = told.split("---- passed when it ran again ----")
    assert "assert not first" in first
    assert "tests/test_a.py::test_once" in first
    assert "the first run" in first
    assert "the second run" in second
    assert tree.flaky == ["pytest: tests/test_a.py::test_once[grpc://a//b/./c/]"]


def test_a_run_that_does_not_end_fails_the_stage(tree):
    endless = """
        import threading

        def waits_for_ever():
            threading.Event().wait()

        def test_does_not_end():
            waits_for_ever()
    """
    tree.write("tests/test_a.py", endless)
    status, output = python_tests(tree, "--limit-s", "10")
    assert status == 1
    assert "pytest did not end within 10.0 s." in output
    assert "in waits_for_ever" in output
    assert "run again" not in output


def test_nothing_runs_again_unless_it_is_asked_for(tree):
    tree.write("tests/test_a.py", ONCE)
    status, output = python_tests(tree, rerun=False)
    assert status == 1
    assert output.count("test session starts") == 1
    assert tree.flaky == []


def test_what_fails_twice_fails(tree):
    tree.write("tests/test_a.py", ONCE)
    tree.write("tests/test_b.py", "def test_badly(): assert False")
    status, output = python_tests(tree)
    assert status == 1
    assert "These tests failed twice:\n    tests/test_b.py::test_badly\n" in output
    assert tree.flaky == []
    assert tree.run("flaky_tests.py") == (0, "Failed twice:\npytest: tests/test_b.py::test_badly\n")


def test_a_file_that_cannot_be_imported_fails_the_stage(tree):
    tree.write("tests/test_a.py", "import nothing_of_this_name")
    tree.write("tests/test_b.py", "def test_well(): pass")
    status, _ = python_tests(tree)
    assert status == 1
    assert tree.flaky == []


@pytest.mark.parametrize(
    ("source", "arguments", "text"),
    [
        (MANY, (), "6 tests failed; at most 5 run again."),
        ("import os\ndef test_dies(): os._exit(3)", (), "crashed while running 'tests/test_a.py"),
        ("def test_well(): pass", ("-m", "slow"), "no tests ran"),
    ],
    ids=["many failures", "a process that dies", "no test chosen"],
)
def test_what_is_no_flaky_test_fails_the_stage_at_once(tree, source, arguments, text):
    tree.write("tests/test_a.py", source)
    tree.write("tests/test_b.py", ONCE)
    status, output = python_tests(tree, *arguments)
    assert status == 1
    assert text in output
    assert output.count("test session starts") == 1
    assert tree.flaky == []


def test_what_is_marked_as_alone_runs_after_all_others(tree):
    alone = """
        import pathlib, pytest

        @pytest.mark.alone
        def test_alone():
            assert len(list(pathlib.Path(__file__).parent.glob("*.done"))) == 4
    """
    other = """
        import pathlib

        def test_other():
            pathlib.Path(__file__).with_suffix(".done").touch()
    """
    tree.write("tests/test_a.py", alone)
    for name in "bcde":
        tree.write(f"tests/test_{name}.py", other)
    status, output = python_tests(tree)
    assert status == 0, output


def test_the_slowest_files_are_printed(tree):
    for name in "abc":
        tree.write(f"tests/test_{name}.py", "import time\ndef test_it(): time.sleep(0.01)")
    _, output = python_tests(tree)
    assert " slowest 3 of 3 files " in output
    assert " s  tests/test_a.py\n" in output


def test_three_flaky_tests_fail_a_run(tree):
    names = [f"pytest: tests/test_a.py::test_{i}" for i in range(3)]
    assert tree.run("flaky_tests.py") == (0, "")
    tree.write("target/flaky_tests.txt", "".join(f"{name}\n" for name in names[:2]))
    status, output = tree.run("flaky_tests.py")
    assert status == 0
    assert output.splitlines()[-2:] == names[:2]
    tree.write("target/flaky_tests.txt", "".join(f"{name}\n" for name in names))
    status, output = tree.run("flaky_tests.py")
    assert status == 1
    assert "3 tests are flaky, 3 are too many." in output


MANIFEST = """
    [package]
    name = "small"
    version = "0.0.0"
    edition = "2021"
    [workspace]
"""
RUST = """
    #[test]
    fn once() {
        let first = !std::path::Path::new("been_here").exists();
        std::fs::write("been_here", "").unwrap();
        println!("{}", if first { "the first run" } else { "the second run" });
        assert!(!first);
    }
    #[test]
    fn well() {}
"""


@pytest.fixture
def crate(tree):
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not here")
    tree.write("Cargo.toml", MANIFEST)
    return tree


def test_a_rust_test_that_fails_once_passes_and_is_told(crate):
    crate.write("src/lib.rs", RUST)
    status, output = crate.run("rust_tests.py")
    assert status == 0, output
    _, told = output.split("==> Flaky: cargo\n")
    first, second = told.split("---- passed when it ran again ----")
    assert "the first run" in first
    assert "the second run" in second
    (flaky,) = crate.flaky
    assert flaky.startswith("cargo: ")
    assert flaky.endswith(" (unit tests: small) once")


def test_a_rust_test_that_fails_or_dies_fails_the_stage(crate):
    crate.write("src/lib.rs", '#[test]\nfn badly() { panic!("no") }')
    status, output = crate.run("rust_tests.py")
    assert status == 1
    assert "These tests failed twice:" in output
    status, output = crate.run("rust_tests.py", rerun=False)
    assert status == 1
    assert "run again" not in output
    crate.write("src/lib.rs", "#[test]\nfn dies() { std::process::abort() }")
    status, output = crate.run("rust_tests.py")
    assert status == 1
    assert "its process ended with -6" in output
    crate.write("src/lib.rs", "#[test]\nfn no_rust() { 1 + }")
    status, _ = crate.run("rust_tests.py")
    assert status == 1
