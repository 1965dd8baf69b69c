# SPDX-License-Identifier: Apache-2.0
"""The conformance vectors, tried on the package whose behaviour they describe."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from support.compared_packages import PEER_PYTHON

_VECTORS = sorted((pathlib.Path(__file__).parent / "vectors").glob("test_*.py"))


@pytest.mark.conformance
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", _VECTORS, ids=lambda path: path.stem)
def test_the_peer_passes(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = ["--noconftest", "-c", "/dev/null", "--import-mode=importlib", "--timeout=120"]
    # Neither the working directory nor a path may lead to this package's `reverb`.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [PEER_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert result.returncode == 0, result.stdout
