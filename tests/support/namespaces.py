# SPDX-License-Identifier: Apache-2.0
"""Programs with mounts of their own."""

import functools
import subprocess
import textwrap

import pytest

_IN_A_NAMESPACE = """
import os
import subprocess
import sys

if "IN_A_NAMESPACE" not in os.environ:
    os.environ["IN_A_NAMESPACE"] = "yes"
    os.execvp("unshare", ["unshare", "-rm", sys.executable, "-c", SOURCE, *sys.argv[1:]])
os.makedirs(sys.argv[1])
options = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"]
subprocess.run(["mount", *options, sys.argv[1]], check=True)
"""


@functools.cache
def can_unshare():
    """Whether a process may have mounts of its own here."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


NEEDS_UNSHARE = pytest.mark.skipif(not can_unshare(), reason="`unshare -rm mount` is not allowed")


def in_a_namespace(source):
    """A program that first mounts a file system of 4 MiB at its first argument."""
    whole = _IN_A_NAMESPACE + textwrap.dedent(source)
    # The program is started again inside, so it has to know its own text.
    return f"SOURCE = {whole!r}\nexec(SOURCE)"
