# SPDX-License-Identifier: Apache-2.0
"""The signatures of a server's tables, cached by a client."""

import functools
from collections.abc import Callable
from typing import Any

import tree

from reverb._client.column_choice import ColumnChoice
from reverb.errors import SignatureMismatchError, TableNotFoundError
from reverb.reverb_types import TableInfo

__all__ = ["Signatures"]


class Signatures:
    """The signatures of all tables, and choices of their columns."""

    def __init__(self, server_address: str) -> None:
        self._server_address = server_address
        self._signatures: dict[str, Any] = {}
        self._choices: dict[Any, ColumnChoice] = {}

    def remember(self, answer: bytes) -> dict[str, TableInfo]:
        """Returns the tables of an answer to `server_info`, and keeps their signatures."""
        tables = TableInfo.all_of(answer)
        self._signatures = {table.name: table.signature for table in tables}
        return {table.name: table for table in tables}

    def are_known(self, table: str) -> bool:
        """Returns whether the last answer had this table."""
        return table in self._signatures

    def check(self, table: str) -> None:
        """Checks that the last answer had this table.

        Raises:
          TableNotFoundError: If it had not.
        """
        if table not in self._signatures:
            raise TableNotFoundError(
                f"Server at {self._server_address} does not contain any table named {table}. "
                f"Found: {', '.join(sorted(self._signatures))}."
            )

    def nested(self, table: str) -> Callable[[list[Any]], Any] | None:
        """Returns a function that nests a flat list like the table's signature, or `None`.

        Raises:
          TableNotFoundError: As `check`.
        """
        self.check(table)
        signature = self._signatures[table]
        return None if signature is None else functools.partial(_nested_as, table, signature)

    def choice(self, table: str, columns: object) -> ColumnChoice:
        """Returns the columns of a table with these names; all if `columns` is `None`."""
        signature = self._signatures.get(table)
        name = columns if isinstance(columns, str | int | tuple) else None
        if isinstance(columns, list):
            name = tuple(columns)
        try:
            known = self._choices.get((table, type(columns), name))
        except TypeError:  # Not hashable, so not a name; the constructor raises the error.
            known = None
        if known is None or known.signature is not signature:
            known = ColumnChoice(table, signature, columns)
            if columns is None or name is not None:
                self._choices[table, type(columns), name] = known
        return known


def _nested_as(table: str, signature: object, columns: list[Any]) -> object:
    count = len(tree.flatten(signature))
    if count != len(columns):
        raise SignatureMismatchError(
            f"an item of table {table} has {len(columns)} columns, but the table's signature has "
            f"{count}; sample it with unpack_as_table_signature=False"
        )
    return tree.unflatten_as(signature, columns)
