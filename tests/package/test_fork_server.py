# SPDX-License-Identifier: Apache-2.0
"""A program that is a fork does what one in an interpreter of its own does."""

import contextlib
import signal
import sys

import pytest

from support.programs import FreshProgram, Program

PROGRAMS = {
    "lines": "print(1); print(input()); import sys; print(sys.argv)",
    "exit code": "import sys; sys.exit(3)",
    "text at exit": "import sys; sys.exit('a text')",
    "exception": "def f():\n    raise ValueError('no')\nf()",
    "no Python": "1 +",
    "ctrl-c": "raise KeyboardInterrupt",
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "main": "import __main__; print(__name__, sorted(n for n in vars(__main__) if n[0] != '_'))",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "standard streams": "import sys; print(sys.stdout.seekable()); sys.stderr.write('e')",
    "environment": "import os; print(os.environ['PATH'], os.getcwd())",
    "threads": "import threading; threading.Thread(target=print, args=(1,)).start()",
    "processes": "import subprocess as s; print(s.run(['sh', '-c', 'exit 4']).returncode)",
    "a server": "import reverb.testing as t\nwith t.server() as c: c.insert([1], {'table': 1})",
}


def ended(kind, source):
    """How a program of a kind ends: exit code, lines, errors."""
    with kind(source, "an argument", "ü") as program:
        with contextlib.suppress(BrokenPipeError):
            program.tell("told")
        code = program.ended()
        lines = []
        while (line := program._lines.get()) is not None:
            lines.append(line)
        return code, lines, program.errors


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends_as_one_of_its_own(name):
    forked = ended(Program, PROGRAMS[name])
    assert forked == ended(FreshProgram, PROGRAMS[name])


def test_a_fork_has_imported_the_package_and_another_one_has_not():
    source = "import sys; print('reverb' in sys.modules)"
    expected = ["True"] if sys.platform == "linux" else ["False"]
    assert ended(Program, source)[1] == expected
    assert ended(FreshProgram, source)[1] == ["False"]
    # Variables that are read at the import of the package need a new import.
    with Program(source, REVERB_LOG="info") as program:
        assert program.line() == "False"
    with Program(source, OTHER="1") as program:
        assert program.line() == expected[0]


def test_a_signal_reaches_only_the_program_that_it_is_for():
    source = "print('ready'); input()"
    with Program(source) as one, Program(source) as other:
        assert (one.line(), other.line()) == ("ready", "ready")
        one.signal(signal.SIGTERM)
        assert one.ended() == -signal.SIGTERM
        assert other.is_running
        one.kill()  # It has ended, so that nothing happens.
        other.tell()
        assert other.ended() == 0
