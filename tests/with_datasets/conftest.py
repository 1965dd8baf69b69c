# SPDX-License-Identifier: Apache-2.0
"""Tests with Minari, Hugging Face's datasets and others; without Minari they are skipped.

Nothing is downloaded: each test makes its datasets.
"""

import os

import pytest

from support.skipped import skip_without

# Before the library is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

pytest_pycollect_makemodule = skip_without("minari", "Minari", "test-datasets")


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    """Directories of the libraries for each test."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
