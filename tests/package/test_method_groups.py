# SPDX-License-Identifier: Apache-2.0
"""The reference shows each method of a client in one group of its tables."""

import pytest

import reverb
from reverb import aio
from support.programs_as_modules import program_as_module


def groups():
    with program_as_module("docs/extensions/method_groups.py") as module:
        return module.GROUPS


@pytest.mark.parametrize("cls", [reverb.Client, aio.Client])
def test_each_method_is_in_one_group(cls):
    of_class = groups()["reverb.Client" if cls is reverb.Client else "reverb.aio.Client"]
    grouped = [name for names in of_class.values() for name in names]
    assert len(grouped) == len(set(grouped))
    public = {name for name in vars(cls) if not name.startswith("_")}
    # Writers of dm-reverb, which the other client lacks.
    assert set(grouped) - public <= {"structured_writer", "writer"}
    assert public <= set(grouped)
