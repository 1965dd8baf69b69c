# SPDX-License-Identifier: Apache-2.0
"""Random damage of datasets of every layout: each is an error that names the file, or is read."""

import os
import pathlib
import random
import shutil
import subprocess
import sys

import pytest

from reverb.datasets.formats import FORMATS
from support import damaged_datasets

pytest.importorskip("h5py", reason="it comes with the extra `minari`")
pytest.importorskip("datasets", reason="it comes with the extra `hf`")
pytest.importorskip("tensorflow_datasets", reason="it comes with the extra `rlds`")

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_SEEDS = 30
NUM_SLOW_SEEDS = 1000


def test_every_format_is_damaged():
    assert {it.partition(" ")[0] for it in damaged_datasets.LAYOUTS} == set(FORMATS)


@pytest.mark.parametrize("layout", damaged_datasets.LAYOUTS)
def test_damage_is_an_error_that_names_the_file(layout, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    source = damaged_datasets.LAYOUTS[layout](good)
    assert damaged_datasets.fault_of(source, good) is None
    faults = {}
    for seed in range(NUM_SEEDS):
        shutil.copytree(good, bad)
        name = damaged_datasets.damage(bad, random.Random(f"{layout} {seed}"))
        fault = damaged_datasets.fault_of(source.replace(str(good), str(bad)), bad)
        if fault is not None:
            faults[f"seed {seed}, {name}"] = fault
        shutil.rmtree(bad)
    assert faults == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", damaged_datasets.LAYOUTS)
def test_much_damage_takes_little_memory(layout, tmp_path):
    tests = pathlib.Path(__file__).parents[1]
    paths = os.pathsep.join(["", str(tests), os.environ.get("PYTHONPATH", "")])
    arguments = [layout, tmp_path / "data", 0, NUM_SLOW_SEEDS]
    done = subprocess.run(
        [sys.executable, "-m", "support.damaged_datasets", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths.strip(os.pathsep)},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *faults, last = done.stdout.splitlines()
    assert faults == []
    count, mib = map(int, last.split())
    assert count == NUM_SLOW_SEEDS
    # An episode and a unit of a file have 32 MiB at most.
    assert mib < 128
