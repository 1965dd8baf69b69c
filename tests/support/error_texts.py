# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests in `error_messages/`: tables of errors, the common parts of texts."""

import pytest

# The tables of the server in error_messages/conftest.py.
TABLES = "prioritized, queue, signed, table"

REFUSED = "cannot be stored. Use numbers, booleans, str or bytes."
NOPE = (
    "Unable to create an item in table 'nope': the server at {address} has no table of that name. "
    f"Its tables are: {TABLES}."
)
NOT_FOUND = f"Priority table nope was not found. The tables of this server are: {TABLES}."
SIGNED = "Table signature: 0: Tensor<name: 'a', dtype: int64, shape: [2]>"
COLUMN_A = (
    "Unable to create an item in table 'signed': column a must have dtype int64 and shape [2]"
)
EMPTY = "trajectory must have at least one column with at least one step, all columns are empty"
CLOSED = "The writer is closed. Create a new one to write on."


def closed(writer):
    """Closes a writer and returns it."""
    writer.close()
    return writer


def cases(tables):
    """Parameters `(call, kind, text)` of a test, of a table `{name: (call, text)}` for a kind."""
    return [
        pytest.param(call, kind, text, id=name)
        for kind, table in tables.items()
        for name, (call, text) in table.items()
    ]
