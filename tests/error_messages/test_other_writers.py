# SPDX-License-Identifier: Apache-2.0
"""The errors of the older and of the structured writer: class and text, on both paths; see
`test_client.py`.
"""

import numpy as np
import pytest

from reverb import errors, structured
from support.error_texts import COLUMN_A, NOPE, REFUSED, SIGNED, cases, closed


def legacy(call, *steps, **options):
    def run(client):
        options.setdefault("max_sequence_length", 3)
        writer = client.writer(**options)
        for step in steps:
            writer.append(step)
        try:
            return call(writer)
        finally:
            if not writer._closed:
                writer.close()

    return run


def structured_writing(step, *, index=slice(-1, None), table="table", **options):
    def run(client):
        pattern = structured.pattern_from_transform(step, lambda step: step["a"][index])
        config = structured.create_config(pattern, table, **options)
        writer = client.structured_writer([config])
        writer.append(step)
        return writer

    return run


def appending_again(*steps, partial_step=False):
    def run(client):
        writer = structured_writing({"a": 1})(client)
        for step in steps:
            writer.append(step, partial_step=partial_step)

    return run


TD_ERROR = structured.td_error(0.5, {"a": None}, lambda step: step["a"])


INVALID_ARGUMENTS = {
    "legacy: no steps": (
        legacy(lambda w: w.create_item("table", 0, 1.0), [1]),
        "num_timesteps must be at least 1, got 0",
    ),
    "legacy: more steps than allowed": (
        legacy(lambda w: w.create_item("table", 4, 1.0), [1]),
        "num_timesteps must be between 1 and max_sequence_length=3, got 4",
    ),
    "legacy: more steps than there are": (
        legacy(lambda w: w.create_item("table", 2, 1.0), [1]),
        "num_timesteps must not exceed the 1 steps that were appended, got 2",
    ),
    "legacy: a NaN priority": (
        legacy(lambda w: w.create_item("table", 1, float("nan")), [1]),
        "priority must not be NaN",
    ),
    "legacy: more leaves": (
        legacy(lambda w: w.append([1, 2]), [1]),
        "Every step of a chunk must have the same number of tensors: the chunk has 1, the new "
        "step 2: the chunk lacks [1].",
    ),
    "legacy: more leaves over two chunks": (
        legacy(lambda w: w.create_item("table", 2, 1.0), [1], [1, 2], chunk_length=1),
        "All steps of an item must have the same number of tensors, got 1 and 2",
    ),
    "legacy: an empty sequence": (
        legacy(lambda w: w.append_sequence([])),
        "sequence must have at least one leaf, got none",
    ),
    "legacy: a sequence without time": (
        legacy(lambda w: w.append_sequence([1])),
        "leaves of a sequence must have a time axis, got a scalar",
    ),
    "legacy: a ragged sequence": (
        legacy(lambda w: w.append_sequence([np.zeros(2), np.zeros(3)])),
        "leaves of a sequence must have the same length, got [2, 3]",
    ),
    "legacy: a ragged sequence of columns with names": (
        legacy(lambda w: w.append_sequence({"x": np.zeros(2), "y": np.zeros(3)})),
        "leaves of a sequence must have the same length, got {'x': 2, 'y': 3}",
    ),
    "legacy: close of a closed writer": (
        legacy(lambda w: closed(w).close()),
        "close was called before: the writer is closed",
    ),
    "legacy: a closed writer entered": (
        legacy(lambda w: closed(w).__enter__()),
        "a closed writer cannot be entered again",
    ),
    "structured: a positive index": (
        structured_writing({"a": 1}, index=slice(1, None)),
        "Invalid configuration at position 0: start of a pattern node must be negative, "
        "counted from "
        "the current step, got 1.",
    ),
    "structured: index zero": (
        structured_writing({"a": 1}, index=0),
        "Invalid configuration at position 0: stop of a pattern node without a start must not "
        "be 0.",
    ),
    "structured: no table": (
        structured_writing({"a": 1}, table=""),
        "Invalid configuration at position 0: the name of the table is empty.",
    ),
    "structured: more leaves": (
        appending_again({"a": 1, "b": 2}),
        "Flattened data has an unexpected length, got 2 but wanted 1. Compared with the first "
        "step, columns [] are missing, and ['b'] are new.",
    ),
    "structured: a td_error of text": (
        structured_writing({"a": "x"}, priority=TD_ERROR),
        "A td_error priority needs one element of dtype float, double, int32 or int64 per "
        "step, got "
        "dtype string and shape [] in column 0 (path=('a',)).",
    ),
    "structured: a td_error of a vector": (
        structured_writing({"a": np.zeros(2)}, priority=TD_ERROR),
        "A td_error priority needs one element of dtype float, double, int32 or int64 per "
        "step, got "
        "dtype double and shape [2] in column 0 (path=('a',)).",
    ),
}

MISSING_TABLES = {
    "legacy: an unknown table": (legacy(lambda w: w.create_item("nope", 1, 1.0), [1]), NOPE),
}

MISMATCHES = {
    "legacy: another dtype than the signature": (
        legacy(lambda w: w.create_item("signed", 1, 1.0), [1.0]),
        f"{COLUMN_A}, got dtype double and shape []. Trajectory: 0: Tensor<name: 'a', dtype: "
        f"double, shape: []>. {SIGNED}",
    ),
    "legacy: another dtype": (
        legacy(lambda w: w.append([1.0]), [1]),
        "Tensor of wrong dtype provided for column 0. Got double but expected int64.",
    ),
    "legacy: another shape": (
        legacy(lambda w: w.append([np.zeros(2, np.int64)]), [1]),
        "Tensor of incompatible shape provided for column 0. Got [2] which is incompatible "
        "with [].",
    ),
    "structured: another dtype": (
        appending_again({"a": 1.0}),
        "Tensor of wrong dtype provided for column 0 (path=('a',)). Got double but expected int64.",
    ),
    "structured: another shape": (
        appending_again({"a": np.zeros(2, np.int64)}),
        "Tensor of incompatible shape provided for column 0 (path=('a',)). Got [2] which is "
        "incompatible with [].",
    ),
}

WRONG_TYPES = {
    "legacy: None": (
        legacy(lambda w: w.append([None]), [1]),
        "Column 0: None cannot be stored; every step needs a value for every leaf",
    ),
    "legacy: an object": (
        legacy(lambda w: w.append([1, object()])),
        f"Column 1: Values of type object {REFUSED}",
    ),
    "structured: an object": (
        appending_again({"a": object()}),
        f"Column 0: Values of type object {REFUSED}",
    ),
}

PRECONDITIONS = {
    "legacy: append of a closed writer": (
        legacy(lambda w: closed(w).append([1])),
        "append was called on a closed writer",
    ),
    "legacy: flush of a closed writer": (
        legacy(lambda w: closed(w).flush()),
        "flush was called on a closed writer",
    ),
    "structured: a column set twice": (
        appending_again({"a": 1}, {"a": 2}, partial_step=True),
        "Column 0 (path=('a',)) has already been set in the open step",
    ),
}

CASES = cases(
    {
        errors.InvalidArgumentError: INVALID_ARGUMENTS,
        errors.TableNotFoundError: MISSING_TABLES,
        errors.SignatureMismatchError: MISMATCHES,
        TypeError: WRONG_TYPES,
        errors.FailedPreconditionError: PRECONDITIONS,
    }
)


@pytest.mark.parametrize(("call", "kind", "text"), CASES)
def test_the_error_says_what_is_wrong(client, call, kind, text, error_says):
    error_says(lambda: call(client), kind, text.replace("{address}", client.server_address))
