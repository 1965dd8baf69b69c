# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of the calls that carry no items (`core/wire/src/calls.rs`)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from reverb._checks.arguments import check_table, check_timeout_ms
from reverb.core import protos
from reverb.errors import InvalidArgumentError, TableNotFoundError
from reverb.shown_text import type_name

__all__ = ["answer_of", "request_of", "sync_request", "table_among"]

_MAX_NOTE_BYTES = 65_536
# Time that the answer of a server may take beyond the limit of `sync`.
_MAX_SYNC_ANSWER_S = 1.0
# For all practical purposes no limit: a century.
_MAX_TIMEOUT_MS = 3_155_760_000_000

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


def sync_request(note: object, timeout_ms: object) -> tuple[str, bytes, float | None]:
    """Returns the call of `sync`, its request, and the time limit for a server that is frozen.

    Raises:
      InvalidArgumentError: If the note is too long, or the time is negative.
      TypeError: If `note` is not bytes, or `timeout_ms` neither an integer nor `None`.
    """
    if not isinstance(note, bytes):
        raise TypeError(f"note must be bytes, got {type_name(note)}")
    if len(note) > _MAX_NOTE_BYTES:
        raise InvalidArgumentError(
            f"note must have at most {_MAX_NOTE_BYTES:,} bytes, got {len(note):,}"
        )
    limit = check_timeout_ms(timeout_ms)
    # The server waits for ever with 0.
    limit = 0 if limit is None else min(max(limit, 1), _MAX_TIMEOUT_MS)
    # The server's own answer says how far behind its disk is.
    at_once = None if limit == 0 else limit / 1000 + _MAX_SYNC_ANSWER_S
    return *request_of("Sync", note=note, timeout_ms=limit), at_once


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
