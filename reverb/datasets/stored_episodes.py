# SPDX-License-Identifier: Apache-2.0
"""Episodes that are items of a table."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tree

from reverb import errors
from reverb.client import Client
from reverb.datasets.episode import Episode, checked
from reverb.datasets.formats.fields import Names, episode_of

__all__ = ["episodes_of_items", "stored"]


def stored(client: Client, table: str) -> Iterator[Episode]:
    """Reads the episodes of a table whose items are whole episodes, oldest first.

    These are items of `Episodes`, of an import or of a recorder. Further columns of the items are
    infos, without a row for the reset. Memory is that of a few items.

    Blocks while it waits for the server.

    Args:
      client: A client of the server.
      table: Name of the table.

    Yields:
      An episode for each item.

    Raises:
      InvalidArgumentError: If the table has no signature with the columns of an episode, or if an
        item is not a whole episode; the text names table, item and field.
      TableNotFoundError: If there is no such table.
      UnavailableError: If no server answers.
    """
    info = client.server_info()
    if table not in info:
        raise errors.TableNotFoundError(f"the server has no table {table!r}; it has {sorted(info)}")
    columns = (sample.data for sample in client.scan(table))
    yield from episodes_of_items(table, info[table].signature, columns)


def episodes_of_items(
    table: str, signature: object, items: Iterable[Sequence[np.ndarray]]
) -> Iterator[Episode]:
    """Makes episodes of items, whose columns are in the order of the signature.

    Raises:
      InvalidArgumentError: As `stored`.
    """
    place = f"table {table}"
    if signature is None:
        raise errors.InvalidArgumentError(
            f"{place}: has no signature, so its columns have no names; export its items as they "
            "are, by the formats npz, parquet or tfrecord"
        )
    labels = ["/".join(map(str, path)) for path, _ in tree.flatten_with_path(signature)]
    names = Names.of(place, labels)
    for number, columns in enumerate(items):
        arrays = dict(zip(labels, columns, strict=True))
        for label, array in arrays.items():
            if label in names.parts and not array.ndim:
                raise errors.InvalidArgumentError(
                    f"{place}: item {number}, field {label}: is a single step. Episodes are made "
                    "of items that are whole episodes, as `Episodes` writes them; export such "
                    "items as they are, by the formats npz, parquet or tfrecord"
                )
        episode = checked(
            episode_of(names, arrays, number=number, source=place, place=place), advises=False
        )
        if episode is not None:
            yield episode
