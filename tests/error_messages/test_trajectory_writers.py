# SPDX-License-Identifier: Apache-2.0
"""The errors of trajectory writers: class and text, on both paths; see
`test_client.py`.
"""

import numpy as np
import pytest

import reverb
from reverb import errors
from support.error_texts import (
    CLOSED,
    COLUMN_A,
    EMPTY,
    NOPE,
    NOT_FOUND,
    REFUSED,
    SIGNED,
    cases,
    closed,
)


def trajectory_writer(*steps, refs=3, **options):
    """A writer with steps in its history."""

    def make(client):
        writer = client.trajectory_writer(refs, **options)
        for step in steps:
            writer.append(step)
        return writer

    return make


def on(make, call):
    """`call(writer)` of a writer that is closed afterwards."""

    def run(client):
        writer = make(client)
        try:
            return call(writer)
        finally:
            writer.close()

    return run


def writing(call, *steps, **options):
    return on(trajectory_writer(*steps, **options), call)


def item(writer, *columns, table="table", priority=1.0):
    writer.create_item(table, priority, list(columns))


def expired_column(writer):
    column = writer.history["a"][:]
    writer.append({"a": 1})
    return column


def mixed_column(writer):
    return reverb.TrajectoryColumn([*writer.history["a"], *writer.history["b"]])


def fill_queue(writer):
    item(writer, writer.history["a"][:], table="queue")
    writer.flush()
    item(writer, writer.history["a"][:], table="queue")


A, B = {"a": 0}, {"a": 0, "b": 1.0}
MISSING = (
    "Column ('a',) has no value at a requested step, or its value has left the history "
    "(num_keep_alive_refs). TrajectoryColumns cannot contain any None data references."
)
EXPIRED = (
    "The reference has expired: only the last num_keep_alive_refs steps of the episode can be used."
)
WAITING = (
    "items sent to {address} but not confirmed and 0 items not sent yet (tables: queue). Table "
    "queue: 1 more sample allows the next insert. A table confirms an item once its rate limiter "
    "lets it in. Table queue: 1 item(s), max_size 1, min_size_to_sample 1, 1 insert(s), 0 "
    "sample(s), samples_per_insert 1, min_diff 0, max_diff 1."
)


PRECONDITIONS = {
    "history before the first step": (
        writing(lambda w: w.history),
        "history has no columns yet: append a step with at least one value first",
    ),
    "numpy of expired values": (writing(lambda w: expired_column(w).numpy(), A, refs=1), EXPIRED),
    "shape of expired values": (writing(lambda w: expired_column(w).shape, A, refs=1), EXPIRED),
    "dtype of expired values": (writing(lambda w: expired_column(w).dtype, A, refs=1), EXPIRED),
    "configure: too late": (
        writing(lambda w: w.configure(("a",), num_keep_alive_refs=2, max_chunk_length=2), A),
        "Column ('a',) cannot be configured while 1 of its steps wait in an unfinished chunk. "
        "Configure it before its first append, or after flush or end_episode.",
    ),
    "append of a closed writer": (writing(lambda w: closed(w).append(A), A), CLOSED),
    "create_item of a closed writer": (
        writing(lambda w: item(closed(w), w.history["a"][:]), A),
        CLOSED,
    ),
    "flush of a closed writer": (writing(lambda w: closed(w).flush(), A), CLOSED),
    "end_episode of a closed writer": (writing(lambda w: closed(w).end_episode(), A), CLOSED),
}

MISMATCHES = {
    "another dtype": (
        writing(lambda w: w.append({"a": 1.0}), A),
        "Tensor of wrong dtype provided for column ('a',). Got double but expected int64.",
    ),
    "another shape": (
        writing(lambda w: w.append({"a": np.zeros(2, np.int64)}), A),
        "Tensor of incompatible shape provided for column ('a',). Got [2] which is incompatible "
        "with [].",
    ),
    "another shape than the signature": (
        writing(lambda w: item(w, w.history["a"][:], table="signed"), A),
        f"{COLUMN_A}, got dtype int64 and shape [1]. Trajectory: 0: Tensor<name: 'a', dtype: "
        "int64, "
        f"shape: [1]>. {SIGNED}",
    ),
}

INVALID_ARGUMENTS = {
    "a nest for a leaf": (
        writing(lambda w: w.append({"a": [1]}), A),
        "column ('a',) holds single values since the first step, got a nest: [1]",
    ),
    "a leaf for a nest": (
        writing(lambda w: w.append({"a": 1}), {"a": [1]}),
        "('a',) is a nest of columns since the first step; leave the whole field out instead of "
        "giving 1",
    ),
    "a column set twice": (
        writing(lambda w: (w.append({"a": 1}, partial_step=True), w.append({"a": 2})), A),
        "Field ('a',) has already been set in the active step by previous (partial) append "
        "call and "
        "thus must be omitted or set to None but got: 2",
    ),
    "an item without columns": (writing(lambda w: item(w), A), EMPTY),
    "an item of an empty column": (writing(lambda w: item(w, w.history["a"][3:]), A), EMPTY),
    "an item with an empty column": (
        writing(lambda w: item(w, w.history["a"][:], w.history["b"][5:]), B),
        "trajectory column 1 is empty; every column needs at least one step",
    ),
    "an item with an empty column that has a name": (
        writing(
            lambda w: w.create_item(
                "table", 1.0, {"x": w.history["a"][:], "y": {"z": w.history["b"][5:]}}
            ),
            B,
        ),
        "trajectory column y/z is empty; every column needs at least one step",
    ),
    "an item of expired values": (
        writing(lambda w: item(w, expired_column(w)), A, refs=1),
        "trajectory column 0 refers to a step that has expired: only the last num_keep_alive_refs "
        "steps of the episode can be used. Raise num_keep_alive_refs or create the item earlier",
    ),
    "an item of different columns": (
        writing(lambda w: item(w, mixed_column(w)), B),
        "trajectory column 0 mixes steps of dtype int64 and shape [] with steps of dtype "
        "double and "
        "shape []",
    ),
    "a NaN priority": (
        writing(lambda w: item(w, w.history["a"][:], priority=float("nan")), A),
        "priority must not be NaN",
    ),
    "a priority refused late": (
        writing(
            lambda w: (item(w, w.history["a"][:], table="prioritized", priority=-1.0), w.flush()), A
        ),
        "Item {key} of table prioritized: Priority must not be negative. Got -1 for a "
        "prioritized selector.",
    ),
    "numpy of an empty column": (
        writing(lambda w: w.history["a"][5:].numpy(), A),
        "The column is empty; there is nothing to stack.",
    ),
    "numpy of different columns": (
        writing(lambda w: mixed_column(w).numpy(), B),
        "The column mixes steps of different dtypes or shapes.",
    ),
    "an index of a history before the first step": (
        writing(lambda w: w.history["a"][-2], A),
        MISSING,
    ),
    "a slice from before the first step": (writing(lambda w: w.history["a"][-2:], A), MISSING),
    "a slice over a missing value": (writing(lambda w: w.history["a"][:], A, {"b": 1}), MISSING),
    "a column of None": (lambda c: reverb.TrajectoryColumn([None], path=("a",)), MISSING),
    "a squeezed column of two": (
        writing(lambda w: reverb.TrajectoryColumn([*w.history["a"]] * 2, squeeze=True), A),
        "Columns must contain exactly one data reference when squeeze is set, got 2",
    ),
    "configure: no references": (
        writing(lambda w: w.configure(("a",), num_keep_alive_refs=0, max_chunk_length=None)),
        "num_keep_alive_refs must be at least 1, got 0",
    ),
    "configure: no chunk": (
        writing(lambda w: w.configure(("a",), num_keep_alive_refs=2, max_chunk_length=0)),
        "max_chunk_length must be at least 1, got 0",
    ),
    "configure: too long a chunk": (
        writing(lambda w: w.configure(("a",), num_keep_alive_refs=2, max_chunk_length=3)),
        "max_chunk_length must be at most num_keep_alive_refs = 2, got 3",
    ),
    "flush: fewer items than none": (
        writing(lambda w: w.flush(-1)),
        "block_until_num_items must be at least 0, got -1",
    ),
}

WRONG_TYPES = {
    "an object": (
        writing(lambda w: w.append({"a": object()}), A),
        f"Column ('a',): Values of type object {REFUSED}",
    ),
    "a record": (
        writing(lambda w: w.append({"a": np.zeros(2, "i4,f4")}), A),
        f"Column ('a',): Values of NumPy dtype [('f0', '<i4'), ('f1', '<f4')] {REFUSED}",
    ),
    "an item of an object": (
        writing(lambda w: item(w, object()), A),
        "all leaves of a trajectory must be TrajectoryColumn objects, such as "
        "history[\"x\"][-3:], or constants (numbers, texts or arrays), got object for leaf '0'",
    ),
    "an item of a date": (
        writing(lambda w: item(w, np.datetime64("2020-01-01")), A),
        f"Column 0: Values of NumPy dtype datetime64[D] {REFUSED}",
    ),
    "an item of an int of more than 64 bits": (
        writing(lambda w: item(w, 2**70), A),
        f"Column 0: Values of type int of more than 64 bits {REFUSED}",
    ),
    "an item of a history": (
        writing(lambda w: item(w, w.history["a"]), A),
        "all leaves of a trajectory must be TrajectoryColumn objects, such as "
        'history["x"][-3:], or constants (numbers, texts or arrays), got ColumnHistory for leaf '
        "'0'",
    ),
    "a priority that is a str": (
        writing(lambda w: item(w, w.history["a"][:], priority="x"), A),
        "priority must be a number, got str",
    ),
    "an index of a column that is a str": (
        writing(lambda w: w.history["a"][:]["x"], A),
        "Columns are indexed with an int, a slice or a list of ints, got <class 'str'>",
    ),
    "a list with a float": (
        writing(lambda w: w.history["a"][[0, 1.5]], A),
        "Columns are indexed with an int, a slice or a list of ints, got <class 'float'>",
    ),
}

MISSING_TABLES = {
    "an unknown table": (writing(lambda w: item(w, w.history["a"][:], table="nope"), A), NOPE),
    "an unknown table found out late": (
        writing(
            lambda w: (item(w, w.history["a"][:], table="nope"), w.flush()), A, validate_items=False
        ),
        NOT_FOUND,
    ),
}

INDICES = {
    "shape of an empty column": (
        writing(lambda w: w.history["a"][5:].shape, A),
        "The column is empty",
    ),
    "an index of a column out of range": (
        writing(lambda w: w.history["a"][:][5], A),
        "Index 5 is out of range for a column of 1 steps",
    ),
    "an index of a history out of range": (
        writing(lambda w: w.history["a"][1], A),
        "Index 1 is out of range for column ('a',) of 1 steps",
    ),
}

DEADLINES = {
    "flush: a timeout": (
        writing(lambda w: (fill_queue(w), w.flush(timeout_ms=300)), A),
        f"Timeout exceeded: flush did not finish within 300 ms. It was waiting for 1 {WAITING}",
    ),
    "end_episode: a timeout": (
        writing(lambda w: (fill_queue(w), w.end_episode(timeout_ms=300)), A),
        f"Timeout exceeded: end_episode did not finish within 300 ms. It was waiting for 1 "
        f"{WAITING}",
    ),
}

CASES = cases(
    {
        errors.FailedPreconditionError: PRECONDITIONS,
        errors.SignatureMismatchError: MISMATCHES,
        errors.InvalidArgumentError: INVALID_ARGUMENTS,
        TypeError: WRONG_TYPES,
        errors.TableNotFoundError: MISSING_TABLES,
        IndexError: INDICES,
        errors.DeadlineExceededError: DEADLINES,
    }
)


@pytest.mark.parametrize(("call", "kind", "text"), CASES)
def test_the_error_says_what_is_wrong(client, call, kind, text, error_says):
    error_says(lambda: call(client), kind, text.replace("{address}", client.server_address))
