# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of the calls that carry no items (`core/wire/src/calls.rs`)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from reverb._checks.arguments import check_table
from reverb.core import protos
from reverb.errors import TableNotFoundError

__all__ = ["answer_of", "request_of", "table_among"]

_Table = TypeVar("_Table")


def request_of(call: str, **fields: object) -> tuple[str, bytes]:
    """Returns the name of a call and its serialized request.

    Args:
      call: The name, for example `"Reset"`; its messages are `ResetRequest` and `ResetResponse`.
      **fields: The fields of the request.

    Raises:
      TypeError: If `table` is not a text, or a value does not fit its field.
    """
    check_table(fields.get("table", ""))
    return call, getattr(protos, f"{call}Request")(**fields).SerializeToString()


def answer_of(call: str, answer: bytes) -> Any:
    """Returns the answer of a call, decoded."""
    return getattr(protos, f"{call}Response").FromString(answer)


def table_among(tables: Mapping[str, _Table], table: str) -> _Table:
    """Returns a table of a server.

    Args:
      tables: The tables of the server, by name.
      table: Name of the table.

    Raises:
      TableNotFoundError: If there is no such table; the text lists the tables there are.
      TypeError: If `table` is not a str.
    """
    check_table(table)
    if table not in tables:
        known = ", ".join(sorted(tables))
        raise TableNotFoundError(
            f"Priority table {table} was not found. The tables of this server are: {known}."
        )
    return tables[table]
