# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the command's tests: tables to look into, and the command itself."""

import numpy as np
import pytest

from reverb import command, testing
from reverb.command import export
from reverb.specs import TensorSpec
from support.command_items import Everything, FakeSource, every_dtype


@pytest.fixture(scope="module")
def everything():
    """Items of 1 to 5 steps with all dtypes and a squeezed column, in a table with a signature."""
    steps = every_dtype(9)
    signature = {
        name: TensorSpec([None, *column.shape[1:]], column.dtype) for name, column in steps.items()
    }
    signature = {
        "all": signature,
        "last": (TensorSpec([], np.int64), TensorSpec([2, 3], np.uint8)),
    }
    tables = [testing.table("replay", signature=signature), testing.table("empty")]
    with testing.server(tables) as client, client.trajectory_writer(5) as writer:
        inserted, priorities = [], []
        images = np.arange(9 * 6, dtype=np.uint8).reshape(9, 2, 3)
        for i in range(9):
            step = {name: column[i] for name, column in steps.items()}
            writer.append({"all": step, "number": np.int64(-i), "image": images[i]})
            length = min(i % 5 + 1, i + 1)
            history = writer.history
            trajectory = {
                "all": {name: column[-length:] for name, column in history["all"].items()},
                "last": (history["number"][-1], history["image"][-1]),
            }
            writer.create_item("replay", i / 7, trajectory)
            priorities.append(i / 7)
            inserted.append(
                {f"all/{name}": column[i + 1 - length : i + 1] for name, column in steps.items()}
                | {"last/0": np.int64(-i), "last/1": images[i]}
            )
        writer.flush()
        yield Everything(client, inserted, priorities)


@pytest.fixture
def run(capsys):
    """Runs the command: `code, out, err = run("inspect", address)`."""

    def run(*arguments):
        code = command.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def export_items(tmp_path):
    """Exports items that never were in a server, and returns where the files are."""
    numbers = iter(range(1_000_000))

    def export_items(items, format_, signature=None, **options):
        path = tmp_path / f"export-{next(numbers)}"
        export.export(FakeSource(items, signature), "table", format_, path, **options)
        return path

    return export_items
