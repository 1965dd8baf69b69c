# SPDX-License-Identifier: Apache-2.0
"""Errors of `make` on a machine that lacks a requirement."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Programs that run when the Makefile is read, and for `make help`.
TOOLS = ("make", "find", "uname", "tr", "grep", "sed", "expand")
SOURCES = (
    "Makefile",
    "Cargo.toml",
    "Cargo.lock",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "tools",
)


@pytest.fixture
def machine(tmp_path):
    """A clone without environments, on a machine without Python and cargo."""
    for name in ("clone/reverb/tf_ops/shim", "clone/notebooks", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in SOURCES:
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    for name in TOOLS:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not here")
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def have(machine, name, script=""):
    """Puts a program on the machine."""
    program = machine / "bin" / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def make(machine, *arguments):
    """Runs make, which may only say what it would do; returns its status and what it wrote."""
    done = subprocess.run(
        [machine / "bin" / "make", "--dry-run", *arguments],
        cwd=machine / "clone",
        env={"PATH": str(machine / "bin")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("target", ["setup", "build", "test", "demo"])
def test_make_without_python_says_so_in_one_line(machine, target):
    have(machine, "cargo")
    status, (line,) = make(machine, target)
    assert status == 2
    assert "needs Python 3.10 or later, and python3 was not found" in line


def test_make_with_an_old_python_says_so_in_one_line(machine):
    have(machine, "cargo")
    have(machine, "python3", "echo is Python 3.8")
    status, (line,) = make(machine, "build")
    assert status == 2
    assert "needs Python 3.10 or later, and python3 is Python 3.8" in line
    assert "make PYTHON=python3.11 build" in line


@pytest.mark.parametrize("target", ["build", "test", "wheel", "release", "demo", "check", "docs"])
def test_make_without_cargo_says_so_in_one_line(machine, target):
    have(machine, "python3")
    status, (line,) = make(machine, target)
    assert status == 2
    assert "needs Rust 1.89 or later, and cargo was not found" in line


def test_make_setup_needs_no_cargo(machine):
    have(machine, "python3")
    status, lines = make(machine, "setup")
    assert (status, lines[-1]) == (0, "touch .venv/.setup-done")


def test_an_environment_that_exists_needs_no_other_python(machine):
    have(machine, "cargo")
    environment = machine / "clone" / ".venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").touch()
    status, lines = make(machine, "setup")
    assert (status, lines[-1]) == (0, "touch .venv/.setup-done")


@pytest.mark.parametrize("target", ["help", "clean"])
def test_make_help_and_clean_need_nothing(machine, target):
    assert make(machine, target)[0] == 0
