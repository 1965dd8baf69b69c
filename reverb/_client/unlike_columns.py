# SPDX-License-Identifier: Apache-2.0
"""Columns that make no batch together: the errors of those that differ between parts of one."""

from collections.abc import Callable, Sequence
from typing import Any

from reverb._client.column_choice import ColumnChoice
from reverb._client.ragged import Ragged
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplayBatch

__all__ = ["check_same_columns", "check_same_forms"]

_ODD_ITEM = 'See "One item fails every batch" on the page of troubleshooting.'

# Dtype and shape of a column in one item. A length that differs between items is `None`.
_Form = tuple[Any, list[int | None]]


def check_same_columns(one: ColumnChoice, other: ColumnChoice, rows: ReplayBatch) -> None:
    """Checks that the columns of two tables have the same names, in the same order.

    `rows` are of the other table. Without a signature nothing but their number is known.

    Raises:
      InvalidArgumentError: If they have others.
    """
    labels, others = one.labels, other.labels
    if not labels or not others:
        count = len(others) or len(rows.data)
        if labels and count != len(labels):
            raise _different_numbers([one.table, other.table], [len(labels), count])
        return
    if labels == others:
        return
    beside, lacking = _but(others, labels), _but(labels, others)
    if not beside and not lacking:
        raise InvalidArgumentError(
            f"The tables of a mixture must have the same columns, but their order is {labels} in "
            f"table {one.table} and {others} in table {other.table}. Give both the same signature."
        )
    texts = [f"has {_named(beside)} that table {one.table} lacks"] if beside else []
    texts += [f"lacks {_named(lacking)} of table {one.table}"] if lacking else []
    raise InvalidArgumentError(
        f"The tables of a mixture must have the same columns, but table {other.table} "
        f"{' and '.join(texts)}. Choose columns that all tables have by columns=, or let each "
        'batch come from one table by mix="batch".'
    )


def check_same_forms(
    parts: Sequence[ReplayBatch], tables: Sequence[str], name_of: Callable[[int], str]
) -> None:
    """Checks that flat batches have the same number of columns, with the same shapes and dtypes.

    Args:
      parts: At least one batch.
      tables: The table of each; empty if all are of one.
      name_of: Returns the name of a column for an error.

    Raises:
      InvalidArgumentError: If an item of one has another column than an item of the first one.
    """
    forms = [_forms(part) for part in parts]
    keys = [part.info.key[0] for part in parts]
    for number, of_part in enumerate(forms[1:], start=1):
        pair = [
            f"items of table {tables[it]}" if tables else f"the item with key {keys[it]}"
            for it in (0, number)
        ]
        if len(of_part) != len(forms[0]):
            names = [tables[0], tables[number]] if tables else []
            raise _different_numbers(names, [len(forms[0]), len(of_part)])
        for at, (one, other) in enumerate(zip(forms[0], of_part, strict=True)):
            if _is_alike(one, other):
                continue
            raise InvalidArgumentError(
                f"The items of a batch must have the same shapes and dtypes, but column "
                f"{name_of(at)} is {_shown(one)} in {pair[0]} and {_shown(other)} in {pair[1]}. "
                f"{_advice(one, other) if tables else _ODD_ITEM}"
            )


def _forms(part: ReplayBatch) -> list[_Form]:
    lengths = part.lengths or [None] * len(part.data)
    return [_form(column, of) for column, of in zip(part.data, lengths, strict=True)]


def _form(column: Any, lengths: Any) -> _Form:
    if isinstance(column, Ragged):
        return column.values.dtype, [None, *column.values.shape[1:]]
    if lengths is not None:
        return column.dtype, [None, *column.shape[2:]]
    return column.dtype, list(column.shape[1:])


def _is_alike(one: _Form, other: _Form) -> bool:
    if one[1] != other[1]:
        return False
    # Texts have a dtype for each length.
    return one[0] == other[0] or one[0].kind == other[0].kind in "SU"


def _shown(form: _Form) -> str:
    return f"{form[0]} {form[1]}".replace("None", "T")


def _advice(one: _Form, other: _Form) -> str:
    shapes = sorted((one[1], other[1]), key=len)
    if shapes[1] in ([1, *shapes[0]], [None, *shapes[0]]):
        return (
            "A step and a sequence of one step, which writers of different kinds store, are alike "
            "with squeeze=True and without ragged=."
        )
    if one[0] == other[0] and len(one[1]) == len(other[1]) and one[1][1:] == other[1][1:]:
        return 'Sample them with ragged="pad" or "packed".'
    return "Leave it out by columns=, or write it in the same form."


def _different_numbers(tables: Sequence[str], counts: Sequence[int]) -> InvalidArgumentError:
    one, other = (f"table {it}" for it in tables) if tables else ("one", "another")
    return InvalidArgumentError(
        f"The items of a batch must have the same columns, but those of {one} have {counts[0]} and "
        f"those of {other} {counts[1]}. Choose columns that all have by columns=, such as "
        "columns=[0]."
    )


def _but(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _named(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
