# SPDX-License-Identifier: Apache-2.0
"""An import needs memory for some episodes, whatever the size of the dataset."""

import pathlib

import pytest

import reverb
from reverb import datasets, testing
from support.programs import FreshProgram

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="/proc/self/status has the memory"
)

# Episodes of 8 MiB; the table keeps a few items, so that the server needs no memory for them.
PROGRAM = """
import sys
import numpy as np
import reverb
from reverb import datasets
from support import made_episodes

def episodes():
    for number in range(50):
        rows = np.full((101, (8 << 20) // 100), number, np.uint8)
        yield made_episodes.episode(100, number, observations=rows)

def anonymous_mib():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024

largest = 0

def shown(counts):
    global largest
    largest = max(largest, anonymous_mib())

client = reverb.Client(sys.argv[1])
client.server_info()
next(episodes())
before = anonymous_mib()
counts = datasets.write(client, "t", episodes(), datasets.{items!r}, progress=shown)
print(counts.num_episodes, largest - before, flush=True)
"""


@pytest.mark.parametrize("items", [datasets.Transitions(), datasets.Episodes(1000)])
def test_a_dataset_of_400_mib_takes_less_than_128(items):
    table = testing.table("t", max_size=3, sampler=reverb.selectors.Uniform())
    with (
        testing.server([table]) as client,
        FreshProgram(PROGRAM.format(items=items), client.server_address) as program,
    ):
        count, mib = program.line().split()
    assert int(count) == 50
    assert float(mib) < 128
