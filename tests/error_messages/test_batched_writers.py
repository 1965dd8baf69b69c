# SPDX-License-Identifier: Apache-2.0
"""The errors of batched writers: class and text, on both paths; see
`test_client.py`.
"""

import numpy as np
import pytest

from reverb import errors
from support.error_texts import CLOSED, COLUMN_A, EMPTY, NOPE, REFUSED, SIGNED, cases, closed


def batched(call, *steps):
    def make(client):
        writer = client.batched_trajectory_writer(2, 3)
        for step in steps:
            writer.append(step)
        return writer

    def run(client):
        writer = make(client)
        try:
            return call(writer)
        finally:
            writer.close()

    return run


def set_twice_in_one_row(writer):
    writer.append(ROWS, partial_step=True)
    writer.end_episode(where=[True, False])
    writer.append(ROWS)


def numpy_after_one_episode_ended(writer):
    writer.end_episode(where=[True, False])
    writer.append(ROWS)
    writer.history["a"][:].numpy()


ROWS = {"a": np.arange(2)}
INDEXED = (
    "Batched columns are indexed with an int, a slice, a list of ints or an array [K] of integers, "
    "got"
)


INVALID_ARGUMENTS = {
    "another number of rows": (
        batched(lambda w: w.append({"a": np.zeros(3, np.int64)}), ROWS),
        "The first dimension of column ('a',) must be batch_size=2, got shape [3]",
    ),
    "no rows": (
        batched(lambda w: w.append({"a": 3}), ROWS),
        "The first dimension of column ('a',) must be batch_size=2, got shape []",
    ),
    "a column set twice": (
        batched(set_twice_in_one_row, ROWS),
        "Field ('a',) has already been set in the active step of environment 1 by previous "
        "(partial) "
        "append call and thus must be omitted or set to None",
    ),
    "an environment with too few steps": (
        batched(
            lambda w: w.create_items("table", 1.0, [w.history["a"][-2:]], where=[False, True]), ROWS
        ),
        "Environment 1 was selected by `where`, but its history of 1 steps lacks a step that "
        "the item "
        "needs",
    ),
    "a mask of another length": (
        batched(lambda w: w.create_items("table", 1.0, [w.history["a"][-1:]], where=[True]), ROWS),
        "where must have shape [2], one value for each row of the batch, or be one value for all, "
        "got shape [1]",
    ),
    "priorities of another length": (
        batched(lambda w: w.create_items("table", [1.0], [w.history["a"][-1:]]), ROWS),
        "priorities must have shape [2], one value for each row of the batch, or be one value for "
        "all, got shape [1]",
    ),
    "a NaN priority": (
        batched(
            lambda w: w.create_items("table", [1.0, float("nan")], [w.history["a"][-1:]]), ROWS
        ),
        "priority must not be NaN",
    ),
    "an item of a constant with other rows": (
        batched(lambda w: w.create_items("table", 1.0, {"x": np.zeros(3)}), ROWS),
        "column x must be one value for all environments, or have a row for each, [2, ...], got "
        "shape [3]",
    ),
    "an item without columns": (batched(lambda w: w.create_items("table", 1.0, []), ROWS), EMPTY),
    "an item of no step": (
        batched(lambda w: w.create_items("table", 1.0, [w.history["a"][[]]]), ROWS),
        EMPTY,
    ),
    "an item of a column without steps": (
        batched(
            lambda w: w.create_items("table", 1.0, [w.history["a"][-1], w.history["a"][[]]]), ROWS
        ),
        "trajectory column 1 is empty; every column needs at least one step",
    ),
    "an item of a column without steps that has a name": (
        batched(
            lambda w: w.create_items(
                "table", 1.0, {"x": w.history["a"][-1], "y": w.history["a"][[]]}
            ),
            ROWS,
        ),
        "trajectory column y is empty; every column needs at least one step",
    ),
    "numpy of no step": (
        batched(lambda w: w.history["a"][[]].numpy(), ROWS),
        "The column is empty; there is nothing to stack.",
    ),
    "numpy of different numbers of steps": (
        batched(numpy_after_one_episode_ended, ROWS),
        "The environments have different numbers of the requested steps: environment 0 has 1, "
        "environment 1 has 2. Use an index that selects the same number of steps in each.",
    ),
    "a stride backwards": (
        batched(lambda w: w.history["a"][::-1], ROWS),
        "The stride of a batched slice must be at least 1, got -1.",
    ),
    "numpy of missing steps": (
        batched(lambda w: w.history["a"][-2:].numpy(), ROWS),
        "The history of environment 0 lacks a requested step.",
    ),
    "a mask of ends of another length": (
        batched(lambda w: w.end_episode(where=[True]), ROWS),
        "where must have shape [2], one value for each row of the batch, or be one value for all, "
        "got shape [1]",
    ),
}

MISMATCHES = {
    "another dtype": (
        batched(lambda w: w.append({"a": np.zeros(2)}), ROWS),
        "Tensor of wrong dtype provided for column ('a',). Got double but expected int64.",
    ),
    "another shape than the signature": (
        batched(lambda w: w.create_items("signed", 1.0, [w.history["a"][-1:]]), ROWS),
        f"{COLUMN_A}, got dtype int64 and shape [1]. Trajectory: 0: Tensor<name: 'a', dtype: "
        "int64, "
        f"shape: [1]>. {SIGNED}",
    ),
}

WRONG_TYPES = {
    "a date": (
        batched(lambda w: w.append({"a": np.zeros(2, "M8[s]")}), ROWS),
        f"Column ('a',): Values of NumPy dtype datetime64[s] {REFUSED}",
    ),
    "an item of an object": (
        batched(lambda w: w.create_items("table", 1.0, [object()]), ROWS),
        "all leaves of a trajectory must be BatchedTrajectoryColumn objects, such as slices of the "
        "history of this writer, or constants (numbers, texts or arrays), got object for leaf '0'",
    ),
    "an index that is a text": (
        batched(lambda w: w.history["a"]["0"], ROWS),
        f"{INDEXED} <class 'str'>",
    ),
    "an index of fractions": (
        batched(lambda w: w.history["a"][[-1, 0.5]], ROWS),
        f"{INDEXED} <class 'float'>",
    ),
    "an array of fractions": (
        batched(lambda w: w.history["a"][np.zeros(2)], ROWS),
        f"{INDEXED} <class 'numpy.ndarray'>",
    ),
    "an array of indices of two dimensions": (
        batched(lambda w: w.history["a"][np.zeros((1, 2), int)], ROWS),
        f"{INDEXED} <class 'numpy.ndarray'>",
    ),
}

MISSING_TABLES = {
    "an unknown table": (
        batched(lambda w: w.create_items("nope", 1.0, [w.history["a"][-1:]]), ROWS),
        NOPE,
    ),
}

PRECONDITIONS = {
    "append of a closed writer": (batched(lambda w: closed(w).append(ROWS), ROWS), CLOSED),
}

CASES = cases(
    {
        errors.InvalidArgumentError: INVALID_ARGUMENTS,
        errors.SignatureMismatchError: MISMATCHES,
        TypeError: WRONG_TYPES,
        errors.TableNotFoundError: MISSING_TABLES,
        errors.FailedPreconditionError: PRECONDITIONS,
    }
)


@pytest.mark.parametrize(("call", "kind", "text"), CASES)
def test_the_error_says_what_is_wrong(client, call, kind, text, error_says):
    error_says(lambda: call(client), kind, text.replace("{address}", client.server_address))
