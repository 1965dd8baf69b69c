# SPDX-License-Identifier: Apache-2.0
"""The errors of a client's calls: class and text, on both paths.

A text names the argument or the thing, its value, the limit, and, where it is not plain, what to
do. Errors of making tables, limiters, specs and configs are tested with those.
"""

import numpy as np
import pytest

import reverb
from reverb import errors
from support.error_texts import COLUMN_A, EMPTY, NOPE, NOT_FOUND, REFUSED, SIGNED, TABLES, cases


def inserted(client, table):
    """The key of a new item."""
    client.insert([1], {table: 1.0})
    return next(client.sample(table))[0].info.key


def windows(client):
    """A batch of windows."""
    client.insert_sequence([np.arange(3)], {"table": 1.0})
    return client.sample_batch("table", 1, window=reverb.Window(2))


INVALID_ARGUMENTS = {
    "insert: no table": (
        lambda c: c.insert([1], {}),
        "priorities must name at least one table, got none",
    ),
    "insert: nothing": (lambda c: c.insert([], {"table": 1.0}), EMPTY),
    "insert: a NaN priority": (
        lambda c: c.insert([1], {"table": float("nan")}),
        "priority must not be NaN, got NaN for table table",
    ),
    "insert: a negative priority": (
        lambda c: c.insert([1], {"prioritized": -1.0}),
        "Item {key} of table prioritized: Priority must not be negative. Got -1 for a "
        "prioritized selector.",
    ),
    "insert: an infinite priority": (
        lambda c: c.insert([1], {"prioritized": float("inf")}),
        "Item {key} of table prioritized: Priority must be finite for a prioritized selector, got "
        "inf.",
    ),
    "insert: a huge priority": (
        lambda c: c.insert([1], {"prioritized": 1e200}),
        "Item {key} of table prioritized: Priority 1e200 to the power of priority_exponent 2 must "
        "be at most 1e298.",
    ),
    "insert: a batch for no table": (
        lambda c: c.insert_batch([np.zeros(2)], {}),
        "priorities must name at least one table, got none",
    ),
    "insert: a batch of nothing": (
        lambda c: c.insert_batch([], {"table": 1.0}),
        "data must have at least one leaf, got none",
    ),
    "insert: a ragged batch": (
        lambda c: c.insert_batch([np.zeros(2), np.zeros(3)], {"table": 1.0}),
        "leaves of a batch must all have shape [B, ...], got [[2], [3]]",
    ),
    "insert: a ragged batch of columns with names": (
        lambda c: c.insert_batch({"x": np.zeros(2), "y": {"z": np.zeros((3, 1))}}, {"table": 1.0}),
        "leaves of a batch must all have shape [B, ...], got {'x': [2], 'y/z': [3, 1]}",
    ),
    "insert: a batch of a scalar": (
        lambda c: c.insert_batch([1.0], {"table": 1.0}),
        "leaves of a batch must all have shape [B, ...], got [[]]",
    ),
    "insert: a batch with too many priorities": (
        lambda c: c.insert_batch([np.zeros(2)], {"table": [1.0, 2.0, 3.0]}),
        "priorities must have shape [2], one value for each row of the batch, or be one value for "
        "all, got shape [3]",
    ),
    "insert: a batch with a NaN priority": (
        lambda c: c.insert_batch([np.zeros(2)], {"table": [1.0, float("nan")]}),
        "priority must not be NaN, got NaN for table table",
    ),
    "sample: no samples": (
        lambda c: next(c.sample("table", 0)),
        "num_samples must be at least 1, got 0",
    ),
    "sample: fewer than none": (
        lambda c: next(c.sample("table", -2)),
        "num_samples must be at least 1, got -2",
    ),
    "sample: a timeout below 0": (
        lambda c: next(c.sample("table", timeout_ms=-5)),
        "timeout_ms must be a number of milliseconds of at least 0, or None for no limit, got -5",
    ),
    "sample: a batch with a timeout below 0": (
        lambda c: c.sample_batch("table", 1, timeout_ms=-5),
        "timeout_ms must be a number of milliseconds of at least 0, or None for no limit, got -5",
    ),
    "sample: an empty batch": (
        lambda c: c.sample_batch("table", 0),
        "batch_size must be at least 1, got 0",
    ),
    "sample: a window of a ragged batch": (
        lambda c: c.sample_batch("table", 1, window=reverb.Window(2), ragged="pad"),
        "window is for samples of one length, and ragged for items of different lengths: give only "
        "one of them, got ragged='pad'",
    ),
    "sample: a window without steps": (
        lambda c: c.sample_batch("table", 1, window=reverb.Window(0)),
        "window.length must be at least 1, got 0",
    ),
    "sample: weights of windows by the table": (
        lambda c: reverb.importance_weights(windows(c), 1.0),
        "normalize must be \"batch\" for a batch of windows, got 'table': no server knows the "
        "smallest probability of a window of its table, or how many windows that has. Pass "
        'normalize="batch", or per="item" for the weights of the items, whichever of their windows '
        "was drawn",
    ),
    "client: mutate: a negative priority": (
        lambda c: c.mutate_priorities("prioritized", {inserted(c, "prioritized"): -1.0}),
        "Item {key} of table prioritized: Priority must not be negative. Got -1 for a "
        "prioritized selector.",
    ),
    "client: mutate: a NaN priority": (
        lambda c: c.mutate_priorities("table", {inserted(c, "table"): float("nan")}),
        "Item {key} of table table: Priority must not be NaN.",
    ),
    "client: update: None": (
        lambda c: c.update_priorities("table", None, [1.0]),
        "keys must have shape [B], one for each item, got shape []",
    ),
    "client: update: a list of lists with a key of 64 bits": (
        lambda c: c.update_priorities("table", [[2**63, -1]], [1.0, 1.0]),
        "keys must have shape [B], one for each item, got shape [1, 2]",
    ),
    "client: update: keys of sequences": (
        lambda c: c.update_priorities("table", np.ones((2, 3), np.int64), [1.0, 1.0]),
        "keys must have shape [B], one for each item, got shape [2, 3]",
    ),
    "client: update: too few priorities": (
        lambda c: c.update_priorities("table", [1, 2, 3], [1.0, 1.0]),
        "priorities must have shape [3], one value for each row of the batch, or be one value for "
        "all, got shape [2]",
    ),
    "client: writer: no length": (
        lambda c: c.writer(0),
        "max_sequence_length must be at least 1, got 0",
    ),
    "client: writer: too long chunks": (
        lambda c: c.writer(3, chunk_length=4),
        "chunk_length must be from 1 to max_sequence_length = 3, got 4",
    ),
    "client: writer: no items": (
        lambda c: c.writer(3, max_in_flight_items=0),
        "max_in_flight_items must be at least 1, got 0",
    ),
    "client: trajectory_writer: no references": (
        lambda c: c.trajectory_writer(0),
        "num_keep_alive_refs must be at least 1, got 0",
    ),
    "client: batched_trajectory_writer: nobody": (
        lambda c: c.batched_trajectory_writer(0, 1),
        "batch_size must be at least 1, got 0",
    ),
    "client: batched_trajectory_writer: no references": (
        lambda c: c.batched_trajectory_writer(1, 0),
        "num_keep_alive_refs must be at least 1, got 0",
    ),
    "client: structured_writer: no config": (
        lambda c: c.structured_writer([]),
        "At least one config must be provided.",
    ),
}

WRONG_TYPES = {
    "insert: None": (
        lambda c: c.insert({"a": {"b": None}}, {"table": 1.0}),
        "Column a/b: None cannot be stored; every step needs a value for every leaf",
    ),
    "insert: a date": (
        lambda c: c.insert([1, np.datetime64("2020-01-01")], {"table": 1.0}),
        f"Column 1: Values of NumPy dtype datetime64[D] {REFUSED}",
    ),
    "insert: an object": (
        lambda c: c.insert({"a": [1, object()]}, {"table": 1.0}),
        f"Column a/1: Values of type object {REFUSED}",
    ),
    "insert: an array of objects": (
        lambda c: c.insert({"a": np.array([object()])}, {"table": 1.0}),
        f"Column a: Values of NumPy dtype object {REFUSED}",
    ),
    "insert: an int of more than 64 bits": (
        lambda c: c.insert([2**70], {"table": 1.0}),
        f"Column 0: Values of type int of more than 64 bits {REFUSED}",
    ),
    "insert: a priority that is a str": (
        lambda c: c.insert([1], {"table": "x"}),
        "priorities must be numbers, got str for table table",
    ),
    "sample: a fraction": (
        lambda c: next(c.sample("table", 1.5)),
        "num_samples must be an integer, got float",
    ),
    "sample: a window of another type": (
        lambda c: c.sample_batch("table", 1, window=(1, 2)),
        "window must be a reverb.Window, got tuple",
    ),
    "client: mutate: a key below int64": (
        lambda c: c.mutate_priorities("table", {-(2**63) - 1: 1.0}),
        "keys must be integers in [-2^63, 2^64), got -9223372036854775809",
    ),
    "client: mutate: a key of 65 bits": (
        lambda c: c.mutate_priorities("table", deletes=[2**64]),
        "keys must be integers in [-2^63, 2^64), got 18446744073709551616",
    ),
    "client: mutate: a key that is a float": (
        lambda c: c.mutate_priorities("table", {1.5: 1.0}),
        "keys must be integers, got float",
    ),
    "client: mutate: a priority that is a str": (
        lambda c: c.mutate_priorities("table", {1: "high"}),
        "priorities must be numbers, got high for key 1",
    ),
    "client: update: keys that are floats": (
        lambda c: c.update_priorities("table", np.ones(2), [1.0, 1.0]),
        "keys must be integers, got an array of float64",
    ),
    "client: update: a list with a key of 65 bits": (
        lambda c: c.update_priorities("table", [1, 2**64], [1.0, 1.0]),
        "keys must be integers in [-2^63, 2^64), got 18446744073709551616",
    ),
    "client: update: a list with a float": (
        lambda c: c.update_priorities("table", [1, 1.5], [1.0, 1.0]),
        "keys must be integers, got 1.5",
    ),
    "client: update: no priorities": (
        lambda c: c.update_priorities("table", [1], None),
        "priorities must be numbers, got None",
    ),
    "client: mutate: a list": (
        lambda c: c.mutate_priorities("table", [1, 2]),
        "updates must be a mapping of keys to priorities, got list",
    ),
}

MISSING_TABLES = {
    "insert: an unknown table": (lambda c: c.insert([1], {"nope": 1.0}), NOPE),
    "sample: an unknown table": (lambda c: next(c.sample("nope")), NOT_FOUND),
    "sample: an unknown table to unpack": (
        lambda c: next(c.sample("nope", unpack_as_table_signature=True)),
        f"Server at {{address}} does not contain any table named nope. Found: {TABLES}.",
    ),
    "sample: a batch of an unknown table": (lambda c: c.sample_batch("nope", 1), NOT_FOUND),
    "client: mutate: an unknown table": (
        lambda c: c.mutate_priorities("nope", {1: 1.0}),
        NOT_FOUND,
    ),
    "client: reset: an unknown table": (lambda c: c.reset("nope"), NOT_FOUND),
}

MISMATCHES = {
    "insert: another dtype": (
        lambda c: c.insert({"a": 1.0}, {"signed": 1.0}),
        f"{COLUMN_A}, got dtype double and shape []. Trajectory: 0: Tensor<name: 'a', dtype: "
        f"double, shape: []>. {SIGNED}",
    ),
    "insert: more columns": (
        lambda c: c.insert([1, 2], {"signed": 1.0}),
        "Unable to create an item in table 'signed': the trajectory has 2 columns but the table "
        "signature has 1. Trajectory: 0: Tensor<name: '', dtype: int64, shape: []>, 1: "
        f"Tensor<name: '', dtype: int64, shape: []>. {SIGNED}",
    ),
}

DEADLINES = {
    "sample: a timeout": (
        lambda c: next(c.sample("table", timeout_ms=0)),
        "The sample timed out. Table table: 1 more insert allows the next sample. Its rate "
        "limiter: 0 item(s), min_size_to_sample 1, 0 insert(s), 0 sample(s), 0 delete(s), "
        "samples_per_insert 1, inserts * samples_per_insert - samples = 0, min_diff none, max_diff "
        "none. (Rate Limiter: Timeout exceeded.)",
    ),
}

CASES = cases(
    {
        errors.InvalidArgumentError: INVALID_ARGUMENTS,
        TypeError: WRONG_TYPES,
        errors.TableNotFoundError: MISSING_TABLES,
        errors.SignatureMismatchError: MISMATCHES,
        errors.DeadlineExceededError: DEADLINES,
    }
)


@pytest.mark.parametrize(("call", "kind", "text"), CASES)
def test_the_error_says_what_is_wrong(client, call, kind, text, error_says):
    error_says(lambda: call(client), kind, text.replace("{address}", client.server_address))
