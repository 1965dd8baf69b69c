# SPDX-License-Identifier: Apache-2.0
"""The conformance vectors, tried on the package whose behaviour they describe."""

import os
import pathlib
import subprocess

import pytest

from support.compared_packages import PEER_PYTHON

_HERE = pathlib.Path(__file__).parent
_VECTORS = sorted((_HERE / "vectors").glob("test_*.py"))


@pytest.mark.conformance
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", _VECTORS, ids=lambda path: path.stem)
def test_the_peer_passes(path, tmp_path):
    options = ["--noconftest", "-c", "/dev/null", "--import-mode=importlib", "--timeout=120"]
    # The path leads to `support`. Neither it nor the working directory may lead to this package's
    # `reverb`.
    environment = os.environ | {"PYTHONPATH": str(_HERE.parent)}
    result = subprocess.run(
        [PEER_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert result.returncode == 0, result.stdout
